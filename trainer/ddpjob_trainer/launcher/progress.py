"""How far the training is, read from a rank's page: the numbers of `Progress`, rates over a sliding window.

Why apart: status, termination message and command line show the same numbers. Must not: read a page that belongs to
another generation than the samples before it without starting anew (`begin`).
"""

import math
from collections import deque
from dataclasses import dataclass

from ddpjob_api.codec import Invalid, load
from ddpjob_api.fields import Json
from ddpjob_api.page import Fact, Slot
from ddpjob_api.report import InEffect, Progress
from ddpjob_trainer.launcher.timing import RATE_WINDOW_SECONDS
from ddpjob_trainer.page import Page


@dataclass(frozen=True, kw_only=True)
class Sample:
    at: float
    step: float
    samples: float


class Gauge:
    """Follows rank 0's page."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._window: deque[Sample] = deque()
        self.progress = Progress()
        """As last read; it outlives the page."""
        self.ddp: InEffect | None = None
        self.result: Json = {}

    def begin(self) -> None:
        """Another generation: its counts begin anew."""
        self._window.clear()

    def read(self, page: Page, now: float) -> None:
        """Take one look at the page."""
        sample = Sample(at=now, step=page[Slot.STEP], samples=page[Slot.SAMPLES])
        self._window.append(sample)
        while self._window[0].at < now - RATE_WINDOW_SECONDS:
            self._window.popleft()
        facts = page.facts()
        result = facts.get(Fact.RESULT)
        if isinstance(result, dict):
            self.result = result
        if Fact.DDP in facts:
            try:
                self.ddp = load(InEffect, facts[Fact.DDP])
            except Invalid:
                self.ddp = None  # a page of a program that wrote something else there
        step = int(sample.step)
        if step == 0 and page[Slot.MICRO_BATCHES] == 0 and self.progress.step:
            return  # a new generation has not reached anything: what was reached stays
        total = whole(page[Slot.TOTAL_STEPS])
        self.progress = Progress(
            step=step,
            total_steps=total,
            epoch=whole(page[Slot.EPOCH]),
            loss=finite(page[Slot.LOSS]) if step or page[Slot.BACKWARDS] else None,
            samples_per_second=self._samples_per_second(),
            eta=self._eta(step, total),
            checkpoint_step=whole(page[Slot.CHECKPOINT_STEP]),
            micro_batches=int(page[Slot.MICRO_BATCHES]),
            samples=int(page[Slot.SAMPLES]),
        )

    def _samples_per_second(self) -> float | None:
        """Of the whole job: every rank takes an equal share."""
        first, last = self._window[0], self._window[-1]
        if last.at <= first.at or last.samples <= 0:
            return None
        return round((last.samples - first.samples) / (last.at - first.at) * self._world_size, 3)

    def _eta(self, step: int, total: int | None) -> float | None:
        first, last = self._window[0], self._window[-1]
        made = last.step - first.step
        if total is None or made <= 0 or last.at <= first.at:
            return None
        return round(max(total - step, 0) * (last.at - first.at) / made, 1)


def whole(value: float) -> int | None:
    """A slot that is 0 until it is known."""
    return int(value) if value else None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
