"""The end of one generation: what came in while it was stopped, and the verdict.

Why apart: who is to blame is the product. The order is own failure (by arrival at the coordinator, no clocks compared;
the others are named beside it), lost launcher, nobody where the stop was asked for, a launcher that was cut off and
ended its workers, victim. A generation that was stopped because it hung is a hang, whatever its ranks did when they
were ended; collectives that ran into their time-out are one too (`culprit.py`).
Must not: count or send (`coordinator.py`).
"""

import contextlib
import signal
from dataclasses import dataclass, field, replace
from enum import Enum

from ddpjob_api.conditions import Reason
from ddpjob_api.exits import Exit, exit_code
from ddpjob_api.messages import Hello
from ddpjob_api.report import Cause, Failure, RankView, WorkerExit
from ddpjob_trainer.launcher import culprit
from ddpjob_trainer.launcher.autopsy import spot


class Charge(Enum):
    """What an incident is counted as."""

    NOTHING = "nothing"
    RESTART = "restart"
    DISRUPTION = "disruption"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    charge: Charge
    failure: Failure | None = None
    exception: str | None = None
    """What makes two exceptions the same: type, place and step; None for what is no exception."""
    refused: bool = False
    certain: bool = True
    """False: only victims are known, so a launcher may be lost that is not missed yet."""


@dataclass(kw_only=True)
class Halt:
    """A generation that is being ended: softly (pause, stop step) or at once."""

    generation: int
    opened: float
    hard: bool
    boundaries: dict[int, int] = field(default_factory=dict)
    """Highest step boundary by node, as the nodes answered."""
    held: set[int] = field(default_factory=set)
    """Nodes whose ranks can still stop at their boundary."""
    stop_at: int | None = None
    steps: dict[int, int] = field(default_factory=dict)
    """Fewest steps among the ranks of a node, by its newest Beat since the stop began."""
    post_mortem: bool = False
    """The stop asks for stacks and pages of all ranks."""
    failures: list[Failure] = field(default_factory=list)
    """Own failures, by arrival."""
    victims: list[Failure] = field(default_factory=list)
    refused: bool = False
    lost: dict[int, Hello] = field(default_factory=dict)
    apart: dict[int, Hello] = field(default_factory=dict)
    """Launchers that were cut off from the coordinator, and ended their workers because of that."""
    exceptions: dict[int, str] = field(default_factory=dict)
    """By rank, of own failures: what makes two of them the same."""
    hung_seconds: float | None = None
    """For how long no step was made, where that ended the generation."""
    late: set[int] = field(default_factory=set)
    """Ranks whose error is a time-out."""
    aborted: set[int] = field(default_factory=set)
    """Ranks that died of SIGABRT without a word, as NCCL's watchdog ends them."""
    views: dict[int, RankView] = field(default_factory=dict)
    """Where the ranks stood."""
    hosts: dict[int, Hello] = field(default_factory=dict)
    """The launchers of the ranks in `views`."""

    def add(self, exits: tuple[WorkerExit, ...], of: Hello, at: str) -> None:
        """Take what a launcher says of its workers; each rank is heard once."""
        for item in exits:
            if item.returncode == -signal.SIGABRT and not item.error_type and item.message == died(item):
                # Also one that was told to end, and is deaf to it: its time-out comes a little after another's.
                self.aborted.add(item.rank)
            known = {failure.rank for failure in (*self.failures, *self.victims)}
            if item.cause is Cause.KILLED or item.rank in known:
                continue
            failure = failure_of(item, of, generation=self.generation, at=at)
            (self.failures if item.cause is Cause.OWN else self.victims).append(failure)
            self.refused = self.refused or item.refused
            if item.late:
                self.late.add(item.rank)
            if item.cause is Cause.OWN and item.error_type:
                self.exceptions[item.rank] = f"{item.error_type} {item.location} {item.step} {item.message}"

    def see(self, views: tuple[RankView, ...], of: Hello) -> None:
        """Take where a launcher's ranks stand; what was seen before the stop is not forgotten."""
        for view in views:
            before = self.views.get(view.rank, view)
            known = before.in_collective if view.in_collective is None else view.in_collective
            self.hosts[view.rank] = of
            self.views[view.rank] = replace(
                view,
                stopped=view.stopped or before.stopped,
                place=view.place or before.place,
                in_collective=known,
            )

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
        if self.hung_seconds is not None:
            return Verdict(
                charge=Charge.RESTART, failure=self.hang(f"no step for {self.hung_seconds:.0f} s", at)
            )
        if self.failures and not self.only_aborts:
            first, *others = sorted(
                self.failures, key=lambda failure: failure.reason is not Reason.CONFIGURATION_REFUSED
            )
            also = tuple(failure.rank for failure in others if failure.rank is not None)[:16]
            return Verdict(
                charge=Charge.RESTART,
                failure=replace(first, also=also),
                exception=self.exceptions.get(first.rank) if first.rank is not None else None,
                refused=self.refused,
            )
        if self.lost:
            node = min(self.lost)
            return Verdict(
                charge=Charge.DISRUPTION, failure=loss_of(self.lost[node], generation=self.generation, at=at)
            )
        if requested:
            return Verdict(charge=Charge.NOTHING)
        if self.apart:
            node = min(self.apart)
            words = f"node {node} was cut off from the coordinator and ended its workers"
            lost = loss_of(self.apart[node], generation=self.generation, at=at)
            failure = replace(lost, reason=Reason.DISRUPTED, message=words)
            return Verdict(charge=Charge.DISRUPTION, failure=failure)
        if self.only_aborts:
            ranks = ", ".join(map(str, sorted(self.aborted)[:16]))
            words = f"ranks {ranks} were aborted (SIGABRT) without an error of their own"
            return Verdict(charge=Charge.RESTART, failure=self.hang(words, at), certain=False)
        witness = next((failure for failure in self.victims if failure.rank in self.late), None)
        if witness is not None and len(self.views) > 1:
            words = f"rank {witness.rank} waited for it until the time-out ({witness.message})"
            return Verdict(charge=Charge.RESTART, failure=self.hang(words, at), certain=False)
        if self.victims:
            return Verdict(
                charge=Charge.RESTART, failure=without_culprit(self.victims[0], done), certain=False
            )
        return Verdict(charge=Charge.NOTHING, certain=False)

    @property
    def only_aborts(self) -> bool:
        """Whether several ranks were aborted at once and nothing else failed: collectives ran into their time-out."""
        failed = {failure.rank for failure in self.failures}
        return bool(failed) and len(self.aborted) > 1 and self.aborted >= failed

    def hang(self, observed: str, at: str) -> Failure:
        """The rank that is behind the others, in words; no rank's fault where none is."""
        finding = culprit.find(self.views)
        rank = finding.rank
        if rank is None:
            return Failure(
                reason=Reason.NO_PROGRESS,
                exit_code=int(Exit.HUNG),
                message=f"{observed}: {finding.words}"[:1024],
                step=max((view.step for view in self.views.values()), default=None),
                generation=self.generation,
                at=at,
            )
        of = self.hosts[rank.rank]
        return Failure(
            reason=Reason.NO_PROGRESS,
            rank=rank.rank,
            node=of.node,
            pod=of.pod or None,
            pod_uid=of.pod_uid or None,
            host_node=of.host_node or None,
            exit_code=int(Exit.HUNG),
            message=f"{observed}: {finding.words}"[:1024],
            location=spot(rank.place),
            step=rank.step,
            generation=self.generation,
            at=at,
            also=finding.also,
        )


def died(item: WorkerExit) -> str:
    return f"died of {signal_name(-item.returncode)}"


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
