"""One field of a YAML file set, and nothing else in it changed: comments, order and quotes stay.

Why apart: every YAML writer reformats; the parser knows where a value stands, so the text itself can be cut. Must not:
know what the field means.
"""

import json
from collections.abc import Sequence

import yaml

from ddpjob_cli.document import child, load
from ddpjob_cli.errors import Unusable


def with_field(text: str, document: int, path: Sequence[str], value: object) -> str:
    """The text with the field of its n-th document set; objects on the way are made.

    Raises:
        Unusable: it cannot be put there without rewriting what is there.
    """
    node = load(text, "the file")[document][0]
    changed = text
    for depth, part in enumerate(path):
        found = child(node, part)
        if found is None or is_null(found[1]):
            changed = inserted(text, node, found, path[depth:], value)
            break
        node = found[1]
    else:
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        changed = text[:start] + scalar(value) + text[end:]
    if value_at(changed, document, path) != value:
        raise Unusable(
            f"{'.'.join(path)} cannot be set in the file as it is written; set it to {scalar(value)} by hand"
        )
    return changed


def inserted(
    text: str, node: yaml.Node, found: tuple[yaml.Node, yaml.Node] | None, path: Sequence[str], value: object
) -> str:
    """The field put before the first of its object, in that object's style."""
    if found is not None:  # `ddp:` with nothing behind it
        at = text.index(":", found[0].end_mark.index) + 1
        rest = text[found[1].end_mark.index :] if found[1].end_mark.index > at else text[at:]
        return text[:at] + " " + flow(path[1:], value) + rest
    if not isinstance(node, yaml.MappingNode) or not node.value:
        raise Unusable(f"{path[0]} has no object to stand in; set it by hand")
    if node.flow_style:
        at = node.start_mark.index + 1
        return text[:at] + f"{path[0]}: {flow(path[1:], value)}, " + text[at:]
    first = node.value[0][0].start_mark
    column = int(first.column)
    at = int(first.index) - column
    return text[:at] + " " * column + f"{path[0]}: {flow(path[1:], value)}\n" + text[at:]


def flow(path: Sequence[str], value: object) -> str:
    """`{bucketCapMB: 8}`, or the value itself."""
    return f"{{{path[0]}: {flow(path[1:], value)}}}" if path else scalar(value)


def scalar(value: object) -> str:
    """A number, a truth value or a string, as YAML and JSON both have it."""
    return json.dumps(value)


def is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def value_at(text: str, document: int, path: Sequence[str]) -> object:
    found: object = load(text, "the file")[document][1]
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found
