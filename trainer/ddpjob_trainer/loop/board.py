"""What the loop says about itself: the page that the launcher reads, and a line for people now and then.

Why apart: the loop must read the same with and without a launcher. Must not: decide anything.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ddpjob_api.page import STEP_BOUNDS, Fact, Phase, Slot
from ddpjob_trainer import boundary
from ddpjob_trainer.device_time import DeviceTime
from ddpjob_trainer.page import Page

SECONDS_OF = {
    Phase.DATA: Slot.DATA_SECONDS,
    Phase.FORWARD: Slot.FORWARD_SECONDS,
    Phase.BACKWARD: Slot.BACKWARD_SECONDS,
    Phase.CHECKPOINT: Slot.CHECKPOINT_SECONDS,
    Phase.EVALUATION: Slot.EVALUATION_SECONDS,
    Phase.OPTIMIZER: Slot.OPTIMIZER_SECONDS,
    Phase.TO_DEVICE: Slot.H2D_SECONDS,
    Phase.LOADING: Slot.OTHER_SECONDS,
}
LINE_SECONDS = 30.0
"""A progress line this often at most; epochs and evaluations have lines of their own."""

Values = Mapping[str, Any]


def say(text: str) -> None:
    print(text, flush=True)


def nowhere(**_values: Any) -> None:
    """Where results go without a launcher; the last line of the log has them."""


def to_nobody(_fact: Fact, _value: Any) -> None:
    """Where facts go without a launcher."""


class Board:
    """Writes the page, where there is one; rank 0 also prints."""

    def __init__(
        self,
        *,
        page: Page | None = None,
        device_time: DeviceTime | None = None,
        report: Callable[..., None] = nowhere,
        put_fact: Callable[[Fact, Any], None] = to_nobody,
        speaks: bool = True,
    ) -> None:
        self.page = page
        self.device_time = device_time
        self.report = report
        self.put_fact = put_fact
        self.speaks = speaks
        self.last_line = time.monotonic()
        self.last_step = math.nan
        self.phase_ended = time.monotonic()

    def put(self, values: Mapping[Slot, float]) -> None:
        if self.page is not None:
            for slot, value in values.items():
                self.page.slots[slot] = value

    def add(self, slot: Slot, amount: float = 1) -> None:
        if self.page is not None:
            self.page.slots[slot] += amount

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        """The page says `phase` within, and counts the seconds; those between two phases are "other".

        What the instrumentation counts meanwhile as waiting for other ranks is no part of the phase, nor what passes
        while a device is busy with work of before.
        """
        if self.page is None:
            yield
            return
        slots, began = self.page.slots, time.monotonic()
        slots[Slot.OTHER_SECONDS] += self.beyond_device(began - self.phase_ended)
        slots[Slot.PHASE], slots[Slot.PHASE_SINCE] = phase, began
        waited = slots[Slot.COMM_EXPOSED_SECONDS]
        try:
            yield
        finally:
            self.phase_ended = now = time.monotonic()
            waited = slots[Slot.COMM_EXPOSED_SECONDS] - waited
            seconds = max(0.0, now - began - waited)
            slots[SECONDS_OF[phase]] += seconds if phase is Phase.OPTIMIZER else self.beyond_device(seconds)
            slots[Slot.PHASE], slots[Slot.PHASE_SINCE] = Phase.BETWEEN, now

    def beyond_device(self, seconds: float) -> float:
        """The part of some host time in which the device had nothing to do; the other part is counted as the device's."""
        device = self.device_time
        return seconds if device is None or not device.left else device.passed(seconds)

    def step_made(self, step: int, values: Mapping[Slot, float]) -> None:
        """A step is complete on this rank; STEP is written last, so that who sees it sees its values."""
        if self.page is None:
            return
        now = time.monotonic()
        self.put(values)
        if not self.page.slots[Slot.FIRST_STEP_AT]:
            self.page.slots[Slot.FIRST_STEP_AT] = now
        if not math.isnan(self.last_step):
            seconds = now - self.last_step
            self.add(Slot.STEP_SECONDS, seconds)
            self.page.slots[Slot.STEP_DURATIONS + bisect_left(STEP_BOUNDS, seconds)] += 1
        self.last_step = now
        self.add(Slot.GENERATION_STEPS)
        self.put({Slot.LAST_STEP_AT: now, Slot.STEP: step})

    def count(self, *, samples: int, counted: float) -> None:
        """Add what this rank read in a step; where the loss counts more than samples, it counts tokens."""
        self.add(Slot.SAMPLES, samples)
        if counted > samples:
            self.add(Slot.TOKENS, counted)

    def stop_here(self, step: int) -> bool:
        """Publish the boundary, wait while the launcher holds us, and say whether to save and stop."""
        return self.page is not None and boundary.reach(self.page, step)

    def can_stop_at(self, step: int) -> None:
        """Offer to stop after `step` although this rank has gone on from there; 0 takes it back."""
        self.put({Slot.CAN_STOP_AT: step})

    def told_to_stop(self, step: int) -> bool:
        """Whether the launcher has named a stop step and `step` reaches it; does not wait."""
        stop_at = self.page.slots[Slot.STOP_AT] if self.page is not None else 0
        return 0 < stop_at <= step

    def line(self, text: str) -> None:
        """Tell people, if this is the rank that speaks."""
        if self.speaks:
            self.last_line = time.monotonic()
            say(text)

    def line_now_and_then(self, text: Callable[[], str]) -> None:
        if self.speaks and time.monotonic() - self.last_line > LINE_SECONDS:
            self.line(text())
