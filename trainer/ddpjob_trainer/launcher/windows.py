"""Windows of steps over all ranks: who has been slow for several in a row, and where the time went.

Why apart: a slow window is no slow rank. A rank is named after `LASTING` windows in a row that find it slowest, and
is so until `LASTING` windows in a row do not, or until no window ends because the steps of a rank are not counted any
more (where no rank has made any since a restart, nobody can tell, and it stays named). What launchers send are sums
since their workers began, so that a lost message loses nothing; one without a rank that is measured sends none.
Must not: read a clock, or judge a window (`ddpjob_api.straggler`).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ddpjob_api.messages import SUMS
from ddpjob_api.metrics import LOCAL_PHASES
from ddpjob_api.straggler import Slow, Work, slowest
from ddpjob_trainer.launcher.timing import STRAGGLER_SECONDS, SUMS_SECONDS

WARM_STEPS = 5
"""The first steps of a process say nothing of the later ones."""
WINDOW_STEPS = 20
"""A window has so many steps of every rank at least."""
LASTING = 4
BLIND_SECONDS = 2 * SUMS_SECONDS
"""So long after a window began, every launcher has told how far its ranks are."""
KEPT = 12
"""Windows over which the shares of the wall time are taken."""

WORK = (*LOCAL_PHASES, "other")
"""What a single process would do in a step, too: all but waiting for others, and but saving and evaluating."""

Sums = Mapping[str, float]


@dataclass(frozen=True)
class Shares:
    """Where the time of the median rank went, as parts."""

    exposed: float
    """Waiting for other ranks, of its wall time."""
    data: float
    """Waiting for data, of its wall time."""
    efficiency: float | None
    """`WORK` of the same and waiting for other ranks (`Efficiency.ddp_efficiency_percent`)."""


@dataclass(frozen=True)
class Change:
    """A rank is named, or is not any more."""

    before: Slow | None
    after: Slow | None
    blind: bool = False
    """Nobody can be judged any more: some rank is not measured."""


class Windows:
    """The ranks of one job, as their launchers report them."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._now: dict[int, Sums] = {}
        self._since: dict[int, Sums] = {}
        """Where the window began, by rank."""
        self._began = 0.0
        self._heard = 0.0
        """When any launcher last sent its sums."""
        self._kept: deque[Mapping[int, Sums]] = deque(maxlen=KEPT)
        self._streak: list[Slow | None] = []
        self.named: Slow | None = None
        """The rank that has made the others wait for long enough; it outlives a restart."""

    def begin(self) -> None:
        """Another generation: its sums begin at zero."""
        self._now, self._since = {}, {}
        self._kept.clear()
        self._streak = []

    def hear(self, now: float, first_rank: int, flat: Sequence[float]) -> Change | None:
        """One launcher's sums, rank after rank in the order of `SUMS`; a change where a window ends with one."""
        self._heard, width = now, len(SUMS)
        for index in range(len(flat) // width):
            rank = first_rank + index
            sums = dict(zip(SUMS, flat[index * width : (index + 1) * width], strict=True))
            if rank >= self._ranks or sums["steps"] < WARM_STEPS:
                continue
            self._now[rank] = sums
            if rank not in self._since:
                self._since[rank] = sums
                self._began = now
        if self._due(now):
            return self._end(now)
        return self._forget() if self._blind(now) else None

    def wait(self, now: float) -> Change | None:
        """No sums have come; a change where none have for so long that no launcher's ranks are measured."""
        silent = self.named is not None and self._now and now >= self._heard + BLIND_SECONDS
        return self._forget() if silent else None

    def shares(self) -> Shares | None:
        """Of the last windows; None before it is known."""
        since = self._kept[0] if self._kept else self._since
        spent = [between(since[rank], sums) for rank, sums in self._now.items() if rank in since]
        return median_shares([sums for sums in spent if sums["seconds"] > 0])

    def _due(self, now: float) -> bool:
        if len(self._now) < self._ranks or now < self._began + STRAGGLER_SECONDS:
            return False
        return all(
            sums["steps"] - self._since[rank]["steps"] >= WINDOW_STEPS for rank, sums in self._now.items()
        )

    def _blind(self, now: float) -> bool:
        """Whether some rank's steps stand still while others make theirs: ranks make them together."""
        if self.named is None or not self._now or now < self._began + BLIND_SECONDS:
            return False
        made = [sums["steps"] - self._since[rank]["steps"] for rank, sums in self._now.items()]
        behind = len(made) < self._ranks or min(made) < WINDOW_STEPS
        return behind and max(made) >= LASTING * WINDOW_STEPS

    def _forget(self) -> Change:
        """What was found says nothing of the steps that are made now."""
        before, self.named = self.named, None
        self._streak = []
        return Change(before, None, blind=True)

    def _end(self, now: float) -> Change | None:
        """Judge the window, and begin the next."""
        found = slowest({rank: work(self._since[rank], sums) for rank, sums in self._now.items()})
        self._kept.append(self._since)
        self._since, self._began = dict(self._now), now
        self._streak = [*self._streak, found][-LASTING:]
        ranks = {one.rank if one else None for one in self._streak}
        before = self.named
        if len(self._streak) < LASTING:
            return None
        if found is not None and ranks == {found.rank}:
            self.named = found
        elif before is not None and before.rank not in ranks:
            self.named = None
        else:
            return None
        same = (before and (before.rank, before.cause)) == (
            self.named and (self.named.rank, self.named.cause)
        )
        return None if same else Change(before, self.named)


def between(since: Sums, now: Sums) -> Sums:
    """What was spent between two reports of a rank."""
    return {name: now[name] - since[name] for name in SUMS}


def median_shares(spent: Sequence[Sums]) -> Shares | None:
    """What ranks spent, on the median one; None of no ranks."""
    if not spent:
        return None
    works = [sum(sums[phase] for phase in WORK) for sums in spent]
    waits = [max(0.0, sums["comm_exposed"]) for sums in spent]
    parts = [own / (own + waited) for own, waited in zip(works, waits, strict=True) if own + waited > 0]
    return Shares(
        exposed=median(sums["comm_exposed"] / sums["seconds"] for sums in spent),
        data=median(sums["data_wait"] / sums["seconds"] for sums in spent),
        efficiency=median(parts) if any(waits) else None,
    )


def work(since: Sums, now: Sums) -> Work:
    """Seconds per step between two reports."""
    steps = now["steps"] - since["steps"]
    return Work(
        own={phase: (now[phase] - since[phase]) / steps for phase in LOCAL_PHASES},
        exposed=(now["comm_exposed"] - since["comm_exposed"]) / steps,
    )
