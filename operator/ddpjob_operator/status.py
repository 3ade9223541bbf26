"""The status a job should have, as a pure function of what was observed and what its status was.

Why apart: conditions, counters and the verdict are what people and programs rely on; they can be tested as a table.
Must not: talk to the API or read the clock (it is an argument). `ledger.py` counts, `trouble.py` says what holds pods
up, `progress.py` writes numbers for people.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ddpjob_api import rules
from ddpjob_api.codec import dotted
from ddpjob_api.conditions import ADVICE, Condition, Reason
from ddpjob_api.plan import plan
from ddpjob_api.report import Failure, JobReport, Outcome, RunState, TerminationMessage
from ddpjob_api.spec import Spec
from ddpjob_operator import rendezvous
from ddpjob_operator.desired import members
from ddpjob_operator.ledger import account, accounted, dismissed
from ddpjob_operator.model import Nodes, Rendezvous, Runtime, Status, Truth, moment_of, set_condition, stamp
from ddpjob_operator.observe import JobView, PodView, Waiting
from ddpjob_operator.progress import fold_report, fold_words, words_of
from ddpjob_operator.trouble import Trouble, trouble_of


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What was found out before the first pod."""

    reason: Reason
    """Accepted, InvalidSpec, NameConflict, or what PodsReady carries while no pod can be made."""
    message: str = ""


OF_WORKERS = frozenset({Reason.PROGRAM_FAILED, Reason.OOM_KILLED, Reason.KILLED, Reason.NO_PROGRESS})
"""Failures that a restart answers, as long as one is left."""
RUNS = "the workers of every node run"
ACCEPTED = Admission(reason=Reason.ACCEPTED, message="the spec is valid and its pods can be made")


@dataclass(frozen=True, kw_only=True)
class Observed:
    """Everything a status follows from."""

    job: JobView
    pods: tuple[PodView, ...]
    """The job's own, ended and leaving ones included."""
    admission: Admission
    runtime: Runtime
    """What a first pod made now would be made from."""
    report: JobReport | None = None
    """What the coordinator of the live pod of index 0 said last."""
    refused: Trouble | None = None
    """Why the API server did not take a pod."""
    nodes: Trouble | None = None
    """What is known against the nodes of its pods."""
    hints: Mapping[str, Waiting] = field(default_factory=dict)
    """By pod uid: what the cluster's events say about a pod that waits without a reason of its own."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a job ended."""

    condition: Condition
    reason: Reason
    message: str


def advance(seen: Observed, *, now: datetime, progress_every: timedelta) -> Status:
    """The next status. Equal to the present one when nothing happened."""
    old = seen.job.status
    fresh = replace(old, observed_generation=seen.job.generation)
    if old.finished:
        # A job that ended is never looked at as a running one again; only its last words may still come in.
        return counted(
            fold_words(replace(fresh, observed_generation=old.observed_generation), seen.pods), seen
        )
    spec = seen.job.spec
    verdict = invalid(seen) or ending(seen.pods, spec) or announced(seen.report, spec)
    leaving = verdict is not None or (spec is not None and spec.suspend) or old.apart_until(now) is not None
    fresh = account(fresh, seen.pods, seen.report, now=now, leaving=leaving)
    if spec is not None and verdict is None:
        fresh = on_the_clock(fresh, seen, spec, now=now)
        if seen.report is None or seen.report.state is not RunState.FINISHED:  # the launchers' own words come
            verdict = overspent(fresh, spec, now=now)
            if verdict is None and old.apart_until(now) is None:
                fresh, verdict = apart(fresh, seen, spec, now=now)
    if verdict is not None:
        fresh = concluded(fresh, seen, verdict, now=now)
    elif spec is not None:
        fresh = conditions(fresh, seen, spec, now=now)
    fresh = summary(counted(fresh, seen))
    talked = fold_words(fold_report(fresh, seen.report, now=now), seen.pods, now=now)
    if fresh != old or verdict is not None or progress_due(old, now, progress_every):
        return talked
    return fresh


def progress_due(status: Status, now: datetime, every: timedelta) -> bool:
    at = moment_of(status.progress.updated_at) if status.progress else None
    return at is None or now - at >= every


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
        words = report.message or (failure.message if failure else "")
        if failure and failure.message and failure.message not in words:
            words = f"{failure.message}; {words}" if words else failure.message
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
    words = report.last_failure.message if report.last_failure else "the coordinator has ended the job"
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
    return Verdict(condition=Condition.FAILED, reason=reason, message=words)


