"""The status a job should have, as a pure function of what was observed and what its status was.

Why apart: conditions, counters and the verdict are what people and programs rely on; they can be tested as a table.
Must not: talk to the API or read the clock (it is an argument). `ledger.py` counts, `trouble.py` says what holds pods
up, `verdict.py` whether it has ended, `standing.py` sets the conditions while it has not, `progress.py` writes numbers for
people, `startup.py` the moments up to the first step, `spending.py` what the time went to.
"""

from dataclasses import replace
from datetime import datetime, timedelta

from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.report import RunState
from ddpjob_api.spec import Spec
from ddpjob_operator import rendezvous, spending, startup
from ddpjob_operator.desired import members
from ddpjob_operator.ledger import account, dismissed
from ddpjob_operator.model import Nodes, Rendezvous, Startup, Status, Truth, moment_of, set_condition, stamp
from ddpjob_operator.observed import Observed
from ddpjob_operator.pinning import left_over, overtaken
from ddpjob_operator.progress import fold_report, fold_words, words_of
from ddpjob_operator.standing import conditions, missing
from ddpjob_operator.trouble import trouble_of
from ddpjob_operator.verdict import Verdict, announced, ending, invalid, overspent


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
    leaving = (
        verdict is not None
        or (spec is not None and spec.suspend)
        or old.apart_until(now) is not None
        or overtaken(old.runtime, seen.runtime)
        or bool(left_over(old, seen.pods))
    )
    nodes = spec.nodes if spec is not None else None
    fresh = account(fresh, seen.pods, seen.report, now=now, leaving=leaving, nodes=nodes)
    if spec is not None and verdict is None:
        fresh = on_the_clock(fresh, seen, spec, now=now)
        if seen.report is None or seen.report.state is not RunState.FINISHED:  # the launchers' own words come
            verdict = overspent(fresh, spec, now=now)
            if verdict is None and fresh.runtime is not None and old.apart_until(now) is None:
                fresh, verdict = apart(fresh, seen, spec, now=now)
    if spec is not None:
        first_step = spending.first_step(fresh, seen.report, seen.pods)
        fresh = startup.advanced(fresh, spec, members(seen.pods, spec.nodes), first_step, now=now)
    if verdict is not None:
        fresh = concluded(fresh, seen, verdict, now=now)
    elif spec is not None:
        fresh = conditions(fresh, seen, spec, now=now)
    fresh = summary(counted(fresh, seen))
    talked = fold_report(fresh, seen.report, silent=seen.silent, now=now)
    talked = fold_words(talked, seen.pods, now=now)
    if fresh == old and (talked == old or not progress_due(old, now, progress_every)):
        return fresh
    talked = spending.told(talked, seen.spent, seen.pods, now=now)  # which alone is no reason to write
    return spending.closed(talked, now=now) if verdict is not None else talked


def progress_due(status: Status, now: datetime, every: timedelta) -> bool:
    at = moment_of(status.progress.updated_at) if status.progress else None
    return at is None or now - at >= every


def on_the_clock(status: Status, seen: Observed, spec: Spec, *, now: datetime) -> Status:
    """The runtime pinned at the first pod and freed by suspension, and the seconds the job was active.

    A suspension in which the spec was edited is one, seen or not; pods of before it go before the next runtime is pinned.
    """
    if spec.suspend or overtaken(status.runtime, seen.runtime):
        since = moment_of(status.active_since)
        spent = int((now - since).total_seconds()) if since else 0
        return replace(
            status, runtime=None, active_since=None, active_seconds=status.active_seconds + max(0, spent),
            rendezvous=None,
        )  # fmt: skip
    accepted = seen.admission.reason is Reason.ACCEPTED
    if accepted and status.runtime is None and not left_over(status, seen.pods):
        return replace(
            status,
            runtime=seen.runtime,
            start_time=status.start_time or stamp(now),
            active_since=stamp(now),
            startup=Startup(),
            efficiency=None,  # of former pods
            waiting=None,
            next_incarnation=max(1, status.next_incarnation),
        )
    return status


def apart(status: Status, seen: Observed, spec: Spec, *, now: datetime) -> tuple[Status, Verdict | None]:
    """A gang that did not meet in time: its pods go, so that its nodes are free, and it tries again or has failed."""
    now_there = members(seen.pods, spec.nodes)
    due = rendezvous.deadline(status, spec, now_there, seen.word)
    if due is None or now < due:
        return status, None
    seconds = int(spec.recovery.rendezvous_timeout.total_seconds())
    trouble = trouble_of(seen, now_there)
    why = trouble.message if trouble else missing(seen.report, spec, now_there, silent=seen.silent)
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
    running = status.condition(Condition.RUNNING)
    if running is not None and running.status == Truth.UNKNOWN:
        return replace(status, state="Unknown", reason=running.reason)
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
