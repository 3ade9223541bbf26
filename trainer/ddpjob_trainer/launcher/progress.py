"""How far the training is, read from a rank's page: the numbers of `Progress`, rates over a sliding window.

Why apart: status, termination message and command line show the same numbers. Rates leave out everything before the
first step of a generation: starting, loading and the warm-up of the first step say nothing of the time that is left.
Must not: read a page that belongs to another generation than the samples before it without starting anew (`begin`).
"""

import math
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from ddpjob_api.codec import Invalid, load
from ddpjob_api.efficiency import Efficiency
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
        """Looks at which something had moved, the newest last; the first is at or after the generation's first step."""
        self.progress = Progress()
        """As last read; it outlives the page."""
        self.ddp: InEffect | None = None
        self.result: Json = {}
        self.checkpoint_trouble = ""
        self.efficiency: Efficiency | None = None
        """As the coordinator said last, where it is here."""

    def begin(self) -> None:
        """Another generation: its counts begin anew."""
        self._window.clear()

    def read(self, page: Page, now: float) -> None:
        """Take one look at the page."""
        sample = Sample(at=now, step=page[Slot.STEP], samples=page[Slot.SAMPLES])
        if page[Slot.GENERATION_STEPS] > 0:
            self._add(sample)
        facts = page.facts()
        result = facts.get(Fact.RESULT)
        if isinstance(result, dict):
            self.result = result
        if Fact.DDP in facts:
            self.ddp = in_effect(facts)
        trouble = facts.get(Fact.CHECKPOINT)
        self.checkpoint_trouble = trouble[:512] if isinstance(trouble, str) else ""
        step = int(sample.step)
        if step == 0 and page[Slot.MICRO_BATCHES] == 0 and self.progress.step:
            return  # a new generation has not reached anything: what was reached stays
        total = whole(page[Slot.TOTAL_STEPS])
        self.progress = Progress(
            step=step,
            total_steps=total,
            epoch=whole(page[Slot.EPOCH]),
            loss=finite(page[Slot.LOSS]) if step or page[Slot.BACKWARDS] else None,
            samples_per_second=self._samples_per_second(now),
            eta=self._eta(step, total, now),
            checkpoint_step=whole(page[Slot.CHECKPOINT_STEP]),
            checkpoint_at=moment(page[Slot.CHECKPOINT_AT]),
            micro_batches=int(page[Slot.MICRO_BATCHES]),
            samples=int(page[Slot.SAMPLES]),
        )

    def _add(self, sample: Sample) -> None:
        window = self._window
        if window and (sample.at <= window[-1].at or same(sample, window[-1])):
            return
        window.append(sample)
        # One look before the window stays, so that steps that take longer than it have a rate too.
        while len(window) > 2 and window[1].at < sample.at - RATE_WINDOW_SECONDS:
            window.popleft()

    def _seconds(self, now: float) -> float:
        """The time in which the window's steps were made; one that is overdue counts up to now."""
        first, last = self._window[0], self._window[-1]
        each = (last.at - first.at) / (len(self._window) - 1)
        return (now if now - last.at > 2 * each else last.at) - first.at

    def _samples_per_second(self, now: float) -> float | None:
        """Of the whole job: every rank takes an equal share."""
        if len(self._window) < 2:
            return None
        made = self._window[-1].samples - self._window[0].samples
        return round(made / self._seconds(now) * self._world_size, 3) if made > 0 else None

    def _eta(self, step: int, total: int | None, now: float) -> float | None:
        if len(self._window) < 2 or total is None:
            return None
        made = self._window[-1].step - self._window[0].step
        return round(max(total - step, 0) * self._seconds(now) / made, 1) if made > 0 else None


def in_effect(facts: Json) -> InEffect | None:
    """The DDP settings among a page's facts; None where there are none, or the program wrote something else there."""
    try:
        return load(InEffect, facts[Fact.DDP]) if Fact.DDP in facts else None
    except Invalid:
        return None


def same(one: Sample, other: Sample) -> bool:
    return (one.step, one.samples) == (other.step, other.samples)


def whole(value: float) -> int | None:
    """A slot that is 0 until it is known."""
    return int(value) if value else None


def moment(unix: float) -> str | None:
    """RFC 3339, UTC; None for 0, and for what is no time."""
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if unix else None
    except (ValueError, OverflowError):
        return None


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