def on_the_clock(status: Status, seen: Observed, spec: Spec, *, now: datetime) -> Status:
    """The runtime pinned at the first pod and freed by suspension, and the seconds the job was active."""
    if spec.suspend:
        since = moment_of(status.active_since)
        spent = int((now - since).total_seconds()) if since else 0
        return replace(
            status, runtime=None, active_since=None, active_seconds=status.active_seconds + max(0, spent),
            rendezvous=None,
        )  # fmt: skip
    if status.runtime is None and seen.admission.reason is Reason.ACCEPTED:
        return replace(
            status,
            runtime=seen.runtime,
            start_time=status.start_time or stamp(now),
            active_since=stamp(now),
            next_incarnation=max(1, status.next_incarnation),
        )
    return status


def active_for(status: Status, now: datetime) -> timedelta:
    """How long the job was not suspended."""
    since = moment_of(status.active_since)
    return timedelta(seconds=status.active_seconds) + (now - since if since else timedelta())


def overspent(status: Status, spec: Spec, *, now: datetime) -> Verdict | None:
    """Budgets and the clock."""
    why = f" The last: {status.last_failure.message}" if status.last_failure else ""
    limits = spec.recovery
    if status.restarts > limits.max_restarts:
        message = f"restarted {limits.max_restarts} times, which recovery.maxRestarts allows, and failed again.{why}"
        return Verdict(condition=Condition.FAILED, reason=Reason.MAX_RESTARTS_EXCEEDED, message=message)
    if status.disruptions > limits.max_disruptions:
        message = f"disrupted more often than recovery.maxDisruptions ({limits.max_disruptions}) allows.{why}"
        return Verdict(condition=Condition.FAILED, reason=Reason.MAX_DISRUPTIONS_EXCEEDED, message=message)
    if spec.active_deadline is not None and active_for(status, now) >= spec.active_deadline:
        seconds = int(spec.active_deadline.total_seconds())
        return Verdict(
            condition=Condition.FAILED,
            reason=Reason.DEADLINE_EXCEEDED,
            message=f"active for activeDeadlineSeconds ({seconds}); suspended time does not count",
        )
    return None


def apart(status: Status, seen: Observed, spec: Spec, *, now: datetime) -> tuple[Status, Verdict | None]:
    """A gang that did not meet in time: its pods go, so that its nodes are free, and it tries again or has failed."""
    now_there = members(seen.pods, spec.nodes)
    due = rendezvous.deadline(status, spec, now_there, seen.report)
    if due is None or now < due:
        return status, None
    seconds = int(spec.recovery.rendezvous_timeout.total_seconds())
    trouble = trouble_of(seen, now_there)
    why = trouble.message if trouble else missing(seen.report, spec, now_there)
    attempts = (status.rendezvous.attempts if status.rendezvous else 0) + 1
    message = f"the ranks did not meet within recovery.rendezvousTimeoutSeconds ({seconds})"
    if attempts >= rendezvous.ATTEMPTS:
        message = f"{message} in {attempts} attempts: {why}"
        return status, Verdict(condition=Condition.FAILED, reason=Reason.RENDEZVOUS_TIMEOUT, message=message)
    again = stamp(now + rendezvous.pause(seen.job.uid, attempts))
    message = f"{message}: {why}; all pods are deleted and made again at {again} ({attempts} of {rendezvous.ATTEMPTS} attempts)"
    status = replace(dismissed(status, seen.pods), rendezvous=Rendezvous(attempts=attempts, retry_at=again))
    return (
        set_condition(status, Condition.PODS_READY, Truth.FALSE, Reason.RENDEZVOUS_TIMEOUT, message, now=now),
        None,
    )


