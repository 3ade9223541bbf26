"""A job on the cluster, shown as a local run is until it ends.

Why apart: the view is that of `ddpjob run`; here a status becomes what it shows. Must not: change the job: Ctrl-C
leaves it running.
"""

import contextlib
import time
from dataclasses import replace
from typing import Any, TextIO

from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.messages import PROTOCOL
from ddpjob_api.report import JobReport, Progress, RunState
from ddpjob_cli.cluster.access import PATIENCE_SECONDS, Access, Body, NotThere, jobs_path
from ddpjob_cli.cluster.observe import observation, observe
from ddpjob_cli.errors import KILLED, CommandError, Unreachable
from ddpjob_cli.explain.finding import Finding, Weight
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.explain.observation import Observation, argument
from ddpjob_cli.local import words
from ddpjob_cli.local.view import View

POLL_SECONDS = 1.0
QUIET = frozenset({Reason.PODS_STARTING, Reason.ALL_PODS_READY})


def follow(access: Access, job: Body, stream: TextIO) -> tuple[int, dict[str, Any]]:
    """Show the job until it ends; the exit code, and the ending for programs.

    Raises:
        CommandError: the cluster does not answer any more.
    """
    name, namespace = job["metadata"]["name"], job["metadata"]["namespace"]
    begun = time.monotonic()
    with View(stream, title=name, on_gone=lambda: None) as view:
        view.say(
            f"{name}: sent to namespace {namespace}; Ctrl-C leaves it running, "
            f"ddpjob logs -f {argument(name, namespace)} has its output"
        )
        try:
            seen = watch(access, job, view)
        except KeyboardInterrupt:
            view.stop()
            job_argument = argument(name, namespace)
            view.say(
                f"{name} goes on: ddpjob top {job_argument} shows it, kubectl delete ddpjob {job_argument} ends it"
            )
            return KILLED, ending(None, name, namespace, time.monotonic() - begun)
        view.stop()
        seconds = time.monotonic() - begun
        if seen is None:
            view.end(f"gone: the job {name} was deleted", good=False)
            return 1, ending(None, name, namespace, seconds, "Deleted")
        done = seen.is_true(Condition.COMPLETE)
        if done:
            facts = [f"{seen.step} steps"] if seen.step else []
            facts += [f"loss {words.number(seen.loss)}"] if seen.loss is not None else []
            facts += [f"{seconds:.1f} s", f"restarts {seen.restarts}"]
            view.end(f"done: {', '.join(facts)}", good=True)
        else:
            for finding in explained(access, seen):
                view.end(f"{finding.what}" + (f" → {finding.do}" if finding.do else ""), good=False)
        return (0 if done else 1), ending(seen, name, namespace, seconds)


def watch(access: Access, sent: Body, view: View) -> Observation | None:
    """Show what changes until the job has ended; None where somebody deleted it, also where another has its name."""
    name, namespace = sent["metadata"]["name"], sent["metadata"]["namespace"]
    said = ""
    begun = heard = time.monotonic()
    while True:
        try:
            job = access.get(jobs_path(namespace, name), f"DDPJob {name}")
        except NotThere:
            return None
        except Unreachable:
            if time.monotonic() - heard > PATIENCE_SECONDS:
                raise
            time.sleep(POLL_SECONDS)
            continue
        if job["metadata"]["uid"] != sent["metadata"]["uid"]:
            return None
        heard = time.monotonic()
        seen = observation(job, (), (), (), (), namespace=namespace, now=time.time())
        # It was sent when this began; the cluster's clock, by which it would be older, may be another than ours.
        seen = replace(seen, age_seconds=time.monotonic() - begun)
        view.report(report(seen))
        if seen.finished:
            return seen
        trouble = waits_for(seen)
        # What is said of a job without a status has its age in it: no news every second.
        if trouble and trouble != said and (seen.managed or not said):
            view.say(trouble, "yellow")
        said = trouble
        time.sleep(POLL_SECONDS)


def waits_for(seen: Observation) -> str:
    """What holds it up; empty while it is starting or runs."""
    if seen.is_true(Condition.RUNNING):
        return ""
    first = findings(seen)[0]
    ready = seen.condition(Condition.PODS_READY)
    if may_have_no_pods(seen):
        held = first.weight is Weight.STOPS
    else:
        held = ready is not None and ready.status != "True" and ready.reason not in QUIET
    return f"waits: {first.what}" + (f" → {first.do}" if first.do else "") if held else ""


def may_have_no_pods(seen: Observation) -> bool:
    """Whether it is held up before its pods are made, of which then nothing, or nothing new, is said."""
    admitted = seen.condition(Condition.ADMITTED)
    refused = admitted is not None and admitted.status == "False"
    return not seen.managed or refused or (seen.spec is not None and seen.spec.suspend)


def report(seen: Observation) -> JobReport:
    """The status as the coordinator would say it."""
    return JobReport(
        protocol=PROTOCOL,
        name=seen.name,
        state=RunState.RUNNING if seen.is_true(Condition.RUNNING) else RunState.WAITING,
        term=0,
        generation=0,
        nodes_joined=seen.ready,
        nodes_expected=seen.nodes,
        restarts=seen.restarts,
        disruptions=seen.disruptions,
        progress=Progress(
            step=seen.step,
            total_steps=seen.total_steps,
            loss=seen.loss,
            samples_per_second=seen.samples_per_second,
            eta=seen.eta_seconds,
            checkpoint_step=seen.checkpoint_step,
        ),
        ddp=seen.ddp,
        failures=(seen.last_failure,) if seen.last_failure else (),
    )


def explained(access: Access, seen: Observation) -> list[Finding]:
    """Why it failed; what was seen last is enough for the verdict, where no more of this job can be seen."""
    with contextlib.suppress(CommandError):
        more = observe(access, seen.name)
        seen = more if more.uid == seen.uid else seen
    return [finding for finding in findings(seen) if finding.weight is Weight.STOPS]


def ending(
    seen: Observation | None, name: str, namespace: str, seconds: float, outcome: str = "Running"
) -> dict[str, Any]:
    """The line of `--json`."""
    if seen is None:
        return {"name": name, "namespace": namespace, "outcome": outcome, "seconds": round(seconds, 3)}
    failed = seen.condition(Condition.FAILED)
    return {
        "name": name,
        "namespace": namespace,
        "outcome": "Failed" if failed is not None and failed.status == "True" else "Done",
        "message": failed.message if failed is not None else "",
        "steps": seen.step,
        "loss": seen.loss,
        "restarts": seen.restarts,
        "disruptions": seen.disruptions,
        "seconds": round(seconds, 3),
    }
