"""YAML files as values that know the line of each of their fields.

Why apart: a problem must name file and line, and a YAML parser's plain values have lost both. Must not: know what a
DDPJob is beyond its `kind`; what is right or wrong is the api's to say.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

import yaml

from ddpjob_api.codec import Path, dotted
from ddpjob_api.spec import GROUP, KIND
from ddpjob_cli.errors import Unusable

MAX_BYTES = 3 * 1024 * 1024
"""Twice what the API server stores of an object."""


NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})


class Loader(yaml.SafeLoader):
    """YAML as kubectl reads it: `1e-3` is a number, a date and `1:30` are strings."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """The tag of a node; what YAML 1.1 takes for a number of base 60 is a string."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        sexagesimal = kind is yaml.ScalarNode and ":" in value and tag in NUMBERS
        return "tag:yaml.org,2002:str" if sexagesimal else tag


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)

NO_JSON = {
    "tag:yaml.org,2002:binary": "bytes (!!binary)",
    "tag:yaml.org,2002:set": "a set (!!set)",
    "tag:yaml.org,2002:omap": "an ordered map (!!omap)",
    "tag:yaml.org,2002:pairs": "pairs (!!pairs)",
    "tag:yaml.org,2002:timestamp": "a date (!!timestamp)",
}


@dataclass(frozen=True, kw_only=True)
class Document:
    """One document of a file."""

    file: str
    """As the user wrote it; `<stdin>` for `-`."""
    value: object
    root: yaml.Node
    options: Mapping[Path, str] = field(default_factory=dict)
    """Fields that the command line set, and the option that did."""

    @property
    def kind(self) -> object:
        return self.value.get("kind") if isinstance(self.value, Mapping) else None

    @property
    def name(self) -> str | None:
        metadata = self.value.get("metadata") if isinstance(self.value, Mapping) else None
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        return name if isinstance(name, str) else None

    @property
    def is_job(self) -> bool:
        """Whether it means to be a DDPJob; a wrong version still does."""
        version = self.value.get("apiVersion") if isinstance(self.value, Mapping) else None
        return self.kind == KIND or str(version).startswith(f"{GROUP}/")

    def line(self, path: Path) -> int:
        """The line of a field, or of the nearest object around it that is in the file."""
        node, line = self.root, self.root.start_mark.line
        for part in path:
            found = child(node, part)
            if found is None:
                break
            key, node = found
            line = key.start_mark.line
        return line + 1

    def where(self, path: Path) -> str:
        """`ddpjob.yaml:14`, or the option that set the field."""
        return self.options.get(path) or f"{self.file}:{self.line(path)}"

    def with_value(self, path: Path, value: object, option: str) -> "Document":
        """The document with one field set by a command line option.

        Raises:
            Unusable: the path leads through something that is no object.
        """
        changed = put(self.value, path, value, option)
        return replace(self, value=changed, options={**self.options, path: option})


def read(file: str) -> tuple[Document, ...]:
    """The documents of a file; `-` reads standard input. Empty ones are left out.

    Raises:
        Unusable: no such file, not readable, not YAML, a key twice in one object, or nothing in it.
    """
    shown, text = ("<stdin>", sys.stdin.buffer.read()) if file == "-" else (file, read_bytes(file))
    if len(text) > MAX_BYTES:
        raise Unusable(f"{shown}: {len(text)} bytes are no resource; a cluster takes at most 1.5 MiB")
    found = [
        Document(file=shown, value=value, root=node) for node, value in load(text, shown) if value is not None
    ]
    if not found:
        raise Unusable(f"{shown}: empty; expected a DDPJob (docs/getting-started.md has one to begin with)")
    return tuple(found)


def one_value(text: str, shown: str) -> object:
    """The value of an option; None where nothing stands there.

    Raises:
        Unusable: as `read`, and more than one document.
    """
    found = load(text, shown)
    if len(found) > 1:
        raise Unusable(f"{shown}: {len(found)} documents; expected one value")
    return found[0][1] if found else None


def jobs(file: str) -> tuple[Document, ...]:
    """The documents of a file that mean to be DDPJobs; a single document is taken for one unless it says otherwise.

    Raises:
        Unusable: as `read`, and where all of them are something else.
    """
    documents = read(file)
    found = tuple(document for document in documents if document.is_job)
    if found:
        return found
    if len(documents) == 1 and not foreign(documents[0]):
        return documents
    kinds = ", ".join(dict.fromkeys(str(document.kind) for document in documents))
    raise Unusable(f"{documents[0].file}: no {KIND} in it, only {kinds}; name the file that has one")


