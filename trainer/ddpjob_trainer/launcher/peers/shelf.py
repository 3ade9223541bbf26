"""The steps that lie on this node: where they may lie, which are whole, and how those go that were given up.

Why apart: what a coordinator hears of a node's steps, and what it orders to be done with them, is about the same folders.
What a node gives to others, of a step or of a script's files, is `items.py`.
Must not: open a connection, or decide which step is the right one.
"""

import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from ddpjob_trainer.checkpoints import (
    complete_steps,
    is_usable,
    lost_part,
    named_steps,
    open_step,
    set_aside,
    step_path,
    usable_steps,
)
from ddpjob_trainer.errors import CheckpointDamaged

UNUSED = "unused"
"""What the name of a step ends with that could not be read when it was needed."""


class Cancelled(Exception):
    """The coordinator has decided otherwise meanwhile."""


def readable_steps(place: Path) -> tuple[int, ...]:
    """Its complete steps; none where the folder cannot be listed."""
    try:
        return complete_steps(place)
    except OSError:
        return ()


def inode(path: Path) -> int | None:
    """Which folder has that name now."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def delete(aside: Path) -> str:
    """Delete what was set aside; what is left of it, in words."""
    try:
        shutil.rmtree(aside)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)  # the rest of it
        if inode(aside) is not None:
            return (
                f"checkpoint {aside} cannot be deleted ({error.strerror or error}): it is not used, and takes room until you "
                "delete it"
            )
    return ""


def stays(path: Path, error: OSError) -> str:
    """What is to be said of a step that was given up and keeps its name."""
    return (
        f"checkpoint {path} is not what the training goes on from and cannot be taken away ({error.strerror or error}): it is "
        "not used, and none of that step can take its place; delete it before the job is started again"
    )


def ignore(_count: int) -> None:
    """Nobody watches."""


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """The folders of one node."""

    folder: Path | None
    """The checkpoint folder; None: the job has none."""
    memory: Path | None = None
    """Copies of steps in memory; None: there are none."""
    shared: bool = False
    """Whether all nodes see the same checkpoint folder."""
    by_step: bool = True
    """A task's steps; else a script's files."""
    left: dict[Path, int] = field(default_factory=dict, compare=False)
    """Steps of a history that was given up which stay all the same, and the inode of each: not here to go on from."""

    def steps(self) -> tuple[int, ...]:
        """Steps of the complete checkpoints and of another version's, ascending; `verify` checks hashes and refuses those."""
        places = self.places()
        return tuple(
            sorted({step for each in places for step in usable_steps(each) if self.counts(each, step)})
        )

    def named(self) -> frozenset[int]:
        """Steps that are here, whether or not they can be read."""
        return frozenset(
            step for place in self.places() for step in named_steps(place) if self.counts(place, step)
        )

    def counts(self, place: Path, step: int) -> bool:
        """Whether a step is not one that is `left`; one that was written anew since is another folder."""
        path = step_path(place, step)
        return path not in self.left or inode(path) != self.left[path]

    def places(self) -> tuple[Path, ...]:
        """Where steps may lie, the fastest first."""
        return tuple(place for place in (self.memory, self.folder) if place is not None)

    def target(self) -> Path | None:
        """Where a step that was fetched is put: a shared folder belongs to its one writer."""
        return self.memory if self.shared else self.folder

    def holder(self, step: int) -> Path | None:
        """The folder that has a step; the others are not looked at, which takes long on a slow volume."""
        return next(
            (each for each in self.places() if is_usable(step_path(each, step)) and self.counts(each, step)),
            None,
        )

    def verify(
        self,
        step: int,
        on_bytes: Callable[[int], None] = ignore,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Compare a step with its hashes wherever it lies; returns what was damaged, which is set aside.

        What cannot be read in a folder of this node's is set aside too, and another node's copy may be taken.

        Raises:
            Cancelled: it is not asked for any more.
            OtherFormat: another version of DDPJob wrote it.
            OSError: it cannot be read here in the shared folder, where others may well read it.
        """
        problems: list[str] = []

        def count(read: int) -> None:
            if cancelled():
                raise Cancelled
            on_bytes(read)

        while (place := self.holder(step)) is not None:
            try:
                open_step(place, step, on_bytes=count)
            except CheckpointDamaged as error:
                problems.append(str(error))
            except OSError as error:
                if self.shared and place == self.folder:
                    raise
                aside = set_aside(step_path(place, step))
                problems.append(
                    f"checkpoint {error.filename} cannot be read ({error.strerror}); it is now {aside.name}"
                )
            else:
                break
        return problems

    def torn(self, above: int) -> list[str]:
        """What is wrong with newer steps that have lost a part since they were written; nobody goes on from them.

        They are set aside, but not in a shared folder, which belongs to its one writer.
        """
        problems: list[str] = []
        for place in self.places():
            for step in named_steps(place):
                path = step_path(place, step)
                was = inode(path)
                if step <= above or was is None or (lost := lost_part(path)) is None or inode(path) != was:
                    continue  # nothing is to be said of one that its writer takes away, or has written anew meanwhile
                problem = f"checkpoint {path} is damaged ({lost})"
                if not (self.shared and place == self.folder):
                    try:
                        problem += f"; it is now {set_aside(path).name}"
                    except OSError as error:  # those before it are renamed, and must be told
                        problem += f"; it cannot be set aside ({error.strerror or error})"
                problems.append(f"{problem} and will not be used")
        return problems

    def drop_above(self, step: int) -> tuple[tuple[int, ...], list[str]]:
        """Delete newer steps, which are of a history that nobody can go on with.

        Returns those that are gone, and in words what is not.
        """
        dropped, problems = set[int](), list[str]()
        for place in self.places():
            if self.shared and place == self.folder:
                continue  # its one writer overwrites them
            for newer in readable_steps(place):
                if newer <= step:
                    continue
                try:
                    aside = self._taken_away(step_path(place, newer))
                except OSError as error:  # the others go all the same
                    problems.append(stays(step_path(place, newer), error))
                    continue
                if problem := delete(aside):
                    problems.append(problem)
                else:
                    dropped.add(newer)
        return tuple(sorted(dropped)), problems

    def put_away(self, steps: Collection[int]) -> tuple[tuple[int, ...], list[str]]:
        """Rename to `step-….unused` what is whole of these steps; returns which that are, and in words what stays.

        They were not known when it was decided what the training goes on from, and a later step of the same number
        would be another one on every other node.
        """
        renamed, problems = list[int](), list[str]()
        if self.folder is not None and not self.shared:
            for step in sorted(set(readable_steps(self.folder)) & set(steps)):
                try:
                    self._taken_away(step_path(self.folder, step), UNUSED)
                    renamed.append(step)
                except OSError as error:
                    problems.append(stays(step_path(self.folder, step), error))
        return tuple(renamed), problems

    def _taken_away(self, path: Path, *why: str) -> Path:
        """Rename a step of a history that was given up; where it cannot be, it does not count any more.

        The training will have another step of that number: nodes that went on from one each would not be equal.

        Raises:
            OSError: it cannot be renamed.
        """
        was = inode(path)
        try:
            aside = set_aside(path, *why)
        except OSError:
            if was is not None:
                self.left[path] = was
            raise
        self.left.pop(path, None)
        return aside