def concluded(status: Status, seen: Observed, verdict: Verdict, *, now: datetime) -> Status:
    """The conditions of a job that has ended."""
    status = replace(
        status,
        completion_time=status.completion_time or stamp(now),
        restarts=min(status.restarts, seen.job.spec.recovery.max_restarts)
        if seen.job.spec
        else status.restarts,
        last_failure=words_of(seen.pods) or status.last_failure,
    )
    status = set_condition(status, verdict.condition, Truth.TRUE, verdict.reason, verdict.message, now=now)
    if verdict.reason is Reason.INVALID_SPEC and status.runtime is None:
        return set_condition(
            status, Condition.ADMITTED, Truth.FALSE, verdict.reason, verdict.message, now=now
        )
    for kind in (
        Condition.PODS_READY,
        Condition.RENDEZVOUS_READY,
        Condition.RUNNING,
        Condition.RESTARTING,
        Condition.HUNG,
    ):
        if status.condition(kind) is not None:
            status = set_condition(status, kind, Truth.FALSE, verdict.reason, "the job has ended", now=now)
    return status


def conditions(status: Status, seen: Observed, spec: Spec, *, now: datetime) -> Status:
    """The conditions of a job that has not ended."""

    def put(kind: Condition, truth: bool, reason: Reason, message: str) -> None:
        nonlocal status
        status = set_condition(status, kind, Truth.TRUE if truth else Truth.FALSE, reason, message, now=now)

    old = seen.job.status
    admission = seen.admission
    if admission.reason is Reason.NAME_CONFLICT:
        put(Condition.ADMITTED, False, admission.reason, admission.message)
    else:
        put(
            Condition.ADMITTED,
            True,
            ACCEPTED.reason,
            "; ".join([ACCEPTED.message, *warnings(seen.job, spec)]),
        )
    if spec.suspend:
        going = [pod.name for pod in seen.pods if not pod.ended]
        words = (
            f"{len(going)} pods are saving and ending" if going else "no pods; set suspend to false to go on"
        )
        put(Condition.SUSPENDED, not going, Reason.SUSPENDED, words)
        for kind in (
            Condition.PODS_READY,
            Condition.RENDEZVOUS_READY,
            Condition.RUNNING,
            Condition.RESTARTING,
            Condition.HUNG,
        ):
            if old.condition(kind) is not None:
                put(kind, False, Reason.SUSPENDED, "the job is suspended")
        return status
    if old.condition(Condition.SUSPENDED) is not None:
        put(Condition.SUSPENDED, False, Reason.RESUMED, "the job is not suspended")
    now_there = members(seen.pods, spec.nodes)
    ready = sum(pod.ready for pod in now_there.values())
    if ready == spec.nodes:
        put(Condition.PODS_READY, True, Reason.ALL_PODS_READY, "the ranks of every pod have joined")
    elif status.apart_until(now) is None:
        trouble = trouble_of(seen, now_there) or Trouble(
            reason=Reason.PODS_STARTING, message=f"{ready} of {spec.nodes} pods are ready"
        )
        put(Condition.PODS_READY, False, trouble.reason, trouble.message)
    runs = ready == spec.nodes or running(status, seen, now_there, spec)
    joined = ready == spec.nodes or (runs and seen.report is not None and seen.report.progress.step > 0)
    if joined:
        put(Condition.RENDEZVOUS_READY, True, Reason.ALL_RANKS_JOINED, "every rank has joined")
    else:
        words = missing(seen.report, spec, now_there)
        put(Condition.RENDEZVOUS_READY, False, Reason.WAITING_FOR_RANKS, words)
    if runs:
        status = replace(status, rendezvous=None)
        reason, words = training(seen.report, old)
        put(Condition.RUNNING, True, reason, words)
    else:
        put(Condition.RUNNING, False, Reason.NOT_STARTED, "not every node's workers run")
    was = old.is_true(Condition.RUNNING) or old.is_true(Condition.RESTARTING)
    failure = status.last_failure
    if not runs and was:
        reason = failure.reason if failure else Reason.DISRUPTED
        words = failure.message if failure else "ranks are starting again"
        back_off = seen.report.back_off if seen.report is not None else None
        if back_off:
            words = f"{words}; the next try waits {back_off:.0f} s, because no step was made since the last"
        put(Condition.RESTARTING, True, reason, words)
    elif runs and old.condition(Condition.RESTARTING) is not None:
        put(Condition.RESTARTING, False, Reason.TRAINING, RUNS)
    if not runs and failure is not None and failure.reason is Reason.NO_PROGRESS:
        put(Condition.HUNG, True, Reason.NO_PROGRESS, failure.message)
    elif old.condition(Condition.HUNG) is not None:
        put(Condition.HUNG, False, Reason.TRAINING, "no rank is known to hang")
    return status


