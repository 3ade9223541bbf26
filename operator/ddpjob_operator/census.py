"""How many jobs are in which state, as gauges show it.

Why apart: pure counts over what is known of all jobs, so that no gauge depends on what this operator happened to see
happen. Must not: count events (`tally.py`), or label anything by job.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.metrics import LOCAL_PHASES
from ddpjob_operator.model import Status, Truth, moment_of
from ddpjob_operator.observe import JobView

PERIODS = 3
"""A checkpoint is late after so many times `everySeconds`,"""
LONG = timedelta(hours=6)
"""and where only steps are counted, after this."""
WAITING_PERCENT = 50
"""A job is inefficient whose median rank waits for more than this part of the time, for other ranks and for data."""
KNOWN_CONDITIONS = frozenset(condition.value for condition in Condition)
KNOWN_REASONS = frozenset(reason.value for reason in Reason)


@dataclass(frozen=True, kw_only=True)
class Census:
    """Numbers of jobs."""

    by_state: Counter[str]
    by_condition: Counter[tuple[str, str]]
    """(condition, reason) of conditions that are True."""
    checkpoint_failing: int
    stale_checkpoint: int
    slow: Counter[str]
    """Running jobs in which a rank makes the others wait, by its cause."""
    inefficient: int


def take(jobs: Iterable[JobView], *, now: datetime) -> Census:
    """Count them."""
    jobs = list(jobs)
    return Census(
        by_state=Counter(job.status.state or "New" for job in jobs),
        by_condition=Counter(pair for job in jobs for pair in true_conditions(job)),
        checkpoint_failing=sum(
            (Condition.RUNNING.value, Reason.CHECKPOINT_FAILED.value) in true_conditions(job) for job in jobs
        ),
        stale_checkpoint=sum(is_stale(job, now) for job in jobs),
        slow=Counter(cause for job in jobs if (cause := slow_cause(job)) is not None),
        inefficient=sum(is_inefficient(job) for job in jobs),
    )


def true_conditions(job: JobView) -> list[tuple[str, str]]:
    """Its true conditions with their reasons, of the closed lists only: another version may have written others."""
    return [
        (found.type, found.reason if found.reason in KNOWN_REASONS else Reason.UNKNOWN.value)
        for found in job.status.conditions
        if found.status == Truth.TRUE and found.type in KNOWN_CONDITIONS
    ]


def slow_cause(job: JobView) -> str | None:
    """What a rank is slower in that makes the others wait, while the job runs; of the closed list only."""
    found = job.status.efficiency
    if found is None or found.slowest_rank is None or not job.status.is_true(Condition.RUNNING):
        return None
    return found.slowest_rank_cause if found.slowest_rank_cause in LOCAL_PHASES else None


def is_inefficient(job: JobView) -> bool:
    """Whether a job that runs spends most of its time on waiting."""
    found = job.status.efficiency
    if found is None or not job.status.is_true(Condition.RUNNING):
        return False
    return (found.exposed_communication_percent or 0) + (found.data_wait_percent or 0) > WAITING_PERCENT


def is_stale(job: JobView, now: datetime) -> bool:
    """Whether a job that runs and should save now and then has not for long, time in which it did not run left out.

    How a plain script saves is not seen: only one whose framework's checkpoints are known is judged.
    """
    policy = job.spec.checkpoint if job.spec is not None else None
    if job.spec is None or policy is None or not (policy.every or policy.every_steps):
        return False
    progress, startup = job.status.progress, job.status.startup
    saved = moment_of(progress.checkpoint_at) if progress else None
    stepped = moment_of(startup.first_step_at) if startup else None
    if not job.status.is_true(Condition.RUNNING) or (saved is None and job.spec.task is None):
        return False
    if saved is None and stepped is None:
        return False
    since = [moment for moment in (saved, stepped, running_since(job.status)) if moment is not None]
    return now - max(since) > (PERIODS * policy.every if policy.every else LONG)


def running_since(status: Status) -> datetime | None:
    """Since when a job runs: that its coordinator was silent for a while, which only Running tells, ends nothing."""
    known = [status.condition(kind) for kind in (Condition.RUNNING, Condition.RENDEZVOUS_READY)]
    true = [found for found in known if found is not None and found.status == Truth.TRUE]
    moments = [moment for found in true if (moment := moment_of(found.last_transition_time)) is not None]
    return min(moments, default=None)
