"""What a job's time went to, in its status: the coordinators' sums, carried over from one to the next.

Why apart: a coordinator tells sums since the job's start (it was given its predecessor's, `for_coordinator`), so the
greater of what is written and what is told is right, whoever is replaced meanwhile; nothing is added twice.
Must not: decide what a second was used for, but at the end for what no coordinator has told.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from ddpjob_api.goodput import Spent, Times, Use
from ddpjob_api.report import JobReport
from ddpjob_operator.model import Status, TimeState, moment_of
from ddpjob_operator.observe import PodView

SLACK = timedelta(minutes=1)
"""By so much a sum may exceed the time a job was active: pods save after a suspension, and clocks differ."""


def told(status: Status, said: Spent | None, pods: Iterable[PodView], *, now: datetime) -> Status:
    """The status with what the coordinators said, and launchers in their last words."""
    for spent in [*([said] if said else []), *last_words(pods)]:
        status = merged(status, spent.times, limit=status.active_for(now) + SLACK)
    return status


def last_words(pods: Iterable[PodView]) -> list[Spent]:
    """Of launchers whose end is not in the status yet."""
    words = [pod.end.report for pod in pods if pod.tracked and pod.end and pod.end.report]
    return [said.spent for said in words if said.spent is not None]


def first_step(status: Status, report: JobReport | None, pods: Iterable[PodView]) -> float | None:
    """When the first step was made since the job was made or resumed, in Unix time; None before it.

    Pods that still save when a job is resumed may say last what was before: a step of that time is none of this one.
    """
    if report is not None and report.spent is not None and report.spent.first_step_at:
        return report.spent.first_step_at
    since = moment_of(status.active_since)
    said = [spent.first_step_at for spent in last_words(pods) if spent.first_step_at]
    return next((unix for unix in said if since is None or unix >= since.timestamp()), None)


def merged(status: Status, times: Times, *, limit: timedelta) -> Status:
    """The greater of each sum; one that is longer than the job is old is not believed."""
    old = status.time or TimeState()
    most = limit.total_seconds()
    sums = {use: whole(times.of(use)) for use in Use}
    fresh = {
        f"{use.value}_seconds": max(old.of(use), seconds if seconds <= most else 0)
        for use, seconds in sums.items()
    }
    return with_time(status, TimeState(**fresh))


def closed(status: Status, *, now: datetime) -> Status:
    """The status of a job that has ended: what nobody has told of is time without pods, or after the training."""
    old = status.time or TimeState()
    rest = int(status.active_for(now).total_seconds()) - old.total
    if rest <= 0:
        return status
    if status.time is None:
        return with_time(status, TimeState(queueing_seconds=rest))
    return with_time(status, replace(old, other_seconds=old.other_seconds + rest))


def with_time(status: Status, time: TimeState) -> Status:
    """The status with these sums, and what follows from them."""
    return replace(status, time=time, goodput_percent=time.goodput)


def for_coordinator(status: Status) -> Spent:
    """What the launcher of index 0 is told, so that it goes on from there."""
    time = status.time or TimeState()
    since = moment_of(status.active_since)
    first = moment_of(status.startup.first_step_at) if status.startup else None
    return Spent(
        times=Times(**{f"{use.value}_seconds": float(time.of(use)) for use in Use}),
        # The sums account for all active time up to some moment, which follows from them.
        until=since.timestamp() + max(0, time.total - status.active_seconds) if since else 0.0,
        first_step_at=first.timestamp() if first else None,
        reached=status.progress.step if status.progress else 0,
    )


def whole(seconds: float) -> int:
    return int(seconds) if math.isfinite(seconds) and seconds > 0 else 0
