"""What the end of a pod is called, and which of two failures says more of the same end.

Why apart: it is a judgement over one pod, or two words of one end, that needs no count. Must not: count (`ledger.py`).
"""

from dataclasses import dataclass
from datetime import datetime

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, Outcome, out_of_memory
from ddpjob_operator.model import Status, stamp
from ddpjob_operator.observe import PodView

RESTARTS = frozenset({Reason.PROGRAM_FAILED, Reason.OOM_KILLED, Reason.NO_PROGRESS})
"""Failures of the program; everything else is a disruption."""
SIGTERM, SIGKILL = 15, 9


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why a pod does not take part any more."""

    reason: Reason
    message: str


def loss_of(pod: PodView) -> Loss:
    """What took a pod away that is not live."""
    end, name = pod.end, f"pod {pod.name}"
    where = f" on node {pod.host_node}" if pod.host_node else ""
    if pod.lost is not None:
        return Loss(reason=Reason.NODE_LOST, message=f"{name}: {pod.lost}")
    if end is not None and end.reason == "OOMKilled" and end.report is None:
        # With a report the launcher lived on: the kubelet calls the container so when any process in it was killed.
        return Loss(reason=Reason.OOM_KILLED, message=f"{name}{where} {out_of_memory(pod.memory_limit)}")
    if pod.disruption is not None:
        return Loss(reason=Reason.DISRUPTED, message=f"{name}{where}: {pod.disruption}")
    if pod.deleting:
        return Loss(reason=Reason.DISRUPTED, message=f"{name}{where} was deleted")
    if end is None or end.exit_code is None:
        return Loss(
            reason=Reason.POD_LOST, message=f"{name}{where} is lost. {end.words if end else ''}".strip()
        )
    if end.report is not None and end.report.outcome is Outcome.STOPPED:
        return Loss(reason=Reason.DISRUPTED, message=f"{name}{where} was stopped on request")
    if end.report is not None and end.report.message:
        return Loss(reason=Reason.PROGRAM_FAILED, message=end.report.message)
    if end.signal in (SIGKILL, SIGTERM):
        return Loss(reason=Reason.KILLED, message=f"{name}{where} was killed (signal {end.signal})")
    words = f": {end.words}" if end.words else ""
    return Loss(
        reason=Reason.PROGRAM_FAILED,
        message=f"{name}{where} ended with exit code {end.exit_code} ({end.reason}){words}",
    )


def failure_of(pod: PodView, loss: Loss, status: Status, now: datetime) -> Failure:
    """A pod's loss as `status.lastFailure` shows it."""
    return Failure(
        reason=loss.reason,
        node=pod.index,
        pod=pod.name,
        pod_uid=pod.uid,
        host_node=pod.host_node,
        exit_code=pod.end.exit_code if pod.end else None,
        message=loss.message[:1024],
        generation=status.generation,
        at=stamp(now),
    )


def same_end(one: Failure, other: Failure) -> bool:
    """Whether both are words of pods that one generation ended with, which it does once."""
    return one.rank is None and other.rank is None and one.generation == other.generation


def knows_more(one: Failure, other: Failure) -> bool:
    """Whether one says why the pod was lost of which the other says only that it was.

    Of the pods that a generation lost together, that is one whose program failed.
    """
    if one.pod_uid is None:
        return False
    if one.reason in RESTARTS and other.reason not in RESTARTS and same_end(one, other):
        return True
    if other.reason is not Reason.POD_LOST or one.reason is Reason.POD_LOST:
        return False
    # A coordinator that follows another knows its pod's index alone.
    if other.pod_uid is None:
        return (one.node, one.generation) == (other.node, other.generation)
    return one.pod_uid == other.pod_uid


def reported(pod: PodView) -> Failure | None:
    """The failure that the launcher itself named in its last words."""
    return pod.end.report.failure if pod.end and pod.end.report else None


def newer(one: Failure | None, other: Failure | None) -> Failure | None:
    """The later failure; where generations and times are equal the second, which comes from closer to it.

    The times are of the clocks of different nodes, so they count within one generation only.
    A coordinator sees that a launcher is gone and repeats that; what the cluster knows of the same pod stays.
    """
    if one is None or other is None:
        return other or one
    if knows_more(one, other):
        return one
    return other if (other.generation, other.at or "") >= (one.generation, one.at or "") else one
