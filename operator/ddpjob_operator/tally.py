"""What a written status adds to the operator's counters.

Why apart: an operator counts what it has written itself, from the status before and the one after: the API server takes
each transition once, so one that was started anew, or a second one, counts nothing again. Must not: count what is
(`census.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ddpjob_api.conditions import Reason
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
    """Why, for as many as were added to restarts and disruptions; the newest by the status, others by the report."""
    count = new.restarts + new.disruptions - old.restarts - old.disruptions
    known = [new.last_failure, *reversed(failures)]
    causes: list[Failure] = []
    for failure in known:
        if failure is None or failure in causes:
            continue
        if failure == old.last_failure:
            break
        causes.append(failure)
    for index in range(count):
        reason = causes[index].reason if index < len(causes) else Reason.UNKNOWN
        yield reason if reason in INCIDENT_REASONS else Reason.UNKNOWN
