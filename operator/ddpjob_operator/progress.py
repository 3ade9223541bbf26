"""Progress and results in a status: the coordinator's numbers, and the texts of the columns.

Why apart: these fields change all the time and are written seldom, unlike everything else in a status.
Must not: touch conditions or counts.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Failure, JobReport, Outcome, Progress, TerminationMessage
from ddpjob_operator import lasting
from ddpjob_operator.model import ETA_MAX, RESULT_FIELDS, ProgressState, Status, moment_of, stamp
from ddpjob_operator.observe import PodView

RESULT_TEXT = 1024
INT64 = 2**63 - 1
INT32 = 2**31 - 1


def fold_report(status: Status, report: JobReport | None, *, silent: bool, now: datetime) -> Status:
    """What the coordinator says about the training, in the status.

    Args:
        silent: it has not answered for some time; the numbers it said last are the newest there are, and no more than that.
    """
    if silent:
        status = replace(status, waiting=lasting.interrupted(status.waiting))
    if report is None:
        return status
    if not silent:
        status = replace(status, waiting=lasting.noted(status.waiting, report, now=now))
    return folded(
        status, report.progress, report.result, now=now, ddp=report.ddp, efficiency=report.efficiency
    )


def fold_words(status: Status, pods: Iterable[PodView], *, now: datetime | None = None) -> Status:
    """What launchers said last, in the status; of several the lowest index knows most."""
    said = [pod for pod in pods if pod.end and pod.end.report and pod.tracked]
    for pod in sorted(said, key=lambda pod: (pod.incarnation, -pod.index)):
        words = pod.end.report if pod.end else None
        # The end of a job is said to every launcher with its result; before that only index 0 knows one.
        whole = words is not None and words.outcome is Outcome.DONE
        if words is not None and (pod.index == 0 or whole or not status.result):
            # How well ranks worked together that did not reach the end says nothing of those that go on for them.
            efficiency = words.efficiency if whole else None
            status = folded(
                status, words.progress, words.result, now=now, ddp=words.ddp, efficiency=efficiency
            )
    return status


def words_of(pods: Iterable[PodView]) -> Failure | None:
    """The failure that a launcher of this end names, the lowest index first."""
    reports: list[TerminationMessage] = [
        pod.end.report
        for pod in sorted(pods, key=lambda pod: pod.index)
        if pod.tracked and pod.end and pod.end.report
    ]
    return next((report.failure for report in reports if report.failure), None)


def folded(
    status: Status,
    progress: Progress | None,
    result: Mapping[str, Any],
    *,
    now: datetime | None,
    ddp: Any,
    efficiency: Efficiency | None,
) -> Status:
    old = status.progress
    new = old
    if progress is not None and (progress.step > 0 or progress.total_steps is not None):
        new = state_of(progress)
        # A process that has saved nothing yet knows no time.
        if new.checkpoint_at is None and old is not None:
            new = replace(new, checkpoint_at=old.checkpoint_at)
        if old is not None and replace(old, updated_at=None) == new:
            new = old
        else:
            new = replace(new, updated_at=stamp(now) if now else (old.updated_at if old else None))
    return replace(
        status,
        progress=new,
        result=bounded(result) if result else status.result,
        ddp=ddp if ddp is not None else status.ddp,
        efficiency=efficiency if efficiency is not None else status.efficiency,
    )


def state_of(progress: Progress) -> ProgressState:
    """The numbers as the API server takes them; it refuses a whole status for one that does not fit its field."""
    step, total = min(progress.step, INT64), whole(progress.total_steps)
    percent = max(0, min(100, step * 100 // total)) if total else None
    finished = total is not None and step >= total
    eta = None
    if progress.eta is not None and math.isfinite(progress.eta) and not finished:
        eta = whole(max(0, round(progress.eta)))
    words = duration(eta) if eta is not None else ""
    saved = moment_of(progress.checkpoint_at)
    return ProgressState(
        step=step,
        total_steps=total,
        epoch=whole(progress.epoch, most=INT32),
        percent=percent,
        text=f"{percent} %" if percent is not None else f"step {step}",
        loss=number(progress.loss),
        samples_per_second=number(progress.samples_per_second),
        eta_seconds=eta,
        eta=words if 0 < len(words) <= ETA_MAX else None,
        checkpoint_step=whole(progress.checkpoint_step),
        # The API server takes no status with a text here that is no time.
        checkpoint_at=stamp(saved) if saved is not None else None,
    )


def whole(value: int | None, *, most: int = INT64) -> int | None:
    """None for what no field of the status holds, like `max_steps=sys.maxsize` after its way through a float."""
    return value if value is not None and -most <= value <= most else None


def number(value: float | None) -> float | None:
    """Six digits are enough for a status; NaN and infinity are no JSON."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def duration(seconds: int) -> str:
    """`45s`, `12m`, `3h20m`, `2d4h`: two units at most, as kubectl writes ages."""
    if seconds < 120:
        return f"{seconds}s"
    minutes = seconds // 60
    if minutes < 120:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d{hours}h" if hours else f"{days}d"


def bounded(result: Mapping[str, Any]) -> dict[str, Any]:
    """JSON scalars, as many as the CRD takes; an integer of more than 64 bits does not come back as it was written."""
    kept: dict[str, Any] = {}
    for name, value in list(result.items())[:RESULT_FIELDS]:
        if isinstance(value, str):
            kept[name] = value[:RESULT_TEXT]
        elif isinstance(value, int):
            if whole(value) is not None:
                kept[name] = value
        elif value is None or (isinstance(value, float) and math.isfinite(value)):
            kept[name] = value
    return kept
