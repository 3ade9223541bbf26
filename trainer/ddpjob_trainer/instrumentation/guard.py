"""An error of ours ends our part, and never the program.

Why apart: the one place where the instrumentation's own errors are caught. The first one is said once, and from then on
this rank is not measured: its training goes on as without us. The resource's settings are still applied, because all
ranks must build the same buckets, whichever of them is measured.
Must not: catch a refusal (`Refused`, `DeviceGone`), the end that all ranks agreed on (`Stopped`), a lost peer (which
ours meets in a collective of ours and the program would meet in its next one), or what the program's callbacks raise.
A hook in which ranks meet in a collective is `setting`: a rank that stood aside there would leave the others waiting.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ddpjob_api.page import Phase, Slot
from ddpjob_trainer import error_file
from ddpjob_trainer.errors import DeviceGone, Refused
from ddpjob_trainer.instrumentation import where
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")


class Guard:
    """Makes hooks of ours that cannot hurt; each returns None once it stands aside."""

    def __init__(self, worker: Worker, notices: Notices) -> None:
        self._worker = worker
        self._notices = notices

    def measuring(self, hook: Callable[P, T]) -> Callable[P, T | None]:
        """`hook`, until a part of ours has failed."""
        worker = self._worker

        # Written out here and below, and once more in what every training step passes (`ours`): a call less.
        @functools.wraps(hook)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
            if not worker.measured:
                return None
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                if not self.ours(error):
                    raise
                return None

        return guarded

    def setting(self, hook: Callable[P, T]) -> Callable[P, T | None]:
        """`hook`, also after a part of ours has failed; None where it fails itself, and the script's own values stand."""
        worker = self._worker

        @functools.wraps(hook)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
            if not worker.live:
                return None
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                if not self.ours(error):
                    raise
                return None

        return guarded

    def ours(self, error: Exception) -> bool:
        """Stand aside from now on, and say so the first time; False where a refusal or the group's failure is to be raised."""
        if isinstance(error, (Refused, DeviceGone)) or error_file.group_failed(error):
            return False
        if self._worker.measured:
            self._stand_aside(error)
        return True

    def _stand_aside(self, error: Exception) -> None:
        worker = self._worker
        worker.measured = False
        # Its steps do not move on the page any more: that is no hang.
        worker.page[Slot.UNMEASURED] = 1
        if not worker.steps_owned:
            worker.page[Slot.PHASE] = Phase.BETWEEN  # it would stand for ever
        said = f"{type(error).__name__}: {error} ({where.innermost(error.__traceback__)})"
        # Publishing it may fail in the same way; then the line in the log is all there is.
        sentence = (
            f"rank {worker.rank} is not measured any more, and its training goes on: the instrumentation failed with "
            f"{said}; this is a fault of DDPJob, please report it"
        )
        if worker.local_rank:
            worker.speak(f"warning: {sentence}")
        with contextlib.suppress(Exception):
            self._notices.warn(sentence)
