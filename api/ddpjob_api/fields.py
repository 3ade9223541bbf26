"""How a dataclass field says what its counterpart in the CRD allows.

Why apart: bounds and names stand once, beside the field they are of; the parser, the renderer, `ddpjob lint` and the
test that compares the types with `crds/ddpjob.yaml` all read them from here.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from datetime import timedelta
from typing import Any

Json = Mapping[str, Any]
"""A value that DDPJob hands on without reading it (Kubernetes checks it): an object of JSON."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a field's value may be, in the words of OpenAPI."""

    minimum: int | None = None
    maximum: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None
    max_item_length: int | None = None
    """`maxLength` of the texts in a list."""
    pattern: str | None = None

    @property
    def of_item(self) -> "Limits":
        """Those of each item of a list."""
        return Limits(max_length=self.max_item_length)


def limited(
    default: Any = MISSING,
    *,
    name: str | None = None,
    factory: Any = MISSING,
    minimum: int | None = None,
    maximum: int | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    min_items: int | None = None,
    max_items: int | None = None,
    max_item_length: int | None = None,
    pattern: str | None = None,
) -> Any:
    """A dataclass field with limits and, where the rule below does not give it, its name in the resource."""
    limits = Limits(
        minimum=minimum,
        maximum=maximum,
        min_length=min_length,
        max_length=max_length,
        min_items=min_items,
        max_items=max_items,
        max_item_length=max_item_length,
        pattern=pattern,
    )
    metadata = {"limits": limits, "name": name}
    if factory is not MISSING:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    if default is not MISSING:
        return dataclasses.field(default=default, metadata=metadata)
    return dataclasses.field(metadata=metadata)


def limits_of(field: "dataclasses.Field[Any]") -> Limits:
    limits = field.metadata.get("limits")
    return limits if isinstance(limits, Limits) else Limits()


def json_name(field: "dataclasses.Field[Any]", hint: Any) -> str:
    """The field's name in the resource: camelCase, durations end in `Seconds`, unless the field names it."""
    given = field.metadata.get("name")
    if isinstance(given, str):
        return given
    head, *rest = field.name.split("_")
    camel = head + "".join(word.capitalize() for word in rest)
    return camel + "Seconds" if is_duration(hint) else camel


def is_duration(hint: Any) -> bool:
    return hint is timedelta or timedelta in getattr(hint, "__args__", ())
