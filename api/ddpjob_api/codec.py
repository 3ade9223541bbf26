"""Documents to typed values and back, with the path of everything that is wrong.

Why apart: one parser serves `ddpjob lint`, the operator and the launcher, so that they never read a resource
differently. Must not: stop at the first problem, or judge combinations (`rules.py`).
"""

import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from datetime import timedelta
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast

from ddpjob_api.fields import Json, Limits, is_duration, json_name, limits_of
from ddpjob_api.spec import API_VERSION, KIND, QUANTITY_MAX_LENGTH, QUANTITY_PATTERN, DDPJob, Metadata, Spec

T = TypeVar("T")
Path = tuple[str | int, ...]
MAX_CARRIED_BYTES = 96 * 1024
"""Of 128 KiB that Linux allows for one string of an environment (MAX_ARG_STRLEN)."""
NOT_CARRIED = ("env", "envFrom", "template")
"""Fields of a spec that can be large and do not travel in it."""
UNSPEAKABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a document."""

    path: Path
    """Keys and list indexes from the root, e.g. `("spec", "env", 0, "name")`."""

    message: str
    """What is wrong, what was expected, what to do; without the path."""

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


class Invalid(ValueError):
    """A document that is no DDPJob; `problems` has every reason, not only the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(path: Path) -> str:
    """`spec.env[0].name`, as Kubernetes writes field paths."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


def parse(document: object) -> DDPJob:
    """The DDPJob in a parsed YAML or JSON document.

    Raises:
        Invalid: with a problem for every unknown field, wrong type and value out of bounds.
    """
    problems: list[Problem] = []
    if not isinstance(document, Mapping):
        raise Invalid([Problem(path=(), message=f"expected a DDPJob (an object), found {kind_of(document)}")])
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        found = f"{document.get('apiVersion')}, {document.get('kind')}"
        raise Invalid(
            [Problem(path=(), message=f"expected apiVersion {API_VERSION} and kind {KIND}, found {found}")]
        )
    unknown_fields(document, ("apiVersion", "kind", "metadata", "spec", "status"), (), problems)
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name: Any = metadata.get("name")
    namespace: Any = metadata.get("namespace") or "default"
    if not isinstance(name, str):
        found = "missing" if name is None else f"expected a string, found {kind_of(name)}; put it in quotes"
        problems.append(Problem(path=("metadata", "name"), message=f"{found}; a job needs a name"))
    if not isinstance(namespace, str):
        found = f"expected a string, found {kind_of(namespace)}; put it in quotes"
        problems.append(Problem(path=("metadata", "namespace"), message=found))
    spec = decode_spec(document.get("spec", {}), problems)
    if problems or spec is None:
        raise Invalid(problems)
    return DDPJob(metadata=Metadata(name=name, namespace=namespace), spec=spec)


def parse_spec(document: object) -> Spec:
    """The `spec` alone, as it travels to the pods.

    Raises:
        Invalid: as `parse`.
    """
    problems: list[Problem] = []
    spec = decode_spec(document, problems)
    if problems or spec is None:
        raise Invalid(problems)
    return spec


def load(kind: type[T], document: object, path: Path = ()) -> T:
    """One dataclass of the API from JSON.

    Raises:
        Invalid: as `parse`.
    """
    problems: list[Problem] = []
    value = decode(kind, document, path, problems)
    if problems or value is None:
        raise Invalid(problems)
    return value


def render(value: Any) -> Any:
    """The document that `parse` or `load` reads back as an equal value; what equals its default is left out."""
    if isinstance(value, DDPJob):
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": value.metadata.name, "namespace": value.metadata.namespace},
            "spec": render(value.spec),
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        document: dict[str, Any] = {}
        for shape in shapes(type(value)):
            item = getattr(value, shape.field.name)
            if shape.required or item != shape.default():
                document[shape.name] = render(item)
        return document
    if isinstance(value, timedelta):
        return int(value.total_seconds())
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {key: render(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [render(item) for item in value]
    return value


def decode_spec(document: object, problems: list[Problem]) -> Spec | None:
    """A `spec`, whose strings become arguments, variables and file names of programs: not every string can."""
    problems += unspeakable(document, ("spec",))
    problems += too_large(document)
    return decode(Spec, document, ("spec",), problems)


def too_large(document: object) -> Iterator[Problem]:
    """A spec that does not fit into the variable in which it travels to the launchers."""
    if not isinstance(document, Mapping):
        return
    carried = {name: value for name, value in document.items() if name not in NOT_CARRIED}
    size = len(json.dumps(carried, skipkeys=True, default=str))
    if size > MAX_CARRIED_BYTES:
        message = (
            f"{size} bytes as JSON without {', '.join(NOT_CARRIED)}; at most {MAX_CARRIED_BYTES}, because it travels to "
            "the launchers in one environment variable; put what is long into a file"
        )
        yield Problem(path=("spec",), message=message)


def unspeakable(value: object, path: Path) -> Iterator[Problem]:
    """Strings that no program can be given, at any depth: those with a NUL, and those that UTF-8 cannot carry."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            here = (*path, str(key))
            yield from unspeakable(key, here)
            yield from unspeakable(item, here)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from unspeakable(item, (*path, index))
    elif isinstance(value, str) and UNSPEAKABLE.search(value):
        message = (
            f"{show(value)} has a character (NUL, or half of a surrogate pair) that no program can be given"
        )
        yield Problem(path=path, message=f"{message}; take it out")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A dataclass field as the resource has it."""

    field: "dataclasses.Field[Any]"
    name: str
    hint: Any
    """The type without `None`."""
    optional: bool
    """Whether `None` (absent) is a value of its own."""
    limits: Limits

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    def default(self) -> Any:
        if self.field.default_factory is not MISSING:
            return self.field.default_factory()
        return self.field.default


@cache
def shapes(kind: type) -> tuple[Shape, ...]:
    """The fields of an API dataclass, in order."""
    hints = typing.get_type_hints(kind)
    found = []
    for field in dataclasses.fields(kind):
        hint, optional = hints[field.name], False
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            inner = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
            hint, optional = inner[0], True
        found.append(
            Shape(
                field=field,
                name=json_name(field, hint),
                hint=hint,
                optional=optional,
                limits=limits_of(field),
            )
        )
    return tuple(found)


def decode(kind: type[T], document: object, path: Path, problems: list[Problem]) -> T | None:
    """`document` as a `kind`; problems are added to the list, and None is returned where there is no value."""
    if not isinstance(document, Mapping):
        problems.append(Problem(path=path, message=f"expected an object, found {kind_of(document)}"))
        return None
    before = len(problems)
    known = shapes(cast("Any", kind))
    unknown_fields(document, [shape.name for shape in known], path, problems)
    values: dict[str, Any] = {}
    for shape in known:
        here = (*path, shape.name)
        given = document.get(shape.name)
        if given is None:
            if shape.required:
                problems.append(Problem(path=here, message="missing; this field is required"))
            continue
        values[shape.field.name] = decode_value(shape.hint, given, here, shape.limits, problems)
    if len(problems) > before:
        return None
    return kind(**values)


def decode_value(hint: Any, given: object, path: Path, limits: Limits, problems: list[Problem]) -> Any:
    """One value of type `hint`, checked against its limits."""

    def fail(message: str) -> None:
        problems.append(Problem(path=path, message=message))

    if dataclasses.is_dataclass(hint):
        return decode(cast("type[Any]", hint), given, path, problems)
    if hint is Json or typing.get_origin(hint) is Mapping or hint is Mapping:
        return decode_map(hint, given, path, limits, problems)
    if typing.get_origin(hint) is tuple:
        if not isinstance(given, list):
            return fail(f"expected a list, found {kind_of(given)}")
        check_size(len(given), limits.min_items, limits.max_items, "item", fail)
        item = typing.get_args(hint)[0]
        return tuple(
            decode_value(item, each, (*path, index), limits.of_item, problems)
            for index, each in enumerate(given)
        )
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        allowed = [member.value for member in hint]
        if given in allowed:
            return hint(given)
        return fail(f"{show(given)} is not one of {', '.join(allowed)}" + nearest(given, allowed))
    if hint is bool:
        return given if isinstance(given, bool) else fail(f"expected true or false, found {kind_of(given)}")
    if hint is int or is_duration(hint):
        if isinstance(given, bool) or not isinstance(given, int):
            return fail(f"expected a whole number, found {kind_of(given)}")
        check_range(given, limits, fail)
        return timedelta(seconds=given) if is_duration(hint) else given
    if hint is float:
        if isinstance(given, bool) or not isinstance(given, (int, float)):
            return fail(f"expected a number, found {kind_of(given)}")
        return float(given)
    if hint is str:
        if not isinstance(given, str):
            return fail(f"expected a string, found {kind_of(given)}; put it in quotes")
        check_size(len(given), limits.min_length, limits.max_length, "character", fail)
        if limits.pattern is not None and re.search(limits.pattern, given) is None:
            fail(f"{show(given)} does not match {limits.pattern}")
        return given
    return given


def decode_map(hint: Any, given: object, path: Path, limits: Limits, problems: list[Problem]) -> Any:
    if not isinstance(given, Mapping):
        problems.append(Problem(path=path, message=f"expected an object, found {kind_of(given)}"))
        return None
    check_size(
        len(given),
        None,
        limits.max_items,
        "entry",
        lambda message: problems.append(Problem(path=path, message=message)),
    )
    if hint == Mapping[str, str]:
        for key, value in given.items():
            wrong = no_quantity(value)
            if wrong is not None:
                problems.append(Problem(path=(*path, str(key)), message=wrong))
        return {str(key): str(value) for key, value in given.items()}
    return dict(given)


def no_quantity(value: object) -> str | None:
    """What is wrong with an amount of a resource; whole numbers need no quotes, as for the API server."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        quotes = "; put it in quotes" if isinstance(value, float) else ""
        return f"expected a quantity, found {kind_of(value)}{quotes}"
    text = str(value)
    if len(text) > QUANTITY_MAX_LENGTH or re.fullmatch(QUANTITY_PATTERN, text) is None:
        return f"{show(text)} is no quantity; like 4, 500m, 16Gi"
    return None


