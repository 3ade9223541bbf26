"""Numbers over time from the histories of a job's nodes.

Why apart: pure, and the only place that knows how pods that followed each other become one line. Must not: draw.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ddpjob_api.history import History, RankSums, Row
from ddpjob_api.metrics import PHASES

Rows = Mapping[int, Sequence[Row]]
"""By node."""
Points = list[tuple[float, float]]
"""Unix time and value."""
WORDS = {
    "data_wait": "waiting for data",
    "h2d": "to the device",
    "backward_compute": "backward",
    "comm_exposed": "waiting for ranks",
}
"""Phases whose names are no words."""
SEGMENTS = tuple(WORDS.get(phase, phase) for phase in PHASES)
"""`metrics.PHASES`, for people."""
GAP_SECONDS = 3.0
"""Rows of one generation that lie further apart than this, and ten times the usual, are two lives."""


@dataclass(frozen=True, kw_only=True)
class RankTime:
    """Where one rank's time went, in seconds by `metrics.PHASES`."""

    rank: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Life:
    """One generation on one node."""

    node: int
    generation: int
    begin: float
    end: float


def joined(histories: Sequence[History]) -> dict[int, list[Row]]:
    """The rows of each node; pods of one index follow each other, and their counters go on."""
    found: dict[int, list[Row]] = {}
    begun = sorted((history for history in histories if history.rows), key=lambda one: one.rows[0].at)
    for node in sorted({history.node for history in begun}):
        rows: list[Row] = []
        for history in (one for one in begun if one.node == node):
            if rows and history.rows[0].at <= rows[0].at:
                # A pod with a shared claim has its predecessor's rows too.
                rows = rows if rows[-1].at >= history.rows[-1].at else list(history.rows)
                continue
            base = {one.rank: one for row in rows for one in row.ranks}
            after = rows[-1].at if rows else 0.0
            rows += [carried(row, base) for row in history.rows if row.at > after]
        found[node] = rows
    return found


def carried(row: Row, base: Mapping[int, RankSums]) -> Row:
    """The row with what was counted before it."""
    if not base:
        return row
    return replace(row, ranks=tuple(added(one, base.get(one.rank)) for one in row.ranks))


def added(one: RankSums, before: RankSums | None) -> RankSums:
    if before is None:
        return one
    return replace(
        one,
        steps=one.steps + before.steps,
        samples=one.samples + before.samples,
        seconds=one.seconds + before.seconds,
        phases=tuple(a + b for a, b in zip(one.phases, before.phases, strict=False)),
    )


def loss(rows: Rows) -> Points:
    """Of the first node that has any."""
    for node in sorted(rows):
        points = [(row.at, row.loss) for row in rows[node] if row.loss is not None]
        if points:
            return points
    return []


def apart(points: Points, rows: Rows) -> list[Points]:
    """The points of each generation: between the last of one and the first of the next nothing is known."""
    begun = [life.begin for life in lives(rows) if life.node == min(rows)]
    bounds = [*begun, math.inf]
    parts = [[point for point in points if low <= point[0] < high] for low, high in pairwise(bounds)]
    return [part for part in parts if part]


def steps(rows: Rows) -> Points:
    """The step reached; it goes back where a restart repeats some, not while ranks only start."""
    mine = rows[min(rows)] if rows else ()
    return [(row.at, float(row.step)) for row in mine if row.step or row.generation == mine[0].generation]


def throughput(rows: Rows) -> Points:
    """Samples per second over all ranks, at the times of the first node."""
    if not rows:
        return []
    rates = {node: rates_of(mine) for node, mine in rows.items()}
    first = rates[min(rows)]
    return [(at, sum(near(points, at) for points in rates.values())) for at, _ in first]


def rates_of(rows: Sequence[Row]) -> Points:
    """Samples per second between two rows; 0 while no rank runs."""
    points = []
    for before, after in pairwise(rows):
        seconds = after.at - before.at
        made = sum(one.samples for one in after.ranks) - sum(one.samples for one in before.ranks)
        if seconds > 0:
            points.append((after.at, max(0.0, made) / seconds))
    return points


def near(points: Points, at: float) -> float:
    """The value of the newest point not after a time; the first before that."""
    value = points[0][1] if points else 0.0
    for moment, found in points:
        if moment > at + 0.5:
            break
        value = found
    return value


def times(rows: Rows) -> list[RankTime]:
    """Where every rank's time went, over the whole run."""
    found: dict[int, RankTime] = {}
    for mine in rows.values():
        for row in mine:
            found |= {one.rank: split(one) for one in row.ranks}
    return [found[rank] for rank in sorted(found)]


def split(one: RankSums) -> RankTime:
    """Seconds of each phase."""
    return RankTime(rank=one.rank, seconds=(*one.phases, *[0.0] * (len(PHASES) - len(one.phases))))


def lives(rows: Rows) -> list[Life]:
    """When which generation ran on which node."""
    found = []
    for node, mine in sorted(rows.items()):
        begin = 0
        for index in range(1, len(mine) + 1):
            if index == len(mine) or mine[index].generation != mine[begin].generation or parted(mine, index):
                life = Life(
                    node=node, generation=mine[begin].generation, begin=mine[begin].at, end=mine[index - 1].at
                )
                found.append(life)
                begin = index
    return found


def parted(rows: Sequence[Row], index: int) -> bool:
    gap = rows[index].at - rows[index - 1].at
    usual = (rows[-1].at - rows[0].at) / max(1, len(rows) - 1)
    return gap > max(GAP_SECONDS, 10 * usual)