def training(report: JobReport | None, old: Status) -> tuple[Reason, str]:
    """Why and how a job runs: what a person should do something about first."""
    if report is None:
        known = old.condition(Condition.RUNNING)  # a coordinator that does not answer has taken nothing back
        if known is not None and known.status == Truth.TRUE and known.reason in ADVICE:
            return Reason(known.reason), known.message
        return Reason.TRAINING, RUNS
    if report.checkpoint_trouble:
        return Reason.CHECKPOINT_FAILED, f"{RUNS}; {report.checkpoint_trouble}"
    if report.ddp is not None and report.ddp.not_resuming:
        return Reason.NOT_RESUMING, report.ddp.not_resuming
    if report.passed_over:
        return Reason.CHECKPOINT_DAMAGED, f"{RUNS}; a checkpoint was passed over: {report.passed_over}"
    return Reason.TRAINING, RUNS


def warnings(job: JobView, spec: Spec) -> list[str]:
    """What works and costs something, by the table of rules."""
    facts = rules.Facts(name=job.key.name, spec=spec, plan=plan(spec), in_cluster=True)
    found = [finding for finding in rules.judge(facts) if finding.verdict is rules.Verdict.WARN]
    return [f"warning: {dotted(finding.path)}: {finding.message}" for finding in found]


def running(status: Status, seen: Observed, now_there: Mapping[int, PodView], spec: Spec) -> bool:
    """Whether the coordinator says so; a script without a process group is never `ready`."""
    report = seen.report
    return (
        report is not None
        and report.state is RunState.RUNNING
        and report.generation >= status.generation
        and len(now_there) == spec.nodes
        and all(pod.started for pod in now_there.values())
    )


def missing(report: JobReport | None, spec: Spec, now_there: Mapping[int, PodView]) -> str:
    if report is not None and report.missing_nodes:
        shown = ", ".join(str(index) for index in report.missing_nodes[:8])
        return f"the launchers of {shown} have not joined ({report.nodes_joined} of {report.nodes_expected} have)"
    if report is not None and report.restoring:
        return report.restoring
    if len(now_there) < spec.nodes:
        return f"{len(now_there)} of {spec.nodes} pods are there"
    return "the ranks are joining"


def counted(status: Status, seen: Observed) -> Status:
    """The counters over pods."""
    spec, pods = seen.job.spec, seen.pods
    done = sum(1 for pod in pods if pod.end and pod.end.done)
    failed = sum(1 for pod in pods if pod.ended and not (pod.end and pod.end.done))
    if status.finished:
        nodes = replace(
            status.nodes, ready=0, active=0, succeeded=max(done, status.nodes.succeeded), failed=failed
        )
        complete = status.is_true(Condition.COMPLETE)
        return replace(
            status,
            nodes=nodes,
            ready=f"{nodes.desired if complete else 0}/{nodes.desired}" if nodes.desired else None,
        )
    desired = spec.nodes if spec and not spec.suspend else 0
    now_there = members(pods, spec.nodes if spec else 0)
    nodes = Nodes(
        desired=desired,
        ready=sum(pod.ready for pod in now_there.values()) if desired else 0,
        active=sum(pod.live for pod in pods),
        succeeded=done,
        failed=failed,
    )
    return replace(status, nodes=nodes, ready=f"{nodes.ready}/{desired}")


def summary(status: Status) -> Status:
    """`state`: one word for the column, and the reason of the condition it comes from."""
    for kind in (
        Condition.FAILED,
        Condition.COMPLETE,
        Condition.SUSPENDED,
        Condition.RESTARTING,
        Condition.RUNNING,
    ):
        found = status.condition(kind)
        if found is not None and found.status == Truth.TRUE:
            return replace(status, state=kind.value, reason=found.reason)
    suspended, admitted = status.condition(Condition.SUSPENDED), status.condition(Condition.ADMITTED)
    ready = status.condition(Condition.PODS_READY)
    if suspended is not None and suspended.reason == Reason.SUSPENDED:
        return replace(status, state="Suspending", reason=suspended.reason)
    if admitted is not None and admitted.status == Truth.FALSE:
        return replace(status, state="Pending", reason=admitted.reason)
    starting = ready is None or ready.reason in (Reason.PODS_STARTING, Reason.ALL_PODS_READY)
    return replace(
        status, state="Starting" if starting else "Pending", reason=ready.reason if ready else None
    )
