"""A script's checkpoints as the job sees them: where they go, which one it goes on from, what is said about them.

Why apart: Hugging Face, Lightning, Accelerate and plain scripts have one directory, one rule about the newest complete
checkpoint, and one warning when a later generation begins anew.
Must not: decide what a checkpoint holds, or load one.
"""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Phase, Slot
from ddpjob_api.spec import Checkpoint, Overrides
from ddpjob_trainer.instrumentation.clock import Clock, monotonic
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.script_checkpoints import Found, Layout, find, trainer_checkpoints
from ddpjob_trainer.worker import Worker


class Saving:
    """What `spec.checkpoint` means to a script."""

    def __init__(self, worker: Worker, notices: Notices, clock: Clock, guard: Guard) -> None:
        self._worker = worker
        self._notices = notices
        self.clock = clock
        self.guard = guard
        self._enter, self._leave = guard.measuring(clock.enter), guard.measuring(clock.leave)
        script = worker.task is None
        self.spec: Checkpoint | None = worker.checkpoint if script else None
        applied = worker.settings.overrides is Overrides.APPLY
        self.directory: Path | None = worker.checkpoint_dir if self.spec is not None and applied else None
        """Where a framework's checkpoints go; None where they stay where the program puts them."""

        self.decided = False
        """Whether it went on is known: it did, or its first step is done."""

        self.when_decided: list[Callable[[], None]] = []
        self._went_on = False
        self._looks = False
        """What is read now is read by us."""

        self._owners: dict[Path, object] = {}
        """Folders in the job's directory, and whose they are: a path the program asked for, or a training."""
        self._folders: dict[Path, list[Path]] = {}
        """Where each training of Hugging Face's Trainer with that output directory saves."""
        self.fits = 0
        """Lightning's trainings so far."""
        self._given = 0
        """The `fit` that has had its newest checkpoint."""
        self.before = 0
        """Steps of the trainings before this one; frameworks count each of theirs from 0."""

    @property
    def later(self) -> bool:
        """Whether this is not the first time that the job's program runs."""
        return self._worker.generation > 1

    @property
    def resume(self) -> str:
        """What the program was offered: the newest complete checkpoint when it began, or nothing."""
        return os.environ.get(WorkerEnv.RESUME, "")

    def redirected(self, asked: str) -> str:
        """Where a framework's output goes instead of `asked`: a folder of that name in the job's directory.

        A second path of the same name gets a number: two trainings in one folder would go on from each other's.
        """
        if self.directory is None:
            return asked
        path = Path(asked).expanduser()
        if self.directory in (path.absolute(), *path.absolute().parents):
            return asked
        return str(self._place(self.directory / (path.name or "output"), path.absolute()))

    def _place(self, folder: Path, owner: object) -> Path:
        """The first of `folder`, `folder-2` … that is the owner's, or nobody's."""
        names = itertools.chain(
            [folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))
        )
        return next(each for each in names if self._owners.setdefault(each, owner) == owner)

    def begins(self, step: int = 0) -> None:
        """A framework's training begins, whose own count of steps is at `step`."""
        self.before = int(self._worker.page[Slot.STEP]) - step

    def folders(self, output: Path) -> list[Path]:
        """A training of Hugging Face's Trainer begins: where those with this output directory save, this one last.

        The first saves there, each later one beside it. A program begins its trainings in the same order in each
        generation, so each finds its own, and goes on from its end where it had come to it.
        """
        folders = self._folders.setdefault(output, [])
        number = len(folders) + 1
        if number == 1:
            self._owners.setdefault(output, output)
            folders.append(output)
        else:
            beside = output / "training" if output == self.directory else output
            folders.append(self._place(beside, (output, number)))
        return folders

    def newest_of_trainer(self, output: Path, *, only_model: bool = False) -> Path | None:
        """The newest checkpoint of Hugging Face's Trainer that every rank finds complete.

        `only_model`: the program saves it without the optimizer.
        """
        return self._newest(lambda: trainer_checkpoints(output, only_model=only_model))

    def newest_of_lightning(self) -> Path | None:
        """The newest checkpoint of Lightning's that this `fit` saved in an earlier generation, complete on every rank; once."""
        if self.directory is None or self._given == self.fits:
            return None
        directory, training = self.directory, self.fits
        self._given = training

        def look() -> tuple[Found, ...]:
            found = [each for each in find(directory) if each.layout is Layout.LIGHTNING]
            own = tuple(each for each in found if each.training == training)
            if later := {each.training for each in found if each.training > training}:
                self._worker.say(
                    f"fit number {training} of this run goes on from what the first run's saved as such, and {directory} "
                    f"has checkpoints of fit {max(later)}, too: a program that skips a fit which it knows to be done "
                    "gets another one's checkpoint, so let it call each fit in each run; one that is done makes no step"
                )
            return own

        return self._newest(look)

    def _newest(self, look: Callable[[], tuple[Found, ...]]) -> Path | None:
        """The last of what is found that is complete on every rank, in the order of rank 0.

        The ranks agree in one collective: a rank that went on from another step would train something else.
        """
        found: tuple[Found, ...] = ()
        failure: Exception | None = None
        self._looks = True
        try:
            found = look()
        except Exception as error:
            failure = error  # the others must not wait for this rank, nor go on without it
        self._looks = False
        whole = [str(each.path) for each in found if each.problem is None]
        lists: list[Any] = [whole]
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            lists = [None] * distributed.get_world_size()
            distributed.all_gather_object(lists, whole)
        if failure is not None:
            raise failure
        common = set(lists[0]).intersection(*lists)
        chosen = next((path for path in reversed(lists[0]) if path in common), None)
        paths = [str(each.path) for each in found]
        self._say_damaged(list(found[paths.index(chosen) + 1 :] if chosen is not None else found))
        return Path(chosen) if chosen is not None else None

    def _say_damaged(self, passed_over: list[Found]) -> None:
        for each in passed_over:
            reason = each.problem or "another rank does not have it"
            self._notices.warn(f"checkpoint {each.path} is passed over: {reason}")

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A phase with a budget of its own: saving, loading, evaluating."""
        self._enter(phase)
        began = monotonic()
        try:
            yield
        finally:
            self._leave()
        if phase is Phase.CHECKPOINT:
            self.wrote(monotonic() - began)

    def wrote(self, seconds: float) -> None:
        """A checkpoint is written, and this rank took so long for it."""
        if self._worker.live:
            self._worker.page[Slot.CHECKPOINT_DURATION_SECONDS] = seconds

    def saved(self, step: int) -> None:
        """A checkpoint of this step of the training is on disk."""
        page = self._worker.page
        page[Slot.CHECKPOINT_STEP] = self.before + step
        page[Slot.CHECKPOINTS] += 1
        page[Slot.CHECKPOINT_AT] = time.time()

    def went_on(self, step: int | None = None) -> None:
        """The program loaded a checkpoint; `step` where its framework says which step it is at."""
        self._went_on = True
        self._decide()
        if step is not None:
            page = self._worker.page
            page[Slot.STEP] = page[Slot.RESUMED_STEP] = self.before + step

    def _decide(self) -> None:
        self.decided = True
        callbacks, self.when_decided = self.when_decided, []
        for callback in callbacks:
            callback()

    def loaded(self, source: object) -> None:
        """The program reads a file; one in the job's directory counts as going on."""
        directory = self._worker.checkpoint_dir
        if (
            directory is None
            or self.decided
            or self._looks
            or not isinstance(source, (str, bytes, os.PathLike))
        ):
            return
        path = Path(os.fsdecode(source)).absolute()
        if directory in path.parents and path.is_file():
            self.went_on()

    def first_step(self) -> None:
        """Training runs; say so where it began anew although it is not the first time.

        Rank 0 speaks for all: a program may well load there and hand the weights to the others.
        """
        self._decide()
        if self.spec is None or self._went_on or not self.later or self._worker.rank:
            return
        if self.resume:
            advice = (
                f"a complete checkpoint is there: {self.resume}; let the program load what the environment variable "
                f"{WorkerEnv.RESUME} names"
            )
        else:
            directory = self._worker.checkpoint_dir
            damaged = [each for each in find(directory) if each.problem] if directory is not None else []
            newest = f" (the newest, {damaged[-1].path.name}: {damaged[-1].problem})" if damaged else ""
            advice = (
                f"no complete checkpoint is in {directory}{newest}; save there more often (checkpoint.everySteps "
                f"does it for Hugging Face's Trainer and Lightning; others find the folder in {WorkerEnv.CHECKPOINT_DIR})"
            )
        self._notices.not_resuming(f"generation {self._worker.generation} began again at step 0: {advice}")

    def stop_if_asked(self) -> None:
        """After a framework's loop has ended: end the process where that was the job's wish.

        Raises:
            Stopped: all ranks stop here.
        """
        if self.clock.stop_requested:
            self.clock.stop()
