"""A script's checkpoints as the job sees them: where they go, which one it goes on from, what is said about them.

Why apart: Hugging Face, Lightning, Accelerate and plain scripts have one directory, one rule about the newest complete
checkpoint, and one warning when a later generation begins anew.
Must not: decide what a checkpoint holds, or load one.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Phase, Slot
from ddpjob_api.spec import Checkpoint, Overrides
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.script_checkpoints import Found, trainer_checkpoints
from ddpjob_trainer.worker import Worker


class Saving:
    """What `spec.checkpoint` means to a script."""

    def __init__(self, worker: Worker, notices: Notices, clock: Clock) -> None:
        self._worker = worker
        self._notices = notices
        self.clock = clock
        script = worker.task is None
        self.spec: Checkpoint | None = worker.checkpoint if script else None
        applied = worker.settings.overrides is Overrides.APPLY
        self.directory: Path | None = worker.checkpoint_dir if self.spec is not None and applied else None
        """Where a framework's checkpoints go; None where they stay where the program puts them."""

        self._went_on = False
        self._given: set[Path] = set()

    @property
    def resume(self) -> str:
        """What the program was offered: the newest complete checkpoint when it began, or nothing."""
        return os.environ.get(WorkerEnv.RESUME, "")

    def redirected(self, asked: str) -> str:
        """Where a framework's output goes instead of `asked`: a folder of that name in the job's directory."""
        if self.directory is None:
            return asked
        path = Path(asked).expanduser()
        if self.directory in (path.absolute(), *path.absolute().parents):
            return asked
        return str(self.directory / (path.name or "output"))

    def newest_of_trainer(self, output: Path) -> Path | None:
        """The newest checkpoint of Hugging Face's Trainer that every rank finds complete; once per directory.

        The ranks agree in one collective: a rank that went on from another step would train something else.
        """
        if output in self._given:
            return None
        self._given.add(output)
        found = {each.step: each for each in trainer_checkpoints(output)}
        whole = sorted(step for step, each in found.items() if each.problem is None)
        common = set(whole)
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            lists: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(lists, whole)
            common = common.intersection(*map(set, lists))
        chosen = max(common, default=None)
        self._say_damaged([each for step, each in found.items() if chosen is None or step > chosen])
        return found[chosen].path if chosen is not None else None

    def _say_damaged(self, passed_over: list[Found]) -> None:
        for each in passed_over:
            reason = each.problem or "another rank does not have it"
            self._notices.warn(f"checkpoint {each.path} is passed over: {reason}")

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """A phase with a budget of its own: saving, loading, evaluating."""
        if not self._worker.live:
            yield
            return
        self.clock.enter(phase)
        try:
            yield
        finally:
            self.clock.leave()

    def saved(self, step: int) -> None:
        """A checkpoint of this step is on disk."""
        page = self._worker.page
        page[Slot.CHECKPOINT_STEP] = step
        page[Slot.CHECKPOINTS] += 1
        page[Slot.CHECKPOINT_AT] = time.time()

    def went_on(self, step: int | None = None) -> None:
        """The program loaded a checkpoint; `step` where its framework says which step it is at."""
        self._went_on = True
        if step is not None:
            page = self._worker.page
            page[Slot.STEP] = page[Slot.RESUMED_STEP] = step

    def loaded(self, source: object) -> None:
        """The program read a file; one in the job's directory counts as going on."""
        name = getattr(source, "name", source)
        if self._worker.checkpoint_dir is None or not isinstance(name, (str, os.PathLike)):
            return
        if self._worker.checkpoint_dir in Path(name).absolute().parents:
            self._went_on = True

    def first_step(self) -> None:
        """Training runs; say so where it began anew although it is not the first time."""
        if self.spec is None or self._went_on or self._worker.generation <= 1:
            return
        if self.resume:
            advice = (
                f"a complete checkpoint is there: {self.resume}; let the program load what the environment variable "
                f"{WorkerEnv.RESUME} names"
            )
        else:
            advice = (
                f"no complete checkpoint is in {self._worker.checkpoint_dir}; save there more often (checkpoint.everySteps "
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
