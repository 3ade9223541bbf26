"""Which rank makes the others wait, and with what: a verdict on one window of steps.

Why apart: the rule is a pure function of numbers, so every case has a row in a test. A rank's own work is what it does
without the others (`LOCAL_PHASES`); the others wait for the rank whose own work takes longest. Several things must come
together, so that a busy host or a jittering clock is no alarm: it takes longer by a part, by an absolute time, by a part
of the whole step, by more than the others differ among themselves, and the others wait while it does not.
The coordinator asks for window after window, `ddpjob top` and `explain` for what they have scraped.
Must not: know of windows that came before (`ddpjob_trainer.launcher.windows`), or of nodes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddpjob_api.metrics import LOCAL_PHASES

FACTOR = 1.15
"""Its own work takes so many times that of the median of the others …"""
EXCESS_SECONDS = 0.005
"""… and so much longer a step …"""
COST = 0.1
"""… and longer by this part of the step, which is what would be won …"""
SPREAD = 2.0
"""… and so many times longer than the slowest of the others, both against that median …"""
WAITED = 0.5
"""… and the others wait at least for this part of it, and more than it does itself."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What one rank did in a window, in seconds per step."""

    own: Mapping[str, float]
    """Its own work, by `LOCAL_PHASES`."""
    exposed: float
    """Waiting for other ranks."""

    @property
    def total(self) -> float:
        return sum(self.own.values())


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A rank that makes the others wait."""

    rank: int
    cause: str
    """The phase with the largest excess."""
    excess: float
    """Seconds per step more than the median of the others, over all phases."""


def slowest(works: Mapping[int, Work]) -> Slow | None:
    """The rank that the others wait for; None where none stands out."""
    if len(works) < 2:
        return None
    rank = max(works, key=lambda each: works[each].total)
    mine = works[rank]
    others = [one for other, one in works.items() if other != rank]
    usual = median(one.total for one in others)
    excess = mine.total - usual
    if mine.total < FACTOR * usual or excess < EXCESS_SECONDS:
        return None
    if excess < COST * (mine.total + mine.exposed):
        return None
    if excess < SPREAD * (max(one.total for one in others) - usual):
        return None
    if mine.exposed > min(one.exposed for one in others):
        return None
    if median(one.exposed for one in others) - mine.exposed < WAITED * excess:
        return None
    return Slow(rank=rank, cause=cause(mine, others), excess=excess)


def cause(mine: Work, others: Sequence[Work]) -> str:
    """The phase in which a rank exceeds the others most."""
    return max(LOCAL_PHASES, key=lambda phase: mine.own[phase] - median(one.own[phase] for one in others))
