"""Older checkpoints of a script that nobody waits for: its framework has deleted them here, or there is no room for them.

Why apart: a framework that keeps the last few deletes on the node of rank 0 only. Folders made one would bring all of
that back with each restart, until a node is full.
Must not: give up one without a newer one, of a higher number and written later, that lies here whole.
"""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ddpjob_trainer.checkpoint_folders import of_accelerate, of_trainer
from ddpjob_trainer.launcher.peers.trees import Item, Wanted
from ddpjob_trainer.script_checkpoints import FOLDER, modified


def checkpoint_of(name: str, inside: str) -> PurePosixPath | None:
    """The folder `checkpoint-<number>` that a file of an item lies in."""
    return next((each for each in PurePosixPath(name, inside).parents if FOLDER.match(each.name)), None)


def checkpoints_in(items: Iterable[Item]) -> set[PurePosixPath]:
    found = {checkpoint_of(item.name, inside) for item in items for inside in item.files}
    return {each for each in found if each is not None}


def number_of(checkpoint: PurePosixPath) -> int:
    found = FOLDER.match(checkpoint.name)
    assert found is not None
    return int(found[1])


def in_order(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Each checkpoint by itself, the newest first; then what belongs to none."""
    apart: dict[tuple[str, PurePosixPath | None], dict[str, tuple[int, str]]] = {}
    for each in wanted:
        for inside, source in each.files.items():
            apart.setdefault((each.name, checkpoint_of(each.name, inside)), {})[inside] = source
    found = [Wanted(name=name, files=files, checkpoint=where) for (name, where), files in apart.items()]
    return sorted(found, key=lambda each: -number_of(each.checkpoint) if each.checkpoint else 1)


def newer_ones(folder: Path, checkpoint: PurePosixPath | None, changed: float) -> set[PurePosixPath]:
    """Those beside a checkpoint of that time that are newer than it, and whole; what is none has none."""
    if checkpoint is None:
        return set()
    number, found = number_of(checkpoint), set()
    for path in (folder / checkpoint).parent.glob("checkpoint-*"):
        beside = checkpoint.with_name(path.name)
        if (
            FOLDER.match(path.name)
            and number_of(beside) > number
            and modified(path) > changed
            and is_whole(path)
        ):
            found.add(beside)
    return found


def is_whole(path: Path) -> bool:
    """Whether the framework says so of its own; of a program's own layout nobody can."""
    return None in (of_trainer(path, number_of(PurePosixPath(path))), of_accelerate(path))
