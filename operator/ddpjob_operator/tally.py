"""What a written status adds to the operator's counters.

Why apart: an operator counts what it has written itself, from the status before and the one after: the API server takes
each transition once, so one that was started anew, or a second one, counts nothing again. Must not: count what is
(`census.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.goodput import Use
from ddpjob_api.report import Failure, JobReport
from ddpjob_operator.model import Startup, Status, TimeState, moment_of
from ddpjob_operator.observe import JobView
from ddpjob_operator.startup import begun

INCIDENT_REASONS = (
    Reason.PROGRAM_FAILED, Reason.OOM_KILLED, Reason.KILLED, Reason.DISRUPTED, Reason.NODE_LOST, Reason.POD_LOST,
    Reason.NO_PROGRESS, Reason.UNKNOWN,
)  # fmt: skip
"""What an incident can be counted as; anything else is Unknown."""
NO_INCIDENTS = frozenset({
    Reason.INVALID_SPEC, Reason.CONFIGURATION_REFUSED, Reason.RENDEZVOUS_TIMEOUT, Reason.DEADLINE_EXCEEDED,
    Reason.MAX_DISRUPTIONS_EXCEEDED,
})  # fmt: skip
"""Reasons of Failed behind which is no incident, or one that `disruptions` counts."""


class Stage(StrEnum):
    """How far a job is that was just made or resumed."""

    PODS_CREATED = "pods_created"
    PODS_RUNNING = "pods_running"
    FIRST_STEP = "first_step"


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What is to be counted."""

    stages: Mapping[Stage, float]
    """Reached just now, with the seconds since the way began."""
    incidents: tuple[Reason, ...]
    seconds: Mapping[Use, int]


def between(job: JobView, old: Status, new: Status, report: JobReport | None) -> Tally:
    """What lies between two statuses of one job."""
    before, after = old.time or TimeState(), new.time or TimeState()
    return Tally(
        stages=dict(stages(job, old, new)),
        incidents=tuple(incidents(old, new, report.failures if report else ())),
        seconds={use: more for use in Use if (more := after.of(use) - before.of(use)) > 0},
    )


def stages(job: JobView, old: Status, new: Status) -> Iterator[tuple[Stage, float]]:
    """The moments that stand in the new status only; those before a resumption are another way's."""
    resumed = new.active_since is not None and old.active_since != new.active_since
    before = (old.startup if not resumed else None) or Startup()
    after = new.startup or Startup()
    for stage in Stage:
        at = moment_of(getattr(after, f"{stage.value}_at"))
        if at is not None and getattr(before, f"{stage.value}_at") is None:
            yield stage, max(0.0, (at - begun(job, new)).total_seconds())


def incidents(old: Status, new: Status, failures: tuple[Failure, ...]) -> Iterator[Reason]:
    """Why, for as many as were added to restarts and disruptions, and for what the job has just failed of.

    The newest by the status, others by the report.
    """
    last = fatal(old, new)
    count = new.restarts + new.disruptions - old.restarts - old.disruptions + (last is not None)
    known = [new.last_failure, *reversed(failures)]
    causes: list[Failure] = []
    for failure in known:
        if failure is None or failure in causes:
            continue
        if failure == old.last_failure:
            break
        causes.append(failure)
    reasons = [failure.reason for failure in causes]
    if last is not None:
        reasons[:1] = [last]
    for index in range(count):
        reason = reasons[index] if index < len(reasons) else Reason.UNKNOWN
        yield reason if reason in INCIDENT_REASONS else Reason.UNKNOWN


def fatal(old: Status, new: Status) -> Reason | None:
    """What the job has just failed of, where neither a restart nor a disruption stands for it.

    Restarts are those that were made: a failure that found none left, or that none would help, is not among them.
    """
    failed, last = new.condition(Condition.FAILED), new.last_failure
    if old.finished or failed is None or not new.is_true(Condition.FAILED) or failed.reason in NO_INCIDENTS:
        return None
    if last is not None and is_told(last, old.last_failure):
        return None
    if failed.reason in INCIDENT_REASONS or last is None:
        return Reason(failed.reason) if failed.reason in INCIDENT_REASONS else Reason.UNKNOWN
    # The same exception over and over is the program's, whoever told of it first.
    return Reason.PROGRAM_FAILED if last.reason is Reason.REPEATED_FAILURE else last.reason


def is_told(failure: Failure, before: Failure | None) -> bool:
    """Whether the end of this failure's pod was counted before what made it end was known.

    A failure without a rank is a word of a pod's end; a generation ends once, and in it a pod.
    """
    if before is None or before.rank is not None or before.pod_uid is None:
        return False
    return (before.pod_uid, before.generation) == (failure.pod_uid, failure.generation)
