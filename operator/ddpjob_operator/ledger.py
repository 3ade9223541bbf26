"""Restarts and disruptions: what a job has spent of its budgets, each incident once.

Two see the same incidents: the coordinator (a worker died, a launcher was lost) and the operator (a pod ended). Both
report totals that contain the other's, so the larger one is right. What keeps the operator itself from counting twice,
whatever moment it is killed at, is in the objects and not in its memory:

- a pod without the tracking finalizer, or with a successor, is accounted for;
- `status.incident` is the newest incident counted: (generation, incarnation). A pod of a lower incarnation that ends
  while the job is still at that generation was taken down by the same one.

The finalizer goes only after the status with the count was written (`desired.py`), so an incident cannot get lost
either. Must not: decide what follows from a count (`status.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, JobReport, Outcome, RunState, out_of_memory
from ddpjob_operator.model import Incident, Misjudged, Status, stamp
from ddpjob_operator.observe import PodView

RESTARTS = frozenset({Reason.PROGRAM_FAILED, Reason.OOM_KILLED, Reason.NO_PROGRESS})
"""Failures of the program; everything else is a disruption."""
SIGTERM, SIGKILL = 15, 9


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why a pod does not take part any more."""

    reason: Reason
    message: str


def account(
    status: Status,
    pods: Iterable[PodView],
    report: JobReport | None,
    *,
    now: datetime,
    leaving: bool,
    nodes: int | None,
) -> Status:
    """The status with new incidents counted and the replacements' number moved past every pod that ended.

    Args:
        leaving: the pods go because the job is suspended or at its end: nothing is counted.
        nodes: of a job that had more before it was suspended, pods beyond them are not replaced, and none of its losses.
    """
    pods = sorted(pods, key=lambda pod: (pod.created, pod.index))
    known: set[str] = set()
    if report is not None:
        status = judged_again(status, report.failures)
        if report.restarts > status.restarts or report.disruptions > status.coordinators_disruptions:
            # The coordinator has counted something. Pods of that generation that we see ending are part of it; one
            # that runs by now has lost nothing yet.
            ended = report.generation - (report.state is RunState.RUNNING)
            status = replace(status, incident=Incident(generation=ended, incarnation=status.next_incarnation))
        status = replace(
            status,
            restarts=max(status.restarts, report.restarts),
            disruptions=max(status.disruptions, own(status, report.disruptions)),
            generation=max(status.generation, report.generation),
            last_failure=newer(status.last_failure, report.last_failure),
        )
        known = {each.pod_uid for each in report.failures if each.pod_uid and is_end(each, status.generation)}
    lost = [pod for pod in pods if not pod.live and not (pod.end and pod.end.done)]
    after = max([status.next_incarnation, *(pod.incarnation + 2 for pod in pods if not pod.live)])
    if leaving:
        status = dismissed(status, pods)
        after = max(after, status.next_incarnation)
    else:
        for pod in lost:
            if accounted(pod, pods) or (nodes is not None and pod.index >= nodes):
                continue
            loss = loss_of(pod)
            failure = failure_of(pod, loss, status, now)
            last = status.last_failure
            known_restart = last is not None and last.reason in RESTARTS
            joins = same_incident(pod, status.incident, status.generation)
            if joins and (loss.reason not in RESTARTS or known_restart):
                if last is None or last.generation < status.generation or knows_more(failure, last):
                    status = replace(status, last_failure=failure)
                continue
            after = past_all(pods, after)
            status = replace(
                status,
                incident=Incident(generation=status.generation, incarnation=after - 1),
                last_failure=reported(pod) or newer(failure, status.last_failure),
            )
            if loss.reason in RESTARTS:
                instead = joins and last is not None and knows_more(failure, last)
                status = restarted(status, report, instead=instead)
            elif pod.uid not in known:
                status = replace(status, disruptions=status.disruptions + 1)
    for pod in pods:
        said = pod.end.report if pod.end else None
        if said is not None and pod.tracked:
            status = replace(
                status,
                restarts=max(status.restarts, said.restarts),
                disruptions=max(status.disruptions, own(status, said.disruptions)),
                generation=max(status.generation, said.generation),
            )
    return replace(status, next_incarnation=after)


def is_end(failure: Failure, generation: int) -> bool:
    """Whether a coordinator's failure may be the end of its pod: one of a rank is not, once its generation is over."""
    return failure.rank is None or failure.generation == generation


def own(status: Status, disruptions: int) -> int:
    """A coordinator's total without what were restarts."""
    return disruptions - (status.misjudged.count if status.misjudged else 0)


def restarted(status: Status, report: JobReport | None, *, instead: bool) -> Status:
    """One restart more, in the place of the disruption that the same incident was taken for.

    A coordinator sees only that a launcher is gone and calls it a disruption; we know better. `instead`: it was our own
    word of another pod; what the coordinator holds on to stays.
    """
    status = replace(status, restarts=status.restarts + 1)
    again = judged_again(status, report.failures if report else ())
    if again == status and not instead:
        return status
    told = own(again, report.disruptions) if report else 0
    return replace(again, disruptions=max(0, told, again.disruptions - 1))


def judged_again(status: Status, failures: Iterable[Failure]) -> Status:
    """A lost launcher of a coordinator that we know was a restart (`last_failure`) is noted, once.

    A failure with a rank came from a launcher and carries its own generation: that its pod is lost in a later one is
    another incident. One without is our own word of a pod's end, and a pod ends once. So does a generation: of the pods
    that it loses a coordinator names one, and we may know of another. A failure without a pod's uid is that of a lost
    coordinator, which nobody has counted.
    """
    last, known = status.last_failure, status.misjudged or Misjudged()
    if last is None or last.reason not in RESTARTS or last.pod_uid in (None, known.pod_uid):
        return status
    if not any(
        f.reason is Reason.POD_LOST
        and f.pod_uid is not None
        and (
            same_end(f, last)
            or (f.pod_uid == last.pod_uid and (last.rank is None or f.generation == last.generation))
        )
        for f in failures
    ):
        return status
    return replace(status, misjudged=Misjudged(count=known.count + 1, pod_uid=last.pod_uid))


def dismissed(status: Status, pods: Iterable[PodView]) -> Status:
    """All pods go by our own will: what ends is counted neither now nor if the last goes when new ones are there."""
    after = past_all(pods, status.next_incarnation)
    incident = Incident(generation=status.generation, incarnation=max(0, after - 1))
    return replace(status, incident=incident, next_incarnation=after)


def past_all(pods: Iterable[PodView], after: int) -> int:
    """A number for replacements that is higher than that of any pod there is."""
    return max([after, *(pod.incarnation + 2 for pod in pods)])


def accounted(pod: PodView, pods: Iterable[PodView]) -> bool:
    """Whether an earlier status already tells of this pod's end."""
    return not pod.tracked or any(
        other.index == pod.index and other.incarnation > pod.incarnation for other in pods
    )


def same_incident(pod: PodView, incident: Incident | None, generation: int) -> bool:
    return (
        incident is not None and incident.generation == generation and pod.incarnation < incident.incarnation
    )


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
