"""An error of ours ends our part, and never the program.

Why apart: the one place where the instrumentation's own errors are caught. The first one is said once, and from then on
this rank is not measured: its training goes on as without us. The resource's settings are still applied, because all
ranks must build the same buckets, whichever of them is measured.
Must not: catch a refusal (`Refused`), the end that all ranks agreed on (`Stopped`), a lost peer (which ours meets in a
collective of ours and the program would meet in its next one), or what the program's own callbacks raise.
A hook in which ranks meet in a collective is `setting`: a rank that stood aside there would leave the others waiting.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ddpjob_api.page import Slot
from ddpjob_trainer import error_file
from ddpjob_trainer.errors import Refused
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

        # Written out here and below: each training step passes through this a few times.
        @functools.wraps(hook)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T | None:
            if not worker.measured:
                return None
            try:
                return hook(*args, **kwargs)
            except Exception as error:
                if not_ours(error):
                    raise
                self.failed(error)
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
                if not_ours(error):
                    raise
                self.failed(error)
                return None

        return guarded

    def failed(self, error: Exception) -> None:
        """Stand aside from now on, and say so the first time."""
        worker = self._worker
        if not worker.measured:
            return
        worker.measured = False
        # Its steps do not move on the page any more: that is no hang.
        worker.page[Slot.UNMEASURED] = 1
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


def not_ours(error: Exception) -> bool:
    """A refusal, or a lost peer."""
    return isinstance(error, Refused) or error_file.peer_gone(error)
