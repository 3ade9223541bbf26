"""When a job is to be looked at again although nothing happens.

Why apart: each deadline and pause of a job is one moment that follows from its status and from what was observed.
Must not: act on any of them.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from ddpjob_api.conditions import Reason
from ddpjob_api.spec import Spec
from ddpjob_operator import rendezvous
from ddpjob_operator.desired import members
from ddpjob_operator.model import Status, moment_of
from ddpjob_operator.observed import Admission, Observed
from ddpjob_operator.progress import fold_report

RETRY_SECONDS = 5.0
"""What the cluster refused is tried again after this."""


def moments(
    status: Status,
    spec: Spec | None,
    seen: Observed,
    *,
    tried_again: bool,
    secret: datetime | None,
    hints: Iterable[datetime],
    now: datetime,
    progress_every: timedelta,
) -> list[datetime]:
    """All that are known of a job with that status.

    Args:
        tried_again: as `is_tried_again` says.
        secret: when its Secret is looked for again.
        hints: when events are asked about pods that are creating their containers.
    """
    if status.finished:
        end = expiry(status, spec)
        return [end] if end is not None else []
    if spec is None or spec.suspend:
        return []
    due = [*hints]
    if spec.active_deadline is not None and status.active_since:
        due.append(now + spec.active_deadline - status.active_for(now))
    if secret is not None and status.runtime is not None:
        due.append(secret)
    if status.runtime is None and not tried_again:  # its pods are made anew: the next look does
        due.append(now + timedelta(seconds=RETRY_SECONDS if any(pod.live for pod in seen.pods) else 0))
    met_by = rendezvous.deadline(status, spec, members(seen.pods, spec.nodes), seen.word)
    if met_by is not None and status.runtime is not None:
        due.append(met_by)
    if tried_again:
        due.append(now + timedelta(seconds=RETRY_SECONDS))
    written_at = moment_of(status.progress.updated_at) if status.progress else None
    if written_at is not None:
        talked = fold_report(status, seen.report, silent=seen.silent, now=now)
        due += [written_at + progress_every] if talked != status else []
    return due


def expiry(status: Status, spec: Spec | None) -> datetime | None:
    """When a job that has ended is deleted; None: never, or it has not."""
    end = moment_of(status.completion_time)
    if not status.finished or spec is None or spec.ttl_after_finished is None or end is None:
        return None
    return end + spec.ttl_after_finished


def is_tried_again(status: Status, spec: Spec | None, admission: Admission) -> bool:
    """Whether what stood before the first pod may be gone at the next look."""
    waits = spec is not None and not spec.suspend and not status.finished
    return waits and admission.reason not in (Reason.ACCEPTED, Reason.INVALID_SPEC)
