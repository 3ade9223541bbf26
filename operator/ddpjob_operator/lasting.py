"""Whether the ranks wait much for data or for gradients, and lastingly: a note in the status, so that it is told once.

Why apart: how well ranks work together is of the last minute, and a minute is no reason for an event; what came before
is known from the status alone, also to an operator that has just begun. Must not: judge a minute
(`ddpjob_api.efficiency`), or make the event (`events.py`).
"""

from datetime import datetime, timedelta

from ddpjob_api.report import JobReport, RunState
from ddpjob_operator.model import Waiting, moment_of, stamp

LASTING = timedelta(minutes=10)
"""It is told after so long without a minute in which they do well, and again only after so long without one in which
they do not: a job that is now above the limits and now below them is told of once, or never."""


def noted(before: Waiting | None, report: JobReport, *, now: datetime) -> Waiting | None:
    """The note by what a coordinator says; as it was where that is nothing, or nothing of steps that are made."""
    if report.efficiency is None or report.state is not RunState.RUNNING or report.hung:
        return before
    told = before is not None and before.told
    much = bool(report.efficiency.waits())
    if much == told:
        return Waiting(told=True) if told else None
    since = moment_of(before.since) if before is not None else None
    if since is None:
        return Waiting(told=told, since=stamp(now))
    if now - since < LASTING:
        return before
    return Waiting(told=True) if much else None


def interrupted(before: Waiting | None) -> Waiting | None:
    """The note while the coordinator is silent: what was told was told, and of these minutes nothing is known."""
    return Waiting(told=True) if before is not None and before.told else None
