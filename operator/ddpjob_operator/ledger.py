"""Restarts and disruptions: what a job has spent of its budgets, each incident once.

Two see the same incidents: the coordinator (a worker died, a launcher was lost) and the operator (a pod ended). Both
report totals that contain the other's, so the larger one is right. What keeps the operator itself from counting twice,
whatever moment it is killed at, is in the objects and not in its memory:

- a pod without the tracking finalizer, or with a successor, is accounted for;
- `status.incident` is the newest incident counted: (generation, incarnation). A pod of a lower incarnation that ends
  while the job is still at that generation was taken down by the same one; one of a higher waits for the next and
  ends by itself.

The finalizer goes only after the status with the count was written (`desired.py`), so an incident cannot get lost
either. Must not: decide what follows from a count (`status.py`).
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, JobReport, RunState
from ddpjob_operator.ends import RESTARTS, failure_of, knows_more, loss_of, newer, reported
from ddpjob_operator.model import Incident, Misjudged, Status
from ddpjob_operator.observe import PodView


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
            status = replace(status, incident=newest(status, ended, status.next_incarnation))
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
            restart = loss.reason in RESTARTS and (joins or not is_over(status, report))
            status = replace(
                status,
                incident=newest(status, status.generation, after - 1, restart=restart),
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
    """A lost launcher of a coordinator that we know was a restart is noted, once: the newest word that is one."""
    known = status.misjudged or Misjudged()
    told = [f.generation for f in failures if f.generation > known.generation and is_misjudged(f, status)]
    if not told:
        return status
    return replace(status, misjudged=Misjudged(count=known.count + 1, generation=max(told)))


def is_misjudged(failure: Failure, status: Status) -> bool:
    """Whether a coordinator calls a pod lost that we know was a restart, or that went with one.

    A generation ends once, and of the pods that it loses a coordinator names one: we may know of another. What we have
    seen may be behind, and the pod be one of a later generation. A failure with a rank came from a launcher: that its pod
    is lost in a later one is another incident. One without a pod's uid is that of a lost coordinator, which nobody has
    counted.
    """
    if failure.reason is not Reason.POD_LOST or failure.pod_uid is None:
        return False
    incident, last = status.incident, status.last_failure
    if incident is not None and incident.restart and failure.generation == incident.generation:
        return True
    if last is None or last.reason not in RESTARTS or last.pod_uid != failure.pod_uid:
        return False
    return failure.generation == last.generation or (
        last.rank is None and failure.generation > last.generation
    )


def newest(status: Status, generation: int, incarnation: int, *, restart: bool = False) -> Incident:
    """The incident that takes the place of `status.incident`; what its generation ended with stays."""
    old = status.incident
    known = old is not None and old.generation == generation and old.restart
    return Incident(generation=generation, incarnation=incarnation, restart=restart or known)


def is_over(status: Status, report: JobReport | None) -> bool:
    """Whether the generation has ended as far as we know, so that a pod made since is in none.

    Its end may have been counted before we heard of it, as one of the generation before.
    """
    if report is not None and report.state is RunState.WAITING and report.generation == status.generation:
        return True
    return status.incident is not None and status.incident.generation == status.generation


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
