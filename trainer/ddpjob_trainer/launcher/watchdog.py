"""Whether a rank has stopped making steps, by its page alone.

Why apart: what counts as no progress (`recovery.progressTimeoutSeconds`) is one rule for every phase, and it must not
depend on the worker, which may be stopped or stuck in the kernel. A rank that saves or evaluates alone holds the others
up, in a barrier or in their next step, so who is not behind it may wait as long as it may take.
Must not: blame a rank (`culprit.py`): all ranks stand still when one does.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ddpjob_api.page import PATIENCE, PATIENT, Phase, Slot, WorkerState
from ddpjob_trainer.page import Page


@dataclass
class Seen:
    """The newest look at a rank at which something had moved."""

    mark: tuple[int, int, bool]
    since: float


class Watchdog:
    """Follows the pages of one crew."""

    def __init__(self, limit_seconds: float) -> None:
        """`limit_seconds`: 0 never finds anything."""
        self._limit = limit_seconds
        self._seen: dict[int, Seen] = {}

    def overdue(self, pages: dict[int, Page], now: float, elsewhere: int | None = None) -> float | None:
        """For how many seconds a rank has made no progress, if that is longer than it may.

        Args:
            pages: by rank.
            now: of the monotonic clock.
            elsewhere: `patient_step` of the whole job, as far as this launcher was told.
        """
        if not any(shown(page) for page in pages.values()):
            return None
        here = patient_step(pages.values(), now, self._limit)
        steps = [step for step in (here, elsewhere) if step is not None]
        # A rank that has ended, and comes again below a torchrun that restarts it, has a clock of its own.
        self._seen = {rank: seen for rank, seen in self._seen.items() if rank in pages}
        found: list[float] = []
        for rank, page in pages.items():
            if page[Slot.UNMEASURED]:
                continue  # its steps are not counted any more; its peers' are
            patient = allowed_to_wait(page) or any(page[Slot.STEP] >= step for step in steps)
            mark = (int(page[Slot.PID]), int(page[Slot.GENERATION_STEPS]), patient)
            seen = self._seen.get(rank)
            if seen is None or seen.mark != mark or page[Slot.PHASE] == Phase.PAUSED:
                self._seen[rank] = Seen(mark, now)
                continue
            idle = now - seen.since
            if self._limit and idle >= self._limit * (PATIENCE if patient else 1):
                found.append(idle)
        return max(found, default=None)


SHOWN = (Slot.TORCH_IMPORT_AT, Slot.TORCH_IMPORTED_AT, Slot.GENERATION_STEPS)
"""An import of torch that does not end (a file system that hangs) is a hang, too; the second where nobody saw it begin."""


def shown(page: Page) -> bool:
    """Whether a rank may be seen to make steps: not where the program trains in a child, or after an exec."""
    return any(page[slot] > 0 for slot in SHOWN)


IN_A_STEP = frozenset({Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER})


def waits(pages: Iterable[Page], now: float) -> float:
    """For how many seconds a rank has been in the same part of a step, where it may wait for the others.

    Between steps it may do anything for long: rank 0 often saves and evaluates alone when the others have ended.
    """
    return max(
        (now - page[Slot.PHASE_SINCE] for page in pages if int(page[Slot.PHASE]) in IN_A_STEP), default=0.0
    )


def patient_step(pages: Iterable[Page], now: float, limit: float) -> int | None:
    """The step at which a rank saves, evaluates or loads, the first of several; None where none does.

    A plain loop says that it evaluates with each forward pass of it, and never that it is over, so it has evaluated only
    until `limit` seconds after the last one.
    """
    return min(
        (
            int(page[Slot.STEP])
            for page in pages
            if int(page[Slot.PHASE]) in PATIENT
            and page[Slot.STATE] < WorkerState.EXITING
            and not page[Slot.UNMEASURED]
            and (page[Slot.PHASE] != Phase.EVALUATION or now < page[Slot.PHASE_SINCE] + limit)
        ),
        default=None,
    )


def allowed_to_wait(page: Page) -> bool:
    """Whether a rank does what takes long and makes no steps."""
    return (
        page[Slot.GENERATION_STEPS] == 0
        or int(page[Slot.PHASE]) in PATIENT
        or page[Slot.STATE] == WorkerState.EXITING
    )
