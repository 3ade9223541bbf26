"""The end of one generation: what came in while it was stopped, and the verdict.

Why apart: who is to blame is the product. The order is own failure (by arrival at the coordinator, no clocks compared;
the others are named beside it), lost launcher, victim; a hang's place is between the first two.
Must not: count or send (`coordinator.py`).
"""

import contextlib
import signal
from dataclasses import dataclass, field, replace
from enum import Enum

from ddpjob_api.conditions import Reason
from ddpjob_api.exits import exit_code
from ddpjob_api.messages import Hello
from ddpjob_api.report import Cause, Failure, WorkerExit


class Charge(Enum):
    """What an incident is counted as."""

    NOTHING = "nothing"
    RESTART = "restart"
    DISRUPTION = "disruption"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    charge: Charge
    failure: Failure | None = None
    refused: bool = False
    certain: bool = True
    """False: only victims are known, so a launcher may be lost that is not missed yet."""


@dataclass(kw_only=True)
class Halt:
    """A generation that is being ended: softly (pause, stop step) or at once."""

    generation: int
    opened: float
    hard: bool
    deadline: float | None = None
    """Until when a soft stop may take."""
    boundaries: dict[int, int] = field(default_factory=dict)
    """Highest step boundary by node, as the nodes answered."""
    stop_at: int | None = None
    failures: list[Failure] = field(default_factory=list)
    """Own failures, by arrival."""
    victims: list[Failure] = field(default_factory=list)
    refused: bool = False
    lost: dict[int, Hello] = field(default_factory=dict)

    def add(self, exits: tuple[WorkerExit, ...], of: Hello, at: str) -> None:
        """Take what a launcher says of its workers; each rank is heard once."""
        for item in exits:
            known = {failure.rank for failure in (*self.failures, *self.victims)}
            if item.cause is Cause.KILLED or item.rank in known:
                continue
            failure = failure_of(item, of, generation=self.generation, at=at)
            (self.failures if item.cause is Cause.OWN else self.victims).append(failure)
            self.refused = self.refused or item.refused

    def inherit(self, failure: Failure) -> None:
        """Take an own failure whose message was lost with its connection."""
        if failure.rank not in {known.rank for known in self.failures}:
            self.failures.append(failure)

    def verdict(self, *, requested: bool, at: str, done: tuple[int, ...] = ()) -> Verdict:
        """Who ended this generation.

        Args:
            requested: somebody asked for the stop, which is nobody's failure.
            done: nodes whose ranks had all ended with 0.
        """
        if self.failures:
            first, *others = sorted(
                self.failures, key=lambda failure: failure.reason is not Reason.CONFIGURATION_REFUSED
            )
            also = tuple(failure.rank for failure in others if failure.rank is not None)[:16]
            return Verdict(charge=Charge.RESTART, failure=replace(first, also=also), refused=self.refused)
        if self.lost:
            node = min(self.lost)
            return Verdict(
                charge=Charge.DISRUPTION, failure=loss_of(self.lost[node], generation=self.generation, at=at)
            )
        if requested:
            return Verdict(charge=Charge.NOTHING)
        if self.victims:
            return Verdict(
                charge=Charge.RESTART, failure=without_culprit(self.victims[0], done), certain=False
            )
        return Verdict(charge=Charge.NOTHING, certain=False)


def failure_of(item: WorkerExit, of: Hello, *, generation: int, at: str) -> Failure:
    """A worker's end as the status shows it."""
    return Failure(
        reason=reason_of(item),
        rank=item.rank,
        node=of.node,
        pod=of.pod or None,
        pod_uid=of.pod_uid or None,
        host_node=of.host_node or None,
        exit_code=exit_code(item.returncode),
        signal=signal_name(-item.returncode) if item.returncode < 0 else None,
        message=item.message,
        location=item.location,
        step=item.step,
        generation=generation,
        at=at,
    )


def without_culprit(victim: Failure, done: tuple[int, ...]) -> Failure:
    """The failure of a rank that lost the others although none of them failed: it is a witness, and said to be one."""
    if done:
        nodes = f"node{'s' if len(done) > 1 else ''} {', '.join(map(str, done[:16]))}"
        why = f"still needed the ranks of {nodes}, which had ended with exit code 0"
    else:
        why = "gave up on the other ranks, none of which failed"
    return replace(victim, message=f"{why}: {victim.message}"[:1024])


def loss_of(of: Hello, *, generation: int, at: str) -> Failure:
    """A launcher that is gone, with its pod or its node."""
    where = f" on {of.host_node}" if of.host_node else ""
    return Failure(
        reason=Reason.POD_LOST,
        node=of.node,
        pod=of.pod or None,
        pod_uid=of.pod_uid or None,
        host_node=of.host_node or None,
        message=f"the launcher of node {of.node}{where} is gone",
        generation=generation,
        at=at,
    )


def reason_of(item: WorkerExit) -> Reason:
    if item.refused:
        return Reason.CONFIGURATION_REFUSED
    if item.oom_killed:
        return Reason.OOM_KILLED
    return Reason.KILLED if item.returncode < 0 else Reason.PROGRAM_FAILED


def signal_name(number: int) -> str:
    """`SIGKILL`; real-time signals have no name of their own everywhere."""
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"
