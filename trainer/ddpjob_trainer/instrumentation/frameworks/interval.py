"""`checkpoint.everySeconds` by the clock of rank 0, with few meetings of the ranks.

Clocks differ, and a checkpoint is of one step on all ranks, so they must agree; but a collective whose answer is waited
for costs every step that it is in. So rank 0 says at each meeting after how many steps the next one is: half as many as
it takes to be due at its pace, so that steps may become twice as slow without being late. Once less than 1/20 of the
interval is left, it names the step to save at. That makes about six meetings an interval, however many steps it has.

Why apart: what Hugging Face's Trainer and Lightning ask alike. Must not: save.
"""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

FRACTION = 0.5
"""Of the steps until it is due, how many go by without a meeting."""
NEAR = 0.05
"""Of the interval: so little is left that the step can be named."""

Say = Callable[[int], int]
"""Gives rank 0's number to all ranks."""


class Interval:
    """Whether it is time to save, asked after each step on all ranks."""

    def __init__(self, every: timedelta, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = every.total_seconds()
        self._clock = clock
        self._saved_at = clock()
        """Of this rank; rank 0's counts."""
        self.begin()

    def begin(self) -> None:
        """A training begins: its steps may count from 0 again."""
        self._first: int | None = None
        self._step = -1
        self._meet_at = -1
        self._save_at: int | None = None
        self._met: tuple[int, float] | None = None
        """Step and time of the newest meeting, on this rank."""

    def saved(self) -> None:
        """A checkpoint is written, for whatever reason; on all ranks after the same step."""
        self._saved_at = self._clock()
        if self._save_at is not None:
            self._meet_at, self._save_at = self._save_at, None

    def due(self, step: int, say: Say) -> bool:
        """Whether to save after this step; the same on all ranks."""
        if step < self._step:
            self.begin()
        if step == self._step:
            return False  # a batch without an optimizer step
        self._step = step
        if self._first is None:
            self._first = step
        if self._save_at is not None:
            return step >= self._save_at and self._save_now(step)
        if step < self._meet_at:
            return False
        # What all ranks have to be told is one number: steps until the next meeting, or, negative or 0, until the save.
        answer = say(self._judged(step, self._first))
        self._met = (step, self._clock())
        if answer == 0:
            return self._save_now(step)
        if answer < 0:
            self._save_at = step - answer
        else:
            self._meet_at = step + answer
        return False

    def _save_now(self, step: int) -> bool:
        self._meet_at, self._save_at = step + 1, None
        return True

    def _judged(self, step: int, first: int) -> int:
        """What rank 0 says."""
        now = self._clock()
        left = self._seconds - (now - self._saved_at)
        if left <= 0:
            return 0
        if self._met is None:
            return 1
        met_step, met_at = self._met
        pace = (now - met_at) / (step - met_step)
        # The first steps look fast while the device is behind: no further ahead than what was seen.
        seen = max(step - first, 1)
        if pace <= 0:
            return seen
        steps = left / pace
        if left <= self._seconds * NEAR and steps <= seen:
            return -max(math.ceil(steps), 1)
        return max(min(int(steps * FRACTION), seen), 1)


def from_rank_0(device: Any) -> Say:
    """Gives rank 0's number to all ranks, by the device that the process group is for."""

    def say(number: int) -> int:
        import torch

        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return number
        told = torch.tensor([number], dtype=torch.int64, device=device)
        torch.distributed.broadcast(told, src=0)
        return int(told.item())

    return say
