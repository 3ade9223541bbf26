"""How well the ranks of a job work together, who makes the others wait, and what to do about it.

Why apart: the coordinator finds it, the status shows it, events, `explain` and the summary of a run say the same words.
Must not: measure or judge (`straggler.py`).
"""

from dataclasses import dataclass

from ddpjob_api.fields import limited
from ddpjob_api.metrics import LOCAL_PHASES

DATA = "more DataLoader workers, a faster volume, or the data on the node"
COMPUTE = "look at its node: what else runs there, the clocks and temperature of its device, its CPU limit"
ADVICE = {
    "data_wait": f"its batches come late: {DATA}",
    "h2d": f"its batches are slow to reach the device: pinned memory; {COMPUTE}",
    "forward": f"it computes longer: {COMPUTE}; or its samples are larger",
    "backward_compute": f"it computes longer: {COMPUTE}; or its samples are larger",
    "optimizer": f"its optimizer takes longer: {COMPUTE}",
}
"""What helps, by the phase in which a rank is slower."""
assert set(ADVICE) == set(LOCAL_PHASES)
DATA_PERCENT, EXPOSED_PERCENT = 20, 25
"""From which part of the time on waiting for data, and for gradients, is worth a word."""
STRAGGLER, LOW_EFFICIENCY = "Straggler", "LowEfficiency"
"""Reasons of the events that tell what this module has words for."""


@dataclass(frozen=True, kw_only=True)
class Wait:
    """All ranks wait, for more of the time than they should."""

    what: str
    do: str


def for_data(percent: float | None) -> Wait | None:
    """Of the part of the time in which the median rank waits for data; None where it is small, or not known."""
    if percent is None or percent < DATA_PERCENT:
        return None
    return Wait(
        what=f"waiting for data takes {percent:.0f} % of the time on the median rank",
        do="more DataLoader workers, pin_memory, a faster volume, or data on the node",
    )


def for_gradients(percent: float | None) -> Wait | None:
    """Of the part in which it waits for others, where no rank makes them wait; None likewise."""
    if percent is None or percent < EXPOSED_PERCENT:
        return None
    return Wait(
        what=f"waiting for gradients takes {percent:.0f} % of the time on the median rank",
        do="ddpjob tune measures ddp.bucketCapMB and gradientAsBucketView; ddp.gradientAccumulationSteps exchanges them "
        "less often",
    )


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """`status.efficiency`: of the last minute or so."""

    exposed_communication_percent: int | None = None
    """Part of the wall time in which ranks wait for others, on the median rank."""
    data_wait_percent: int | None = None
    """Part in which they wait for data, likewise."""
    ddp_efficiency_percent: int | None = None
    """How long a step would take a single process, of what it takes here, on the median rank: its time without the
    waiting for others, by its time with it. Saving and evaluating are left out of both. What DDP does inside a rank's
    own work (bucket copies and hooks in backward) a single process would not do, and counts as its work here, as does
    waiting for others that DDP's clock does not sample: so it is an upper bound. Waiting for data is work in this
    sense: a single process waits for its data, too. None while no rank was seen to wait for others."""
    slowest_rank: int | None = None
    """The rank that makes the others wait, while one does."""
    slowest_rank_cause: str | None = limited(None, max_length=32)
    """The phase in which it is slower: one of `LOCAL_PHASES`."""
    slowest_node: str | None = limited(None, max_length=253)
    """Where it runs."""

    def sentence(self) -> str:
        """`rank 2 on w7 makes the others wait, in data_wait: …`; empty while none does."""
        if self.slowest_rank is None:
            return ""
        place = f" on {self.slowest_node}" if self.slowest_node else ""
        cause = self.slowest_rank_cause or "a phase that is not known"
        return f"rank {self.slowest_rank}{place} makes the others wait, in {cause}: {self.advice()}"

    def waits(self) -> list[Wait]:
        """What all ranks wait for too long; for a rank that makes them wait, there is `sentence`."""
        exposed = self.exposed_communication_percent if self.slowest_rank is None else None
        found = (for_data(self.data_wait_percent), for_gradients(exposed))
        return [wait for wait in found if wait is not None]

    def advice(self) -> str:
        """What to do; empty while no rank makes the others wait."""
        if self.slowest_rank is None:
            return ""
        return ADVICE.get(self.slowest_rank_cause or "", COMPUTE)
