"""The conditions of a job that has not ended: what it waits for, whether it runs, and what to do something about.

Why apart: conditions are what people read first; each is worked out here from what was observed and from nothing else.
Must not: count (`ledger.py`) or decide that a job has ended (`verdict.py`).
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from ddpjob_api import rules
from ddpjob_api.blame import blame
from ddpjob_api.codec import dotted
from ddpjob_api.conditions import ADVICE, Condition, Reason
from ddpjob_api.plan import plan
from ddpjob_api.report import Failure, JobReport, RunState
from ddpjob_api.running import RUNS, how_it_runs
from ddpjob_api.spec import Spec
from ddpjob_operator.desired import members
from ddpjob_operator.model import Status, Truth, set_condition
from ddpjob_operator.observe import JobView, PodView
from ddpjob_operator.observed import ACCEPTED, Observed
from ddpjob_operator.pinning import left_over
from ddpjob_operator.trouble import Trouble, trouble_of

RESUMED = "the job was suspended and resumed while its pods were there, and its spec may be another one"
SILENT = "the coordinator, the launcher of node 0, does not answer"


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
    if spec.suspend or made_anew(status, seen):
        going = [pod.name for pod in seen.pods if not pod.ended]
        ending = f"{len(going)} pods are saving and ending"
        if spec.suspend:
            why, words = "the job is suspended", ending if going else "no pods; set suspend to false to go on"
        else:
            why, words = RESUMED, f"{RESUMED}; {ending}, new ones are made from it"
        put(Condition.SUSPENDED, spec.suspend and not going, Reason.SUSPENDED, words)
        for kind in (
            Condition.PODS_READY,
            Condition.RENDEZVOUS_READY,
            Condition.RUNNING,
            Condition.RESTARTING,
            Condition.HUNG,
        ):
            if old.condition(kind) is not None:
                put(kind, False, Reason.SUSPENDED, why)
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
    truth = running(status, seen, now_there, spec)
    if truth is Truth.UNKNOWN:  # of the ranks nothing was seen: what was said of them stands
        return set_condition(status, Condition.RUNNING, truth, Reason.COORDINATOR_SILENT, SILENT, now=now)
    runs = truth is Truth.TRUE
    if ready == spec.nodes or (runs and seen.report is not None and seen.report.progress.step > 0):
        put(Condition.RENDEZVOUS_READY, True, Reason.ALL_RANKS_JOINED, "every rank has joined")
    elif not runs or seen.report is not None:
        words = missing(seen.report, spec, now_there, silent=seen.silent)
        put(Condition.RENDEZVOUS_READY, False, Reason.WAITING_FOR_RANKS, words)
    if runs:
        status = replace(status, rendezvous=None)
        reason, words = training(seen.report, old)
        put(Condition.RUNNING, True, reason, words)
    else:
        put(Condition.RUNNING, False, Reason.NOT_STARTED, "not every node's workers run")
    was = old.truth(Condition.RUNNING) is not Truth.FALSE or old.is_true(Condition.RESTARTING)
    failure = status.last_failure
    if not runs and was:
        reason = failure.reason if failure else Reason.DISRUPTED
        words = blame(failure) if failure else "ranks are starting again"
        back_off = seen.report.back_off if seen.report is not None else None
        if back_off:
            words = f"{words}; the next try waits {back_off:.0f} s, because no step was made since the last"
        put(Condition.RESTARTING, True, reason, words)
    elif runs and old.condition(Condition.RESTARTING) is not None:
        put(Condition.RESTARTING, False, Reason.TRAINING, RUNS)
    if not runs and failure is not None and is_hung(status, failure, seen.report, was=was):
        put(Condition.HUNG, True, Reason.NO_PROGRESS, blame(failure))
    elif old.condition(Condition.HUNG) is not None:
        put(Condition.HUNG, False, Reason.TRAINING, "no rank is known to hang")
    return status


def made_anew(status: Status, seen: Observed) -> bool:
    """Whether a job that is not suspended gives up its pods for new ones."""
    given_up = seen.job.status.runtime is not None and status.runtime is None
    return given_up or bool(left_over(status, seen.pods))


def is_hung(status: Status, failure: Failure, report: JobReport | None, *, was: bool) -> bool:
    """Whether the ranks that do not run were stopped by that failure, a hang, and have made no step since.

    The newest failure stays in the status when it is long over, so it alone says nothing: the coordinator knows, once it
    has the verdict. Where it was not heard, a hang of an earlier generation is over, and so is any of a job whose pods are
    new (`was`: it ran, or starts again).
    """
    if failure.reason is not Reason.NO_PROGRESS:
        return False
    if report is None:
        return was and failure.generation >= status.generation
    return report.hung and report.state is not RunState.STOPPING


def training(report: JobReport | None, old: Status) -> tuple[Reason, str]:
    """Why and how a job runs: what a person should do something about first."""
    if report is None:
        known = old.condition(Condition.RUNNING)  # a coordinator that does not answer has taken nothing back
        if known is not None and known.status == Truth.TRUE and known.reason in ADVICE:
            return Reason(known.reason), known.message
        return Reason.TRAINING, RUNS
    return how_it_runs(report)


def warnings(job: JobView, spec: Spec) -> list[str]:
    """What works and costs something, by the table of rules."""
    facts = rules.Facts(name=job.key.name, spec=spec, plan=plan(spec), in_cluster=True)
    found = [finding for finding in rules.judge(facts) if finding.verdict is rules.Verdict.WARN]
    return [f"warning: {dotted(finding.path)}: {finding.message}" for finding in found]


def running(status: Status, seen: Observed, now_there: Mapping[int, PodView], spec: Spec) -> Truth:
    """Whether the workers of every node run, as far as anybody knows.

    Pods that are missing or do not run say no, pods that are all ready yes. Of others only the coordinator knows: a
    script without a process group is never ready. As long as it was not heard at all (an operator just started) the truth
    before stays, unless ranks that had joined have left: that their pods say. One that is silent for long, or that the
    operator has no route to, takes nothing back either, but what is known of it is old.
    """
    old, report, pods = seen.job.status, seen.report, now_there.values()
    if len(pods) == spec.nodes and all(pod.ready for pod in pods):
        return Truth.TRUE
    if len(pods) < spec.nodes or not all(pod.started for pod in pods):
        return Truth.FALSE
    before = old.truth(Condition.RUNNING)
    if report is None and old.is_true(Condition.PODS_READY):
        return Truth.FALSE
    if seen.silent:
        return before if before is Truth.FALSE else Truth.UNKNOWN
    if report is None:
        return before
    runs = report.state is RunState.RUNNING and report.generation >= status.generation
    return Truth.TRUE if runs else Truth.FALSE


def missing(report: JobReport | None, spec: Spec, now_there: Mapping[int, PodView], *, silent: bool) -> str:
    if report is not None and report.missing_nodes:
        shown = ", ".join(str(index) for index in report.missing_nodes[:8])
        return f"the launchers of {shown} have not joined ({report.nodes_joined} of {report.nodes_expected} have)"
    if silent:
        return SILENT
    if report is not None and report.restoring:
        return report.restoring
    if len(now_there) < spec.nodes:
        return f"{len(now_there)} of {spec.nodes} pods are there"
    return "the ranks are joining"
