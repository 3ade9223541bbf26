"""How a generation begins: all launchers there, no worker of an older one alive, a fresh port.

Why apart: what may still hold a job back (a missing launcher, the back-off, a taken port) is judged in one place.
Must not: end anything but the job, where nothing is left to be run.
"""

from dataclasses import replace

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Start
from ddpjob_api.report import Failure, Outcome, RunState
from ddpjob_trainer.launcher import restoring
from ddpjob_trainer.launcher.halt import Charge
from ddpjob_trainer.launcher.job import Job
from ddpjob_trainer.launcher.timing import LOST_GRACE_SECONDS, REMIND_SECONDS
from ddpjob_trainer.launcher.words import ended


def wait(job: Job, now: float) -> None:
    """No generation: begin one when all are there, and none of an older one can live."""
    if job.waiting_since is None:
        job.waiting_since = now
    for member in job.members:
        if member.leaving and member.running == 0 and member.present:
            job.release(member, Outcome.STOPPED)
    if job.job_stop and job.members.quiet:
        job.finish(Outcome.STOPPED)
        return
    missing = job.members.missing
    if missing:
        job.restoring = None
        remind(job, now, missing)
        return
    if any(member.running for member in job.members) or now < job.ledger.not_before:
        return
    if job.members.all_done(job.newest):
        job.finish(Outcome.DONE)
        return
    inherited = job.ledger.inherit(job.newest)
    if inherited is not None:
        job.say(ended(job.newest, inherited, Charge.RESTART, job.ledger))
    if inherited is not None and job.ledger.spent:
        job.finish(Outcome.FAILED, inherited)
        return
    if job.newest > job.ledger.judged and any(
        member.hello.generation == job.newest for member in job.members
    ):
        job.ledger.miss_verdict(job.newest, job.settings.wall())
    if restoring.is_over(job, now):
        begin(job, now)


def remind(job: Job, now: float, missing: tuple[int, ...]) -> None:
    """Say who is missing; on a laptop, give up after the rendezvous time-out."""
    assert job.waiting_since is not None
    waited = now - job.waiting_since
    names = ", ".join(str(node) for node in missing[:32]) + (" …" if len(missing) > 32 else "")
    if waited >= job.settings.rendezvous_seconds and job.settings.decides_rendezvous:
        text = (
            f"rendezvous timed out after {job.settings.rendezvous_seconds:.0f} s: node {names} of "
            f"{job.settings.nodes} did not join; see its log, or raise recovery.rendezvousTimeoutSeconds"
        )
        job.say(text)
        reason = Reason.RENDEZVOUS_TIMEOUT
        job.finish(
            Outcome.FAILED,
            Failure(reason=reason, message=text, generation=job.newest, at=job.settings.wall()),
        )
    elif now - job.reminded >= REMIND_SECONDS and waited >= LOST_GRACE_SECONDS:
        job.reminded = now
        job.say(f"waiting for node {names} of {job.settings.nodes} for {waited:.0f} s")


def begin(job: Job, now: float) -> None:
    """The next generation, on a port that no earlier one used."""
    generation = job.newest + 1
    port = job.settings.port(generation)
    if port is None:
        if now - job.reminded >= REMIND_SECONDS:
            job.reminded = now
            job.say("no port of the rendezvous window (64 from spec.ports.rendezvous on) is free; waiting")
        return
    job.newest = job.generation = generation
    job.state, job.waiting_since = RunState.RUNNING, None
    job.began, job.reached = now, 0
    job.book.begin(now)
    job.windows.begin()
    plan = job.restoring.plan if job.restoring is not None else None
    job.resume_step = plan.step if plan is not None else None
    job.passed_over = "; ".join([*job.damages, *(plan.given_up if plan is not None else ())])
    job.damages = []
    job.restoring = None
    for member in job.members:
        member.running, member.done = generation, 0
        member.ended, member.ended_early = (), False
    start = Start(
        term=job.term,
        generation=generation,
        master_address=job.settings.master_address,
        master_port=port,
        restarts=job.ledger.restarts,
        disruptions=job.ledger.disruptions,
        resume_step=job.resume_step,
    )
    origin = "" if job.resume_step is None else f" from step {job.resume_step}"
    nodes = f"{job.settings.nodes} node{'s' if job.settings.nodes > 1 else ''}"
    job.say(f"generation {generation} starts{origin}: {nodes}, port {port}")
    for member in job.members:
        job.send(member, replace(start, neighbour=restoring.neighbour(job, member)))
