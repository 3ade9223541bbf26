"""The one small all-reduce of an optimizer step: what every rank must know before any of them goes on.

Loss, count, a flag for what is not finite, the wish to stop and the wish to save go through one tensor of five
float64. So no rank skips a step, stops or saves alone. (The end of the data needs no word: every rank computes it
from the same length, which `same_on_all` compared at the start.)
Must not: be called a different number of times on different ranks.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, kw_only=True)
class Words:
    """One rank's words, and their sum over the ranks."""

    loss_sum: float
    count: float
    finite: bool
    """Here: all I saw is. Of all: nobody saw otherwise."""
    stop: bool = False
    save: bool = False

    @property
    def loss(self) -> float:
        """The mean over everything counted; NaN where nothing was."""
        return self.loss_sum / self.count if self.count else math.nan


def agree(mine: Words, device: torch.device) -> Words:
    """Everybody's words together, equal on all ranks.

    A value that is not finite travels as its flag only, so that the others' sum stays a number.
    """
    loss_sum = mine.loss_sum if mine.finite else 0.0
    count = mine.count if mine.finite else 0.0
    values = [loss_sum, count, not mine.finite, mine.stop, mine.save]
    summed = total(values, device)
    return Words(
        loss_sum=summed[0],
        count=summed[1],
        finite=not summed[2],
        stop=bool(summed[3]),
        save=bool(summed[4]),
    )


def total(values: list[Any], device: torch.device) -> list[float]:
    """Sums over the ranks, in float64 where the device has it."""
    dtype = torch.float32 if device.type in ("mps", "hpu") else torch.float64
    tensor = torch.tensor([float(value) for value in values], dtype=dtype, device=device)
    dist.all_reduce(tensor)
    return [float(value) for value in tensor.tolist()]


def from_all(value: Any) -> list[Any]:
    """Each rank's value, by rank; for moments that happen seldom."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def ranks_that_differ(values: list[Any]) -> list[int]:
    """Ranks whose value is not the most common one (rank 0's among equals)."""
    common = max(values, key=lambda value: (values.count(value), value == values[0]))
    return [rank for rank, value in enumerate(values) if value != common]
