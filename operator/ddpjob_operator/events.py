"""Events about a job: what a person reads in `kubectl describe ddpjob`.

Why apart: which changes are worth telling is decided by comparing two statuses, purely; nothing is told twice,
because each change is written once, and told only after it was written.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ddpjob_api.blame import blame
from ddpjob_api.conditions import ADVICE, Condition, Reason
from ddpjob_api.efficiency import LOW_EFFICIENCY, STRAGGLER, Efficiency
from ddpjob_api.spec import API_VERSION, KIND
from ddpjob_operator.lasting import LASTING
from ddpjob_operator.model import Status, Truth, stamp
from ddpjob_operator.observe import JobView

COMPONENT = "ddpjob-operator"
MESSAGE_MAX = 1024
TOLD = {
    (Condition.ADMITTED, Truth.FALSE): "Warning",
    (Condition.RUNNING, Truth.TRUE): "Normal",
    (Condition.HUNG, Truth.TRUE): "Warning",
    (Condition.RESTARTING, Truth.TRUE): "Warning",
    (Condition.SUSPENDED, Truth.TRUE): "Normal",
    (Condition.COMPLETE, Truth.TRUE): "Normal",
    (Condition.FAILED, Truth.TRUE): "Warning",
}
"""Conditions whose change is told, with the event's type."""
QUIET = frozenset({Reason.ALL_PODS_READY, Reason.PODS_STARTING, Reason.SUSPENDED})


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened, past tense, with the cluster's own words."""

    type: str
    reason: str
    message: str


def between(old: Status, new: Status) -> list[Event]:
    """What to tell about the way from one status to the next.

    Of a job that was unknown to run, whose coordinator was silent, it was told before; that it answers again is no event.
    What is to be done about it is told again: it may have begun in the silence.
    """
    told = [
        Event(
            type=kind,
            reason=state.reason if condition is not Condition.RUNNING else "Running",
            message=state.message,
        )
        for (condition, truth), kind in TOLD.items()
        if (state := new.condition(condition)) is not None
        and state.status == truth
        and ((before := old.condition(condition)) is None or before.status not in (truth, Truth.UNKNOWN))
    ]
    ready, before = new.condition(Condition.PODS_READY), old.condition(Condition.PODS_READY)
    troubled = ready is not None and ready.status == Truth.FALSE and ready.reason not in QUIET
    if ready and troubled and not new.finished and (before is None or before.reason != ready.reason):
        told.append(Event(type="Warning", reason=ready.reason, message=ready.message))
    running, before = new.condition(Condition.RUNNING), old.condition(Condition.RUNNING)
    advised = running is not None and running.status == Truth.TRUE and running.reason in ADVICE
    if (
        running
        and advised
        and (not before or (before.reason, before.message) != (running.reason, running.message))
    ):
        told.append(Event(type="Warning", reason=running.reason, message=running.message))
    if old.active_since == new.active_since:  # a resumption forgets the ranks of pods that are gone
        told += [*pace(old.efficiency, new.efficiency), *waits(old, new)]
    suspended = new.condition(Condition.SUSPENDED)
    if suspended and old.runtime and not new.runtime and new.nodes.desired and not new.finished:
        told.append(Event(type="Normal", reason=suspended.reason, message=suspended.message))
    failure = new.last_failure
    if (
        failure is not None
        and failure != old.last_failure
        and not any(blame(failure) in event.message for event in told)
    ):
        told.append(Event(type="Warning", reason=failure.reason.value, message=blame(failure)))
    return told


def was_restored(name: str) -> Event:
    """A child of a job that runs, such as `Service train`."""
    return Event(type="Warning", reason="ChildRestored", message=f"{name} was deleted and is made again")


def pace(old: Efficiency | None, new: Efficiency | None) -> list[Event]:
    """A rank that makes the others wait, and its end."""
    before, now = (old or Efficiency()).sentence(), (new or Efficiency()).sentence()
    if now and now != before:
        return [Event(type="Warning", reason=STRAGGLER, message=now)]
    if before and not now and old is not None:
        text = f"rank {old.slowest_rank} does not make the others wait any more"
        return [Event(type="Normal", reason="StragglerGone", message=text)]
    return []


def waits(old: Status, new: Status) -> list[Event]:
    """All ranks have waited much for data or for gradients, for long enough."""
    now, before = new.waiting, old.waiting
    if new.efficiency is None or now is None or not now.told or (before is not None and before.told):
        return []
    minutes, percent = LASTING // timedelta(minutes=1), new.efficiency.ddp_efficiency_percent
    text = "; ".join(f"{wait.what}: {wait.do}" for wait in new.efficiency.waits())
    whole = f" (DDP efficiency {percent} %)" if percent is not None else ""
    message = f"for {minutes} minutes ranks have waited much{whole}: {text}"
    return [Event(type="Warning", reason=LOW_EFFICIENCY, message=message)] if text else []


def bodies(job: JobView, events: Iterable[Event], *, now: datetime) -> list[dict[str, Any]]:
    """The events as Kubernetes objects; the name follows from the content, so that a repeated one is one."""
    found = []
    for event in events:
        identity = f"{job.uid}|{event.reason}|{event.message}|{stamp(now)}"
        found.append(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": f"{job.key.name}.{hashlib.sha256(identity.encode()).hexdigest()[:16]}",
                    "namespace": job.key.namespace,
                },
                "involvedObject": {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": job.key.name,
                    "namespace": job.key.namespace,
                    "uid": job.uid,
                },
                "type": event.type,
                "reason": event.reason,
                "message": event.message[:MESSAGE_MAX],
                "source": {"component": COMPONENT},
                "reportingComponent": COMPONENT,
                "firstTimestamp": stamp(now),
                "lastTimestamp": stamp(now),
                "count": 1,
            }
        )
    return found
