"""The checkpoint that a generation goes on from, brought to every node before it begins.

Why apart: who takes what from whom is decided in `peers/restoration.py`; here the decision meets launchers, time and
words. Must not: begin a generation, or give up a job for a checkpoint that some node still has: it waits and says so.
"""

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Prepare, Prepared, Preparing, Source
from ddpjob_api.report import Failure, Outcome, RunState
from ddpjob_trainer.launcher.job import Job
from ddpjob_trainer.launcher.members import Member
from ddpjob_trainer.launcher.peers.restoration import Order, Restoration, Restoring
from ddpjob_trainer.launcher.timing import RESTORE_AGAIN_SECONDS, RESTORE_SILENCE_SECONDS
from ddpjob_trainer.launcher.words import in_bytes

MAX_SOURCES = 16
"""In one Prepare; takers of a large job begin at different ones."""


def is_over(job: Job, now: float) -> bool:
    """Whether every node has what the next generation begins from; asks those that do not."""
    current = job.restoring
    if current is None or (current.again_at is not None and now >= current.again_at):
        current = job.restoring = ask(job)
    if current.again_at is not None:
        return False
    plan = current.plan
    told = len(plan.troubles)
    for node in [node for node in plan.asked if is_silent(current, node, now)]:
        plan.refused(node, f"it did not get further for {RESTORE_SILENCE_SECONDS:.0f} s")
    for order in plan.orders():
        send(job, now, current, order)
    for trouble in plan.troubles[told:]:
        job.say(trouble)
    if plan.stuck:
        stay(job, now, current)
    elif plan.over and plan.step is None and job.settings.saves and job.newest:
        job.say(f"no node has {'an intact' if plan.troubles else 'a'} checkpoint: the training starts anew")
    return plan.over and not plan.stuck


def ask(job: Job) -> Restoring:
    """A new attempt, from what the launchers say they have."""
    plan = Restoration(
        steps={member.node: frozenset(member.checkpoints) for member in job.members},
        trees={member.node: member.tree for member in job.members},
    )
    return Restoring(plan=plan)


def send(job: Job, now: float, current: Restoring, order: Order) -> None:
    member = job.members.get(order.node)
    assert member is not None
    sources = [source for node in order.sources if (source := address(job, node)) is not None][:MAX_SOURCES]
    job.attempts += 1
    current.numbers[order.node] = job.attempts
    current.heard[order.node] = (now, -1)
    if order.sources:
        origin = ", ".join(str(source.node) for source in sources[:8])
        job.say(f"node {order.node} takes {current.plan.goal} from node {origin}")
    job.send(
        member,
        Prepare(term=job.term, attempt=job.attempts, step=order.step, sources=tuple(sources)),
    )


def address(job: Job, node: int) -> Source | None:
    """Where a node gives, if it does."""
    member = job.members.get(node)
    if member is None or not member.present or not member.hello.giver_port or not member.hello.address:
        return None
    return Source(node=node, host=member.hello.address, port=member.hello.giver_port)


def neighbour(job: Job, member: Member) -> Source | None:
    """Whose folder a launcher keeps a copy of."""
    return address(job, (member.node - 1) % job.settings.nodes) if job.settings.nodes > 1 else None


def heard(job: Job, now: float, member: Member, message: Preparing) -> None:
    """A launcher is on its way."""
    current = job.restoring
    if current is None or message.attempt != current.numbers.get(member.node):
        return
    if message.done_bytes != current.heard.get(member.node, (now, -1))[1]:
        current.heard[member.node] = (now, message.done_bytes)
    does = "compares" if message.source is None else "fetches"
    origin = "" if message.source is None else f" from node {message.source}"
    size = f" ({in_bytes(message.total_bytes)})" if message.total_bytes else ""
    percent = f": {100 * message.done_bytes // message.total_bytes} %" if message.total_bytes else ""
    sentence = f"node {member.node} {does} {current.plan.goal}{size}{origin}{percent}"
    if sentence.partition(":")[0] != current.sentence.partition(":")[0]:
        job.say(sentence)
    current.sentence = sentence


def answered(job: Job, member: Member, message: Prepared) -> None:
    """A launcher has done what it was asked, or says why it cannot."""
    member.checkpoints, member.tree = message.checkpoints, message.tree
    # Also where nobody waits for the answer any more: it is told only once. All see the same in a shared folder.
    words = message.passed_over
    if words and job.state is RunState.RUNNING:
        # It starts anew, and what nobody can go on from is looked at beside that.
        if words not in job.passed_over:
            job.passed_over = "; ".join(filter(None, [job.passed_over, f"node {member.node}: {words}"]))
    elif words and not any(words in known for known in job.damages):
        job.damages.append(f"node {member.node}: {words}")
    current = job.restoring
    if current is None or message.attempt != current.numbers.get(member.node):
        return
    told = len(current.plan.troubles)
    if message.damaged:
        current.plan.damaged(member.node, message.damaged)
        job.damages.append(f"node {member.node}: {message.damaged}")
    elif message.refused:
        current.plan.refused(member.node, message.refused)
    elif message.unable:
        current.plan.failed(member.node, {each.node: each.why for each in message.unable})
    else:
        current.plan.done(member.node)
    for trouble in current.plan.troubles[told:]:
        job.say(trouble)


def is_silent(current: Restoring, node: int, now: float) -> bool:
    return now >= current.heard.get(node, (now, 0))[0] + RESTORE_SILENCE_SECONDS


def stay(job: Job, now: float, current: Restoring) -> None:
    """Somebody has what not all can have: ask again later; on a laptop, give up after the rendezvous time-out."""
    assert job.waiting_since is not None
    why = current.plan.troubles[-1]
    current.again_at = now + RESTORE_AGAIN_SECONDS
    current.sentence = f"the training cannot go on from its checkpoint: {why}"
    job.say(f"{current.sentence}; asking again in {RESTORE_AGAIN_SECONDS:.0f} s")
    waited = now - job.waiting_since
    if waited >= job.settings.rendezvous_seconds and job.settings.decides_rendezvous:
        failure = Failure(
            reason=Reason.RENDEZVOUS_TIMEOUT,
            message=current.sentence[:1024],
            generation=job.newest,
            at=job.settings.wall(),
        )
        job.finish(Outcome.FAILED, failure)
