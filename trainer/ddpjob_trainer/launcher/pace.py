"""How far a rank is in its generation, from its page: what the coordinator keeps its time book by.

Why apart: all ranks make their steps together, so one page says for all when they were made. Must not: judge.
"""

from collections.abc import Iterable

from ddpjob_api.messages import Pace
from ddpjob_api.page import Slot
from ddpjob_trainer.page import Page


def pace_of(pages: Iterable[Page], now: float) -> Pace | None:
    """Of the first rank whose steps are counted; None before its first step."""
    for page in pages:
        if page[Slot.UNMEASURED] or not page[Slot.FIRST_STEP_AT]:
            continue
        return Pace(
            step=int(page[Slot.STEP]),
            made=int(page[Slot.GENERATION_STEPS]),
            first_seconds=round(now - page[Slot.FIRST_STEP_AT], 3),
            last_seconds=round(now - page[Slot.LAST_STEP_AT], 3),
        )
    return None