def unknown_fields(
    document: Mapping[str, Any], known: Iterable[str], path: Path, problems: list[Problem]
) -> None:
    names = list(known)
    for key in document:
        if key not in names:
            message = "unknown field" + (nearest(key, names) or f"; known here: {', '.join(names)}")
            problems.append(Problem(path=(*path, str(key)), message=message))


def nearest(given: object, names: list[str]) -> str:
    """`; did you mean X?`, or nothing where no name is near."""
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(given).lower().replace("_", ""), list(lowered), n=1, cutoff=0.6)
    return f"; did you mean {lowered[close[0]]}?" if close else ""


def check_range(value: int, limits: Limits, fail: Callable[[str], None]) -> None:
    if limits.minimum is not None and value < limits.minimum:
        fail(f"{value} is too small; at least {limits.minimum}")
    if limits.maximum is not None and value > limits.maximum:
        fail(f"{value} is too large; at most {limits.maximum}")


def check_size(
    size: int, least: int | None, most: int | None, noun: str, fail: Callable[[str], None]
) -> None:
    if least is not None and size < least:
        fail(f"too short; at least {least} {noun}{'s' if least != 1 else ''}")
    if most is not None and size > most:
        fail(f"too long: {size} {noun}s; at most {most}")


def kind_of(value: object) -> str:
    """A value's type in YAML's words, with the value where it is short."""
    if value is None:
        return "nothing"
    words = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    word = words.get(type(value), "an object" if isinstance(value, Mapping) else type(value).__name__)
    return f"{word} ({show(value)})" if isinstance(value, (bool, int, float, str)) else word


def show(value: object) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
