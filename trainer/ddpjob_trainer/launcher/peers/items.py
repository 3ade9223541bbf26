"""What a node gives to others: the items of its folders, and the files of each.

Why apart: giver, taker and the list of a script's files speak of the same things. An item is a child of a folder: a
step's folder with its manifest, or a file or folder of a script, whose manifest is made here. A path that another node
names is used only if it is one of the manifest's.
Must not: open a connection, write, or decide which item is the right one.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ddpjob_trainer.checkpoint_folders import METADATA
from ddpjob_trainer.checkpoints import MANIFEST, READ_BYTES, read_manifest
from ddpjob_trainer.launcher.peers.shelf import Shelf, ignore

MAX_FILES = 20_000
"""Of one item."""
OWN = "own"
"""The place of this node's own items; a copy that it keeps for node 3 is in place `for-3`."""
KEPT_FOLDER = ".ddpjob-kept"
"""In the checkpoint folder: copies kept for other nodes."""


class NotHere(LookupError):
    """An item or file is not on this node, or is not whole; the message says which."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file of an item."""

    size: int
    sha256: str
    mtime_ns: int


Files = Mapping[str, Entry]
"""By path inside the item, with `/`; the one file of an item that is a file itself is called `""`."""


def manifest_of(
    shelf: Shelf, place: str, name: str, on_bytes: Callable[[int], None] = ignore
) -> dict[str, Entry]:
    """The files of an item, with sizes and hashes.

    Raises:
        NotHere: there is no such item, or it is not whole.
    """
    path = path_of(shelf, place, name)
    if not shelf.by_step:
        return computed(path, on_bytes)
    try:
        manifest = read_manifest(path)
        files = {
            file: Entry(size=entry.size_bytes, sha256=entry.sha256, mtime_ns=(path / file).stat().st_mtime_ns)
            for file, entry in manifest.files.items()
        }
        return files | {MANIFEST: entry_of(path / MANIFEST)}
    except (OSError, ValueError) as error:
        raise NotHere(f"{name} is not whole: {error}") from error


def open_file(shelf: Shelf, place: str, name: str, inside: str) -> int:
    """A descriptor of one file of an item.

    Raises:
        NotHere: it is not there, or no plain file of that item.
    """
    path = path_of(shelf, place, name)
    try:
        for part in inside_parts(inside):
            if stat.S_ISLNK(path.lstat().st_mode):
                raise NotHere(f"{name}/{inside} leads out of the item")
            path = path / part
        # Without O_NONBLOCK a named pipe would be waited on.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise NotHere(f"{name}/{inside}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotHere(f"{name}/{inside} is no plain file")
    return descriptor


def path_of(shelf: Shelf, place: str, name: str) -> Path:
    """The path of an item that is there.

    Raises:
        NotHere: it is not, or its name is none.
    """
    check_name(name)
    for folder in shelf.places() if place == OWN else kept_in(shelf, place):
        path = folder / name
        if path.exists() and not path.is_symlink():
            return path
    raise NotHere(f"{name} is not here")


def kept_in(shelf: Shelf, place: str) -> tuple[Path, ...]:
    """The folder of the copies kept for another node."""
    number = place.removeprefix("for-")
    if shelf.folder is None or not (number.isascii() and number.isdecimal()):
        raise NotHere(f"{place[:32]!r} is no place")
    return (shelf.folder / KEPT_FOLDER / f"for-{int(number)}",)


def check_name(name: str) -> None:
    """Raises:
    NotHere: it is no name of a visible child.
    """
    if not name or name.startswith(".") or "/" in name or "\0" in name or len(os.fsencode(name)) > 255:
        raise NotHere(f"{name[:64]!r} is no name of an item")


def inside_parts(inside: str) -> list[str]:
    """The parts of a path inside an item; none for the item itself.

    Raises:
        NotHere: it leads elsewhere.
    """
    if not inside:
        return []
    parts = inside.split("/")
    if len(inside) > 4096 or any(
        part in {"", ".", ".."} or "\0" in part or len(os.fsencode(part)) > 255 for part in parts
    ):
        raise NotHere(f"{inside[:64]!r} is no path inside an item")
    return parts


def computed(path: Path, on_bytes: Callable[[int], None] = ignore) -> dict[str, Entry]:
    """The manifest of what has none.

    Raises:
        NotHere: it is no file or folder, went away meanwhile, or has too many files.
    """
    try:
        return {inside: entry_of(path / inside if inside else path, on_bytes) for inside in plain_files(path)}
    except OSError as error:
        raise NotHere(f"{path.name}: {error.strerror}") from error


def plain_files(path: Path) -> Iterator[str]:
    """The files of an item, without links and what is only half written; shards are nothing without their metadata."""
    if path.is_file():
        yield ""
        return
    count = 0
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(name for name in folders if not hidden(name))
        for name in sorted(names):
            found = Path(folder, name)
            if (hidden(name) and name != METADATA) or not stat.S_ISREG(found.lstat().st_mode):
                continue
            count += 1
            if count > MAX_FILES:
                raise NotHere(f"{path.name} has more than {MAX_FILES} files")
            yield found.relative_to(path).as_posix()


def hidden(name: str) -> bool:
    """What is no item: dot files, what is being written, what was set aside."""
    return name.startswith(".") or ".tmp-" in name or name.endswith((".tmp", ".damaged"))


def entry_of(path: Path, on_bytes: Callable[[int], None] = ignore) -> Entry:
    """Read it all; `on_bytes` hears of every part, which may be long after the one before."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
            on_bytes(len(chunk))
        found = os.fstat(stream.fileno())
    return Entry(size=found.st_size, sha256=digest.hexdigest(), mtime_ns=found.st_mtime_ns)
