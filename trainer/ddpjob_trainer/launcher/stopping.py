"""How a generation ends: by a failure, a loss or a request, softly or at once, and with which verdict.

Why apart: one incident is one pass through these rules, so it is counted once; `halt.py` holds what came in meanwhile.
Must not: begin the next one (`starting.py`).
"""

import signal

from ddpjob_api.conditions import Reason
from ddpjob_api.goodput import Use
from ddpjob_api.messages import Beat, Done, Failed, Hung, Pause, Paused, Stop, StopAt, Stopped
from ddpjob_api.report import Outcome, RunState, WorkerExit
from ddpjob_trainer.launcher.halt import Charge, Halt, Verdict
from ddpjob_trainer.launcher.job import Job
from ddpjob_trainer.launcher.members import Member
from ddpjob_trainer.launcher.timing import (
    EARLY_SECONDS,
    HANDLERS_SECONDS,
    HEALTHY_SECONDS,
    KILL_FRACTION,
    LAST_FRACTION,
    LOST_GRACE_SECONDS,
    STOP_FRACTION,
)
from ddpjob_trainer.launcher.words import MANNER, ended, who


def failed(job: Job, now: float, member: Member, message: Failed) -> None:
    """A worker failed: the generation ends, unless it is of another one."""
    for item in message.exits:
        job.say(
            f"generation {message.generation}, rank {item.rank} on {who(member.hello)}: "
            f"{item.message or 'ended'}{MANNER[item.cause]}"
        )
    if message.generation != job.generation or job.state not in {RunState.RUNNING, RunState.STOPPING}:
        return
    if job.halt is None or not job.halt.hard:
        rank = message.exits[0].rank if message.exits else "?"
        stop(job, now, f"rank {rank} failed", post_mortem=any(unexplained(item) for item in message.exits))
    assert job.halt is not None
    job.reached = max((job.reached, *(item.step for item in message.exits)))
    job.halt.add(message.exits, member.hello, job.settings.wall())


def unexplained(item: WorkerExit) -> bool:
    """Whether another rank may be the one to blame, and be alive: a time-out, or NCCL's watchdog."""
    return item.late or item.returncode == -signal.SIGABRT


def hung(job: Job, now: float, member: Member, message: Hung) -> None:
    """A launcher sees a rank that makes no step: all are stopped, and looked at first."""
    if message.generation != job.generation or job.state not in {RunState.RUNNING, RunState.STOPPING}:
        return
    if job.halt is None or not job.halt.hard:
        rank = message.ranks[0].rank if message.ranks else "?"
        why = f"rank {rank} on {who(member.hello)} made no step for {message.seconds:.0f} s"
        stop(job, now, why, post_mortem=True)
        assert job.halt is not None
        job.halt.hung_seconds, job.hung = message.seconds, True
    assert job.halt is not None
    job.halt.see(message.ranks, member.hello)


def waited(job: Job, now: float, member: Member, message: Beat) -> None:
    """Where ranks have ended with 0 and others stand in a step, the step is stopped long before a collective gives up."""
    member.ended_early = message.ended
    if job.state is not RunState.RUNNING or message.waits_seconds < EARLY_SECONDS:
        return
    if any(other.ended_early or other.done == job.generation for other in job.members):
        why = f"ranks on {who(member.hello)} have waited {message.waits_seconds:.0f} s in a step for others that have ended"
        stop(job, now, why, post_mortem=True)
        assert job.halt is not None
        job.halt.hung_seconds, job.hung = message.waits_seconds, True


def stopped(job: Job, member: Member, message: Stopped) -> None:
    """None of a launcher's workers lives any more."""
    if message.generation != member.running:
        return
    member.running = 0
    member.checkpoints, member.tree = message.checkpoints, message.tree
    if job.halt is not None and message.generation == job.generation:
        job.reached = max((job.reached, *(item.step for item in message.exits)))
        job.halt.add(message.exits, member.hello, job.settings.wall())
        job.halt.see(message.ranks, member.hello)


