"""A script's checkpoint folder, made one with those of other nodes; and the copy that a neighbour keeps of it.

Why apart: it is the only place that changes a folder which a script owns. A file that is already there is replaced by
rename, a new item appears whole; nothing of a script's is deleted. Must not: run while a worker here lives (`merge`),
or touch anything outside of `KEPT_FOLDER` while one does (`keep`).
"""

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ddpjob_trainer.checkpoint_writing import sync_directory
from ddpjob_trainer.launcher.peers.channel import Broken
from ddpjob_trainer.launcher.peers.items import KEPT_FOLDER, OWN, NotHere, inside_parts, path_of
from ddpjob_trainer.launcher.peers.rotation import checkpoints_in, in_order, newer_ones
from ddpjob_trainer.launcher.peers.shelf import Cancelled, Shelf
from ddpjob_trainer.launcher.peers.taker import (
    HALF,
    Address,
    NoRoom,
    Source,
    Watch,
    check_room,
    size_of,
)
from ddpjob_trainer.launcher.peers.trees import Item, Stamp, Tree, Wanted, lacking, read_document

QUIET_SECONDS = 3.0
"""An item that has not changed for this long is taken to be finished."""
KEEP_SECONDS = 5.0
"""Between two looks at a neighbour's folder."""


def merge(
    shelf: Shelf, node: int, sources: Sequence[Address], *, token: bytes, watch: Watch
) -> dict[int, str]:
    """Take from the others, and from the copies kept here, whatever is newer; returns which source failed, and why.

    A checkpoint that is gone here stays away where a newer one was here and, with all that others have of it, is whole.

    Raises:
        NoRoom: it cannot be written here, and there is no newer one.
        Cancelled: it is not wanted any more.
    """
    assert shelf.folder is not None
    shelf.folder.mkdir(parents=True, exist_ok=True)
    failed: dict[int, str] = {}
    own = Tree.of(shelf)
    others: dict[int, tuple[Item, ...]] = {node: tuple(item for item in own.items if item.place != OWN)}
    opened: dict[int, Source] = {}
    try:
        for address in sources:
            try:
                opened[address.node] = Source(address, token, watch)
                others[address.node] = read_document(opened[address.node].items())
            except (Broken, NotHere) as error:
                failed[address.node] = str(error)
        mine = {item.name: item for item in own.items if item.place == OWN}
        before = checkpoints_in(mine.values())
        wanted = in_order(
            lacking(mine, {number: items for number, items in others.items() if number not in failed})
        )
        watch.total_bytes = sum(bytes_of(each, others) for each in wanted)
        for each in wanted:
            nodes = {number for number, _ in each.files.values()}
            if nodes & failed.keys():
                continue
            newer = newer_ones(shelf.folder, each.checkpoint, changed(each, others))
            if newer & before and each.checkpoint not in before:
                watch.total_bytes -= bytes_of(each, others)
                continue
            try:
                take_item(shelf, node, each, opened, watch, others)
            except (Broken, NotHere) as error:
                if watch.cancelled:
                    raise Cancelled from error
                failed[watch.source if watch.source is not None else node] = f"{each.name}: {error}"
            except NoRoom as error:
                if not newer:
                    raise
                remove(shelf.folder / f"{each.name}{HALF}")
                watch.left_out.append(f"{each.checkpoint} is not taken, a newer one is here: {error}")
    finally:
        for source in opened.values():
            source.close()
    return failed


def bytes_of(wanted: Wanted, others: dict[int, tuple[Item, ...]]) -> int:
    return sum(stamp.size for stamp in stamps_of(wanted, others))


def changed(wanted: Wanted, others: dict[int, tuple[Item, ...]]) -> float:
    """The second of its newest file."""
    return max(stamp.mtime_ns for stamp in stamps_of(wanted, others)) / 1e9


def stamps_of(wanted: Wanted, others: dict[int, tuple[Item, ...]]) -> list[Stamp]:
    return [
        item.files[inside]
        for inside, (node, place) in wanted.files.items()
        for item in others[node]
        if item.name == wanted.name and item.place == place and inside in item.files
    ]