def one_job(file: str, name: str | None) -> Document:
    """The DDPJob of a file; `name` chooses where there are several.

    Raises:
        Unusable: as `jobs`, and where the choice is not clear.
    """
    found = jobs(file)
    if name is not None:
        named = [document for document in found if document.name == name]
        if len(named) == 1:
            return named[0]
        names = ", ".join(str(document.name) for document in found)
        count = "several DDPJobs" if named else "no DDPJob"
        raise Unusable(f"{found[0].file}: {count} named {name}; it has {names}")
    if len(found) > 1:
        names = ", ".join(str(document.name) for document in found)
        raise Unusable(f"{found[0].file}: {len(found)} DDPJobs ({names}); choose one with --name")
    return found[0]


def load(text: str | bytes, shown: str) -> list[tuple[yaml.Node, Any]]:
    """The documents of a YAML text, as nodes and as values.

    Raises:
        Unusable: it is not YAML, or no JSON could say the same.
    """
    found: list[tuple[yaml.Node, Any]] = []
    try:
        loader = Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                assert node is not None  # check_node said so
                check(node, shown, set())
                found.append((node, loader.construct_document(node)))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise Unusable(not_yaml(shown, error)) from error
    except RecursionError as error:
        raise Unusable(f"{shown}: nested too deeply to be a resource") from error
    except (yaml.YAMLError, ValueError) as error:
        raise Unusable(f"{shown}: not YAML: {' '.join(str(error).split())}") from error
    return found


def read_bytes(file: str) -> bytes:
    try:
        return FilePath(file).read_bytes()
    except FileNotFoundError as error:
        raise Unusable(f"{file}: no such file") from error
    except IsADirectoryError as error:
        raise Unusable(f"{file}: a directory; name the YAML file in it") from error
    except OSError as error:
        raise Unusable(f"{file}: cannot be read: {error.strerror}") from error


def not_yaml(file: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{file}:{mark.line + 1}" if mark else file
    reason = " ".join(part for part in (error.context, error.problem) if part)
    return f"{place}: not YAML: {reason or 'it cannot be parsed'}"


def foreign(document: Document) -> bool:
    """A document of another kind, spelled far from ours."""
    kind = document.kind
    return isinstance(kind, str) and kind.lower() != KIND.lower()


def check(
    node: yaml.Node, file: str, done: set[int], path: Path = (), above: frozenset[int] = frozenset()
) -> None:
    """What a JSON document cannot be: a key twice in one object, an object within itself, a number without end, bytes.

    Raises:
        Unusable: with the line of it.
    """
    place = f"{file}:{node.start_mark.line + 1} {dotted(path)}"
    if id(node) in done:
        return  # an alias of what was looked at; following each of them takes for ever where they are nested
    if id(node) in above:
        raise Unusable(f"{place}: the alias leads back to the object it is in")
    if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:float":
        number = node.value.replace("_", "").lower()
        if number.lstrip("+-") in {".inf", ".nan"} or not math.isfinite(float(number)):
            raise Unusable(f"{place}: {node.value} is no number that JSON can carry")
    if node.tag in NO_JSON:
        raise Unusable(
            f"{place}: {NO_JSON[node.tag]}, which JSON cannot carry; expected a string, list or object"
        )
    seen: dict[str, int] = {}
    for part, key, value in children(node):
        if isinstance(part, str):
            line = key.start_mark.line + 1
            if part in seen and part != "<<":
                raise Unusable(
                    f"{file}:{line} {dotted((*path, part))}: given twice, first on line {seen[part]}; "
                    "keep one of them"
                )
            seen[part] = line
        check(value, file, done, (*path, part), above | {id(node)})
    done.add(id(node))


def children(node: yaml.Node) -> Iterator[tuple[str | int, yaml.Node, yaml.Node]]:
    """Key or index, the node whose line is the entry's, and the value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield str(key.value), key, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield index, value, value


def child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    for name, key, value in children(node):
        if name == part:
            return key, value
    return None


def put(value: object, path: Path, new: object, option: str) -> object:
    if not path:
        return new
    if value is not None and not isinstance(value, Mapping):
        raise Unusable(f"{option}: what is around {path[0]} is no object, so it cannot have fields")
    known: Mapping[Any, Any] = value or {}
    return {**known, path[0]: put(known.get(path[0]), path[1:], new, option)}
