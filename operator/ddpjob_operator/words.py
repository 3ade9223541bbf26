"""What launchers say, read as far as this operator knows it and as the API server will keep it.

Why apart: a report and last words come from programs of any version, and are put into a status as they are. What the API
server would store differently would be a change at each look, with a write and an event. Must not: judge what is said.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar, cast, get_args, get_origin

from ddpjob_api.codec import load, shapes
from ddpjob_api.fields import Limits

T = TypeVar("T")
HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: Python's for a byte of a file name that is no UTF-8. JSON can say it, the API server not."""


def read(kind: type[T], text: str | bytes) -> T:
    """A `kind` in JSON.

    Raises:
        Invalid: it is something else.
        ValueError, OverflowError, RecursionError: it is no JSON, or none that can be read.
    """
    return load(kind, speakable(pruned(kind, json.loads(text))))


def pruned(kind: type, document: object) -> object:
    """The document without what `kind` does not have: a newer trainer may say more than we know, and at more length."""
    if not isinstance(document, Mapping):
        return document
    known: dict[str, Any] = {}
    for shape in shapes(kind):
        item = document.get(shape.name)
        if item is None:
            continue
        inner = get_args(shape.hint)[0] if get_origin(shape.hint) is tuple else None
        if is_dataclass(shape.hint):
            item = pruned(cast("type", shape.hint), item)
        elif isinstance(inner, type) and is_dataclass(inner) and isinstance(item, list):
            item = [pruned(inner, each) for each in item]
        known[shape.name] = cut(item, shape.limits)
    return known


def cut(item: Any, limits: Limits) -> Any:
    """A text or a list of at most the size that its field takes: a part of a report is not worth the whole."""
    if isinstance(item, str):
        return item[: limits.max_length]
    if isinstance(item, list):
        return [cut(one, limits.of_item) for one in item[: limits.max_items]]
    return item


def speakable(value: Any) -> Any:
    """The document with U+FFFD for each half of a surrogate pair, as the API server does it."""
    if isinstance(value, str):
        return HALF.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {speakable(name): speakable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [speakable(item) for item in value]
    return value