def take_item(
    shelf: Shelf,
    node: int,
    wanted: Wanted,
    sources: dict[int, Source],
    watch: Watch,
    others: dict[int, tuple[Item, ...]],
) -> None:
    """Bring all files of an item beside it, then all of them into their places.

    Raises:
        NoRoom: they cannot be written here.
    """
    assert shelf.folder is not None
    beside = shelf.folder / f"{wanted.name}{HALF}"
    fetched = {inside: source for inside, source in wanted.files.items() if source[0] != node}
    try:
        tidy(beside, wanted.files)
        there = sum(size_of(beside.joinpath(*inside_parts(inside))) for inside in fetched)
        check_room(shelf.folder, bytes_of(replace(wanted, files=fetched), others) - there, wanted.name)
        for inside, (number, place) in wanted.files.items():
            path = beside.joinpath(*inside_parts(inside))
            if number == node:
                watch.source = None
                copy_of(path_of(shelf, place, wanted.name).joinpath(*inside_parts(inside)), path)
                continue
            source = sources[number]
            watch.source = number
            source.awaited()
            source.fetch(place, wanted.name, inside, source.entry(place, wanted.name, inside), path)
        into_place(beside, shelf.folder / wanted.name)
        sync_directory(shelf.folder)
    except Broken:  # an OSError, too, and no matter of this disk
        raise
    except OSError as error:
        raise NoRoom(f"{wanted.name} cannot be written: {error.strerror or error}") from error


def tidy(item: Path, wanted: Collection[str]) -> None:
    """Delete what is not wanted of an item that is ours: kept, or left beside by an earlier try."""
    if item.is_file() and "" not in wanted:
        item.unlink()
    for folder, _, names in os.walk(item, topdown=False):
        for name in names:
            path = Path(folder, name)
            if path.relative_to(item).as_posix() not in wanted:
                path.unlink()
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # an empty one is no checkpoint


def remove(path: Path) -> None:
    """Whatever it is; also nothing."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def copy_of(kept: Path, path: Path) -> None:
    """A copy of the kept file, time of change included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        os.link(kept, path)
        return
    shutil.copy2(kept, path)


def into_place(beside: Path, final: Path) -> None:
    """Rename what is complete: as a whole where nothing was, else file by file."""
    if final.is_symlink() or (final.exists() and (final.is_dir() != beside.is_dir())):
        if final.is_dir() and not final.is_symlink():
            shutil.rmtree(final)
        else:
            final.unlink()
    if not final.is_dir():
        beside.replace(final)
        return
    for folder, below, names in os.walk(beside):
        below.sort()  # on each node alike
        there = final / Path(folder).relative_to(beside)
        there.mkdir(parents=True, exist_ok=True)
        for name in names:
            Path(folder, name).replace(there / name)
        sync_directory(there)
    shutil.rmtree(beside, ignore_errors=True)


def keep_copies(shelf: Shelf, neighbour: Address, *, token: bytes, watch: Watch) -> None:
    """Follow a neighbour's folder until cancelled: what is quiet is copied, what he deleted is deleted.

    A neighbour who does not answer is asked again; its loss is somebody else's to notice.
    """
    seen: dict[str, object] = {}
    while not watch.wait(KEEP_SECONDS):
        with contextlib.suppress(Broken, NotHere, NoRoom, Cancelled, OSError):
            source = Source(neighbour, token, watch)
            try:
                items = [item for item in read_document(source.items()) if item.place == OWN]
                quiet = [item for item in items if seen.get(item.name) == item.files]
                seen = {item.name: item.files for item in items}
                keep(shelf, neighbour.node, source, quiet, names={item.name for item in items})
            finally:
                source.close()


def keep(shelf: Shelf, neighbour: int, source: Source, items: Iterable[Item], *, names: set[str]) -> None:
    """One pass: bring the copies kept for a neighbour up to date, without what lies here anyway."""
    assert shelf.folder is not None
    folder = shelf.folder / KEPT_FOLDER / f"for-{neighbour}"
    folder.mkdir(parents=True, exist_ok=True)
    have = Tree.of(shelf)
    own = {item.name: item for item in have.items if item.place == OWN}
    kept = {item.name: item for item in have.items if item.place == folder.name}
    for item in items:
        new = [
            inside
            for inside, stamp in item.files.items()
            if not any(
                item.name in tree and tree[item.name].files.get(inside) == stamp for tree in (own, kept)
            )
        ]
        if new:
            check_room(folder, 2 * sum(item.files[inside].size for inside in new), item.name)
            beside = folder / f"{item.name}{HALF}"
            tidy(beside, new)
            for inside in new:
                path = beside.joinpath(*inside_parts(inside))
                source.fetch(OWN, item.name, inside, source.entry(OWN, item.name, inside), path)
            into_place(beside, folder / item.name)
        tidy(folder / item.name, item.files)
    for name in kept.keys() - names:
        remove(folder / name)
