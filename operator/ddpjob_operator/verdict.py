"""Whether a job has ended, and how.

Why apart: five things can end a job (its spec, its launchers' last words, its coordinator's word, its budgets, the
clock), and each is one function of what was observed. Must not: change a status (`status.py`).
"""

from dataclasses import dataclass
from datetime import datetime

from ddpjob_api.blame import blame
from ddpjob_api.conditions import FAILURES, Condition, Reason
from ddpjob_api.report import Failure, JobReport, Outcome, RunState, TerminationMessage
from ddpjob_api.spec import Spec
from ddpjob_operator.ledger import accounted
from ddpjob_operator.model import Status
from ddpjob_operator.observe import PodView
from ddpjob_operator.observed import Observed


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a job ended."""

    condition: Condition
    reason: Reason
    message: str


OF_WORKERS = frozenset({Reason.PROGRAM_FAILED, Reason.OOM_KILLED, Reason.KILLED, Reason.NO_PROGRESS})
"""Failures that a restart answers, as long as one is left."""


def invalid(seen: Observed) -> Verdict | None:
    if seen.job.spec is None:
        return Verdict(condition=Condition.FAILED, reason=Reason.INVALID_SPEC, message=seen.job.problem)
    if seen.admission.reason is Reason.INVALID_SPEC:
        return Verdict(condition=Condition.FAILED, reason=Reason.INVALID_SPEC, message=seen.admission.message)
    return None


def ending(pods: tuple[PodView, ...], spec: Spec | None) -> Verdict | None:
    """What the launchers' last words say about the job as a whole."""
    said = [pod for pod in sorted(pods, key=lambda pod: pod.index) if pod.end and pod.end.report]
    if any(pod.end and pod.end.done for pod in said):
        # A launcher says Done only after the coordinator confirmed that every worker of every node ended with 0.
        return Verdict(
            condition=Condition.COMPLETE,
            reason=Reason.ALL_RANKS_SUCCEEDED,
            message="every rank ended with exit code 0",
        )
    for pod in said:
        report = pod.end.report if pod.end else None
        if report is None or accounted(pod, pods) or spec is None:
            continue
        failure = report.failure
        words = report.message
        if failure and blame(failure) not in words:
            words = f"{blame(failure)}; {words}" if words else blame(failure)
        if report.outcome is Outcome.REFUSED:
            return Verdict(condition=Condition.FAILED, reason=Reason.CONFIGURATION_REFUSED, message=words)
        if report.outcome is Outcome.FAILED:
            return failed(report, failure, spec, words)
    return None


def announced(report: JobReport | None, spec: Spec | None) -> Verdict | None:
    """A failure that the coordinator has decided on, before the last words of a pod say so.

    They may never come, and then the budget would be found with one try left.
    """
    if report is None or spec is None or report.state is not RunState.FINISHED:
        return None
    words = blame(report.last_failure) if report.last_failure else "the coordinator has ended the job"
    if report.outcome is Outcome.REFUSED:
        return Verdict(condition=Condition.FAILED, reason=Reason.CONFIGURATION_REFUSED, message=words)
    return failed(report, report.last_failure, spec, words) if report.outcome is Outcome.FAILED else None


def failed(
    report: JobReport | TerminationMessage, failure: Failure | None, spec: Spec, words: str
) -> Verdict:
    """The verdict about a job that launchers say has failed."""
    reason = failure.reason if failure else Reason.PROGRAM_FAILED
    if report.disruptions > spec.recovery.max_disruptions:
        reason = Reason.MAX_DISRUPTIONS_EXCEEDED
    elif reason in OF_WORKERS and failure and report.restarts >= spec.recovery.max_restarts:
        reason = Reason.MAX_RESTARTS_EXCEEDED
    if reason not in FAILURES:  # launchers say it, and programs can say the same
        reason = Reason.UNKNOWN
    return Verdict(condition=Condition.FAILED, reason=reason, message=words)


def overspent(status: Status, spec: Spec, *, now: datetime) -> Verdict | None:
    """Budgets and the clock."""
    why = f" The last: {blame(status.last_failure)}" if status.last_failure else ""
    limits = spec.recovery
    if status.restarts > limits.max_restarts:
        message = f"restarted {limits.max_restarts} times, which recovery.maxRestarts allows, and failed again.{why}"
        return Verdict(condition=Condition.FAILED, reason=Reason.MAX_RESTARTS_EXCEEDED, message=message)
    if status.disruptions > limits.max_disruptions:
        message = f"disrupted more often than recovery.maxDisruptions ({limits.max_disruptions}) allows.{why}"
        return Verdict(condition=Condition.FAILED, reason=Reason.MAX_DISRUPTIONS_EXCEEDED, message=message)
    if spec.active_deadline is not None and status.active_for(now) >= spec.active_deadline:
        seconds = int(spec.active_deadline.total_seconds())
        return Verdict(
            condition=Condition.FAILED,
            reason=Reason.DEADLINE_EXCEEDED,
            message=f"active for activeDeadlineSeconds ({seconds}); suspended time does not count",
        )
    return None