def done(job: Job, member: Member, message: Done) -> None:
    """All of a launcher's workers ended with 0."""
    if message.generation != member.running:
        return
    member.running, member.done, member.ended = 0, message.generation, message.ranks
    if member.node == 0:
        job.result = message.result


def leave(job: Job, now: float, member: Member, *, alone: bool = True) -> None:
    """A launcher was told to go; the others keep their place unless the whole job stops."""
    if job.final is not None or member.released:
        return
    if alone and not member.leaving:
        member.leaving = True
        job.say(f"{who(member.hello)} was told to go")
    if job.state is RunState.RUNNING:
        pause(job, now)


def pause(job: Job, now: float) -> None:
    """Begin a soft stop of the running generation."""
    job.state = RunState.STOPPING
    job.halt = Halt(generation=job.generation, opened=now, hard=False)
    job.broadcast(Pause(term=job.term, generation=job.generation))


def paused(job: Job, member: Member, message: Paused) -> None:
    """A launcher says which step its ranks have reached."""
    halt = job.halt
    if halt is None or halt.hard or message.generation != job.generation or halt.stop_at is not None:
        return
    halt.boundaries[member.node] = message.boundary
    if message.held:
        halt.held.add(member.node)


def advanced(job: Job, member: Member, message: Beat) -> None:
    """How far a launcher's ranks are on their way to the stop step."""
    if job.halt is not None and message.steps:
        job.halt.steps[member.node] = min(message.steps)


def stop(job: Job, now: float, why: str, *, post_mortem: bool = False) -> None:
    """End the running generation at once."""
    if job.halt is None:
        job.halt = Halt(generation=job.generation, opened=now, hard=True)
    else:
        job.halt.hard = True
    job.state = RunState.STOPPING
    job.say(f"generation {job.generation} is stopped: {why}")
    job.halt.post_mortem = post_mortem
    for member in job.members:
        if member.done == job.generation:
            job.halt.see(member.ended, member.hello)
    job.broadcast(Stop(term=job.term, generation=job.generation, why=why[:1024], post_mortem=post_mortem))


def repeat_halt(job: Job, member: Member, halt: Halt) -> None:
    """Tell a launcher that was away where the stop stands."""
    if halt.hard:
        why = "the generation is stopped"
        job.send(
            member,
            Stop(term=job.term, generation=job.generation, why=why, post_mortem=halt.post_mortem),
        )
    elif halt.stop_at is not None:
        job.send(member, StopAt(term=job.term, generation=job.generation, step=halt.stop_at))
    else:
        job.send(member, Pause(term=job.term, generation=job.generation))


def lose(job: Job, now: float, member: Member) -> None:
    """A launcher is lost while a generation runs or is stopped."""
    member.lost = True
    if member.done == job.generation or job.state not in {RunState.RUNNING, RunState.STOPPING}:
        return
    if job.halt is None or not job.halt.hard:
        stop(job, now, f"the launcher of node {member.node} is lost")
    assert job.halt is not None
    job.halt.lost.setdefault(member.node, member.hello)


def continue_soft(job: Job, now: float, halt: Halt) -> None:
    """All boundaries known: name the stop step. Nothing reached: nothing to save. Too late: end it."""
    waited = {m.node for m in job.members if m.running == job.generation and not m.lost}
    if halt.stop_at is None and waited and waited <= set(halt.boundaries):
        highest = max(halt.boundaries.values())
        if highest <= 0:
            stop(job, now, "no rank has made a step yet, so there is nothing to save")
            return
        # Where all evaluate there, nobody is past it, and an evaluation may take long. One that is still before it would stop
        # at its boundary instead of evaluating, and the others wait for it in the evaluation's collectives.
        there = {node for node, boundary in halt.boundaries.items() if boundary == highest}
        halt.stop_at = highest if waited <= there & halt.held else highest + 1
        job.say(f"generation {job.generation}: all ranks save and stop at step {halt.stop_at}")
        job.broadcast(StopAt(term=job.term, generation=job.generation, step=halt.stop_at))
        return
    arrived = halt.stop_at is not None and all(halt.steps.get(node, 0) >= halt.stop_at for node in waited)
    grace = job.settings.grace_seconds
    limit = after_step_seconds(grace) if arrived else grace * STOP_FRACTION
    if now >= halt.opened + limit and not job.members.quiet:
        late = "every rank reached the stop step, but what they do after it (an evaluation, a save) did not end in time"
        stop(job, now, late if arrived else "not every rank reached the stop step in time")


