"""Step boundaries: where a rank may be held, and where all ranks stop together without a collective.

How it works: a worker publishes the boundary it reached, and only then reads the pause word. The coordinator pauses
all, learns every rank's boundary, takes the highest + 1 as the stop step and lets go. No rank can be past it: a
paused rank cannot pass its next boundary, and DDP keeps ranks within one step of each other.
Must not: import torch, or decide what is saved.
"""

import time

from ddpjob_api.exits import Exit
from ddpjob_api.page import Phase, Slot
from ddpjob_trainer.page import Page

BOUNDARY, PAUSE, STOP_AT = int(Slot.BOUNDARY), int(Slot.PAUSE), int(Slot.STOP_AT)
"""Looked at in every step, and a member of an enumeration is slower."""
HOLD_SECONDS = 0.002
"""Pause between two looks at the words while held."""


def reach(page: Page, step: int) -> bool:
    """Publish boundary `step`, wait while the launcher says pause, and say whether to save and stop here."""
    slots = page.slots
    slots[BOUNDARY] = step
    if not slots[PAUSE] and not slots[STOP_AT]:
        return False
    phase, since = slots[Slot.PHASE], slots[Slot.PHASE_SINCE]
    slots[Slot.PHASE] = Phase.PAUSED
    slots[Slot.PAUSED_AT] = step
    # STOP_AT is written before PAUSE is cleared, so a rank that leaves the loop knows where to stop.
    while slots[PAUSE] and not slots[STOP_AT]:
        time.sleep(HOLD_SECONDS)
    slots[Slot.PAUSED_AT] = 0
    slots[Slot.PHASE], slots[Slot.PHASE_SINCE] = phase, since
    stop_at = slots[STOP_AT]
    return bool(stop_at) and step >= stop_at


def has_stopped(page: Page) -> bool:
    """Whether a process of this rank has stopped because all ranks were asked to."""
    return page[Slot.STOP_AT] > 0 and page[Slot.EXIT_CODE] == Exit.STOPPED
