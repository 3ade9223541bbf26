"""What a job's time went to: sums of seconds by use, and the share that was useful (goodput).

Why apart: the coordinator keeps the sums, the operator carries them on, the command line shows them, and metrics are
named after the uses. The uses divide the wall time since the job's start, suspended time left out: no second is in two.
"""

import math
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Generic, TypeVar

Seconds = TypeVar("Seconds", int, float)


class Use(StrEnum):
    """One use of time."""

    USEFUL = "useful"
    """From optimizer step to optimizer step, whatever happened between them, in steps made for the first time."""
    QUEUEING = "queueing"
    """Not all pods run."""
    START = "start"
    """All pods run, and the first step since the job was made or resumed is not yet complete."""
    RESTART = "restart"
    """From the last step before a failure or disruption to the first after it, pods that are missing left out."""
    HANG = "hang"
    """From the last step to the verdict NoProgress."""
    REPEATED = "repeated"
    """Steps made again after a restart."""
    OTHER = "other"
    """After the last step of all (saving, evaluating, ending), and programs whose steps nobody sees."""


class ByUse(Generic[Seconds]):
    """Seconds by use; the fields are `usefulSeconds` … of whoever keeps them."""

    def of(self, use: Use) -> Seconds:
        found: Seconds = getattr(self, f"{use.value}_seconds")
        return found

    @property
    def total(self) -> Seconds:
        return sum(self.of(use) for use in Use)

    @property
    def goodput(self) -> int | None:
        """Percent that was useful; None before the first step of all."""
        useful = self.of(Use.USEFUL)
        return math.floor(100 * useful / self.total) if useful else None


@dataclass(frozen=True, kw_only=True)
class Times(ByUse[float]):
    """Seconds by use. They only grow while a job goes on."""

    useful_seconds: float = 0.0
    queueing_seconds: float = 0.0
    start_seconds: float = 0.0
    restart_seconds: float = 0.0
    hang_seconds: float = 0.0
    repeated_seconds: float = 0.0
    other_seconds: float = 0.0

    def plus(self, use: Use, seconds: float) -> "Times":
        """With so many more seconds of that use; negative ones are none."""
        return replace(self, **{f"{use.value}_seconds": self.of(use) + max(0.0, seconds)})

    def rounded(self) -> "Times":
        """To hundredths."""
        return Times(**{each.name: round(getattr(self, each.name), 2) for each in fields(Times)})


@dataclass(frozen=True, kw_only=True)
class Spent:
    """What a coordinator has entered so far, and all that its successor needs to go on."""

    times: Times = field(default_factory=Times)
    until: float = 0.0
    """Unix time up to which `times` account; what came after is not decided yet."""
    first_step_at: float | None = None
    """Unix time of the first step since the job was made or resumed; None before it."""
    reached: int = 0
    """The highest step ever made."""


def at_least(one: Times, other: Times) -> Times:
    """The greater of each sum: both are of the same job, and each contains what it knew of the other."""
    names = [each.name for each in fields(Times)]
    return Times(**{name: max(getattr(one, name), getattr(other, name)) for name in names})
