"""What a script keeps in its checkpoint folder, as a list that two nodes can compare.

Why apart: a script writes where and when it likes, often on rank 0's node only, and reads on all. Without a shared
volume the folders of all nodes are made one before a generation begins, as far as that loses nothing: a file that one
node lacks is taken, of two that differ the newer one stays. So the folder is as if it were shared, and a node that
lost its own finds it again.
Must not: read a file's content; size and time of change tell two apart, and a copy keeps both.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ddpjob_trainer.launcher.peers.items import KEPT_FOLDER, OWN, NotHere, check_name, hidden, plain_files
from ddpjob_trainer.launcher.peers.shelf import Shelf

MAX_ITEMS = 256
"""The newest ones; a folder with more of them is somebody's log."""


@dataclass(frozen=True, order=True)
class Stamp:
    """One file, as far as it is looked at; the newer, then the larger, is the greater."""

    mtime_ns: int
    size: int


@dataclass(frozen=True, kw_only=True)
class Item:
    """A child of the folder, of this node or kept for another one."""

    place: str
    name: str
    files: Mapping[str, Stamp]

    @property
    def stamp(self) -> Stamp:
        """When it changed last, and its whole size."""
        newest = max((stamp.mtime_ns for stamp in self.files.values()), default=0)
        return Stamp(newest, sum(stamp.size for stamp in self.files.values()))


@dataclass(frozen=True, kw_only=True)
class Tree:
    """All of a node."""

    items: tuple[Item, ...] = field(default=())

    @classmethod
    def of(cls, shelf: Shelf) -> "Tree":
        """What lies there now; a file that goes away meanwhile is not there."""
        if shelf.folder is None or shelf.by_step or shelf.shared:
            return cls()
        found = list(items_in(shelf.folder, OWN))
        for folder in children(shelf.folder / KEPT_FOLDER):
            found += items_in(Path(folder.path), folder.name)
        return cls(items=tuple(sorted(found, key=lambda item: (item.stamp, item.name))[-MAX_ITEMS:]))

    @property
    def digest(self) -> str:
        """Equal where two nodes know the same newest files, in place or kept for another; empty where none."""
        best: dict[tuple[str, str], Stamp] = {}
        for item in self.items:
            for inside, stamp in item.files.items():
                key = (item.name, inside)
                best[key] = max(best.get(key, stamp), stamp)
        found = sorted((*key, stamp.mtime_ns, stamp.size) for key, stamp in best.items())
        return hashlib.sha256(repr(found).encode()).hexdigest()[:32] if found else ""

    def document(self) -> list[dict[str, Any]]:
        return [
            {
                "place": item.place,
                "name": item.name,
                "files": {inside: [stamp.mtime_ns, stamp.size] for inside, stamp in item.files.items()},
            }
            for item in self.items
        ]


def read_document(document: object) -> tuple[Item, ...]:
    """What another node says it has.

    Raises:
        NotHere: it is no such list, or names what is no item.
    """
    try:
        found = []
        for entry in document[:MAX_ITEMS]:  # type: ignore[index]
            check_name(entry["name"])
            files = {str(inside): Stamp(int(at), int(size)) for inside, (at, size) in entry["files"].items()}
            found.append(Item(place=str(entry["place"]), name=str(entry["name"]), files=files))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise NotHere(f"not a list of items: {error!r}") from error
    return tuple(found)


def items_in(folder: Path, place: str) -> Iterable[Item]:
    for child in children(folder):
        if child.name == "term" and child.is_file(follow_symlinks=False):
            continue  # a fence
        path = Path(child.path)
        try:
            files = {inside: stamp_of(path / inside if inside else path) for inside in plain_files(path)}
        except (OSError, NotHere):
            continue
        if files:
            yield Item(place=place, name=child.name, files=files)


def children(folder: Path) -> list["os.DirEntry[str]"]:
    """Visible children that are no links."""
    try:
        with os.scandir(folder) as found:
            return [child for child in found if not hidden(child.name) and not child.is_symlink()]
    except OSError:
        return []


def stamp_of(path: Path) -> Stamp:
    found = path.stat()
    return Stamp(found.st_mtime_ns, found.st_size)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One item that this node lacks or has older: who has the newest of each of its files."""

    name: str
    files: Mapping[str, tuple[int, str]]
    """Path inside → node and place."""
    checkpoint: PurePosixPath | None = None
    """The one that all of them belong to, from the checkpoint folder on (`rotation.py`)."""


def lacking(own: Mapping[str, Item], others: Mapping[int, Iterable[Item]]) -> tuple[Wanted, ...]:
    """What this node has to take so that it has the newest of every file that any node has.

    An item that is a file here and a folder there is taken as the newer of both has it.
    """
    found = []
    names = {item.name for items in others.values() for item in items}
    for name in sorted(names):
        best: dict[str, tuple[Stamp, int, str]] = {
            inside: (stamp, -1, "") for inside, stamp in (own[name].files.items() if name in own else ())
        }
        for node, items in sorted(others.items()):
            for item in items:
                if item.name != name:
                    continue
                for inside, stamp in item.files.items():
                    if inside not in best or stamp > best[inside][0]:
                        best[inside] = (stamp, node, item.place)
        if "" in best and len(best) > 1:
            newest = max(best, key=lambda inside: best[inside][0])
            best = {inside: source for inside, source in best.items() if (inside == "") == (newest == "")}
        files = {inside: (node, place) for inside, (_, node, place) in best.items() if node >= 0}
        if files:
            found.append(Wanted(name=name, files=files))
    return tuple(found)
