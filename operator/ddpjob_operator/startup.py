"""How far a job is on the way from its making, or its resumption, to its first step: three moments, each written once.

Why apart: they are what creation latency is counted by, so they must not depend on when an operator happened to look,
nor be taken twice by one that was started anew. Must not: read the clock; the moments are the cluster's own.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from ddpjob_api.conditions import Condition
from ddpjob_api.spec import Spec
from ddpjob_operator.model import Status, moment_of, stamp
from ddpjob_operator.observe import JobView, PodView


def advanced(
    status: Status, spec: Spec, now_there: Mapping[int, PodView], first_step: float | None, *, now: datetime
) -> Status:
    """The status with the moments that have come.

    Args:
        first_step: Unix time, as a coordinator says. Its clock is another one: where that puts the step before the job was
            active, or after now, it is written as the nearer of the two.
    """
    known = status.startup
    if known is None or spec.suspend or known.first_step_at is not None:
        return status
    pods = list(now_there.values())
    whole = len(pods) == spec.nodes
    if known.pods_created_at is None and whole:
        known = replace(known, pods_created_at=stamp(max(pod.created for pod in pods)))
    if known.pods_running_at is None and whole and all(pod.started for pod in pods):
        known = replace(known, pods_running_at=stamp(max(pod.started_at or now for pod in pods)))
    if first_step is not None:
        since = moment_of(status.active_since) or now
        known = replace(known, first_step_at=stamp(max(since, min(now, moment(first_step, now)))))
    return replace(status, startup=known)


def begun(job: JobView, status: Status) -> datetime:
    """When the way began: the making of the job, or its last resumption where it was ever suspended."""
    suspended = status.condition(Condition.SUSPENDED) is not None
    return (moment_of(status.active_since) if suspended else None) or job.created


def moment(unix: float, otherwise: datetime) -> datetime:
    """The time of a number; `otherwise` where it is none."""
    try:
        return datetime.fromtimestamp(unix, UTC)
    except (ValueError, OverflowError, OSError):
        return otherwise