def after_step_seconds(grace_seconds: float) -> float:
    """From the beginning of a soft stop, how long ranks that reach the stop step have to evaluate, save and end."""
    return grace_seconds * KILL_FRACTION - min(HANDLERS_SECONDS, grace_seconds * LAST_FRACTION)


def is_hang(verdict: Verdict) -> bool:
    return verdict.failure is not None and verdict.failure.reason is Reason.NO_PROGRESS


def has_lived(job: Job, now: float) -> bool:
    """Whether a generation without a step has run for long; maybe its steps are not seen."""
    return job.reached == 0 and now >= job.began + HEALTHY_SECONDS


def is_well(job: Job, now: float) -> bool:
    """Whether a generation that runs makes steps; for one whose job's steps are not seen, that it has run for long."""
    return job.reached > (job.resume_step or 0) or (has_lived(job, now) and not job.book.sees_steps)


def use_of(job: Job, verdict: Verdict, *, lived: bool) -> Use:
    """What the time since the last step was for, in a generation that ends."""
    if is_hang(verdict):
        return Use.HANG
    unseen = lived and not job.book.sees_steps
    return Use.OTHER if unseen or job.job_stop else Use.RESTART


def conclude(job: Job, now: float, halt: Halt) -> None:
    """All workers have ended: the verdict."""
    if job.members.all_done(job.generation):
        job.finish(Outcome.DONE)
        return
    requested = job.job_stop or any(member.leaving for member in job.members)
    verdict = halt.verdict(
        requested=requested, at=job.settings.wall(), done=job.members.done_with(job.generation)
    )
    if not verdict.certain and now < halt.opened + LOST_GRACE_SECONDS:
        return
    job.hung = job.hung or is_hang(verdict)  # that of a time-out is known only now
    charge = verdict.charge
    if charge is Charge.NOTHING and not job.job_stop:
        charge = Charge.DISRUPTION
    permanent = job.ledger.permanent(verdict) if charge is Charge.RESTART else None
    if verdict.refused or permanent is not None or (job.job_stop and charge is Charge.RESTART):
        charge = Charge.NOTHING  # it is not tried again
    lived = has_lived(job, now)
    job.book.end(now, use_of(job, verdict, lived=lived))
    fruitful = job.reached > (job.resume_step or 0) or lived
    job.ledger.enter(
        verdict,
        charge,
        generation=job.generation,
        fruitful=fruitful,
        now=now,
        jitter=job.settings.jitter(),
    )
    job.say(ended(job.generation, verdict.failure, charge, job.ledger))
    job.halt = None
    if verdict.refused:
        job.finish(Outcome.REFUSED, verdict.failure)
    elif permanent is not None and not job.job_stop:
        job.say(f"it is not tried again: {permanent.message}")
        job.finish(Outcome.FAILED, permanent)
    elif job.ledger.spent:
        job.finish(Outcome.FAILED, verdict.failure)
    elif job.job_stop:
        job.finish(Outcome.STOPPED, verdict.failure)
    else:
        # A coordinator that comes after this one must not count it again, nor forget it where the job ends here.
        job.broadcast(job.beat())
        job.state = RunState.WAITING
        job.waiting_since = now
