"""What a launcher remembers of a run: rows of counters over time, and incidents, bounded however long it runs.

Why apart: the launcher writes it, `ddpjob report` reads it, from a file, from `/history` or from a line of the log. The
counters are sums since the pod began, so a row that is thinned out takes nothing with it but resolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ddpjob_api.codec import Invalid, load, render
from ddpjob_api.fields import limited
from ddpjob_api.metrics import PHASES
from ddpjob_api.packing import MAX_WORD_BYTES, pack_document, unpack_document
from ddpjob_api.report import Failure

VERSION = 2
"""Of a history's file; another one's is begun anew."""
MAX_ROWS = 600
LOG_MARK = "history: "
"""Begins the launcher's line that carries the history of a pod that ends."""


@dataclass(frozen=True, kw_only=True)
class RankSums:
    """What one rank has counted since its pod began."""

    rank: int
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0
    """From optimizer step to optimizer step."""
    phases: tuple[float, ...] = limited((), max_items=len(PHASES))
    """In the order of `metrics.PHASES`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One look at a node."""

    at: float
    """Unix time."""
    generation: int = 0
    step: int = 0
    loss: float | None = None
    """Of the node's first rank."""
    ranks: tuple[RankSums, ...] = ()


@dataclass(frozen=True, kw_only=True)
class History:
    """One node's."""

    job: str
    node: int
    rows: tuple[Row, ...] = ()
    """Oldest first."""
    incidents: tuple[Failure, ...] = limited((), max_items=64)
    """Of the whole job, in that of node 0."""


def thinned(rows: Sequence[Row]) -> list[Row]:
    """Every second row; the first and the last stay."""
    kept = list(rows[::2])
    return kept if not rows or kept[-1] is rows[-1] else [*kept, rows[-1]]


def pack(history: History) -> str:
    """The history as one short word; rows go until it is short enough."""
    rows: Sequence[Row] = history.rows
    while True:
        fewer = History(job=history.job, node=history.node, rows=tuple(rows), incidents=history.incidents)
        word = pack_document(render(fewer))
        if len(word) <= MAX_WORD_BYTES or len(rows) <= 2:
            return word
        rows = thinned(rows)


def unpack(word: str) -> History | None:
    """What `pack` made; None where it is something else."""
    try:
        return load(History, unpack_document(word))
    except (ValueError, Invalid):
        return None
