"""How a launcher joins: whether it may, whose place it takes, and what its hello tells the coordinator.

Why apart: first hellos, come-backs, successors and launchers of an older generation all pass here.
Must not: end or begin a generation by itself (`stopping.py`, `starting.py`).
"""

from ddpjob_api.messages import Hello, Stop
from ddpjob_api.report import RunState
from ddpjob_trainer.launcher.actions import Close
from ddpjob_trainer.launcher.job import Job
from ddpjob_trainer.launcher.members import Member
from ddpjob_trainer.launcher.stopping import leave, lose, repeat_halt
from ddpjob_trainer.launcher.words import who


def refusal(job: Job, hello: Hello) -> str | None:
    """Why a launcher may not join, if it may not."""
    if not 0 <= hello.node < job.settings.nodes:
        return f"node {hello.node} is not of this job, which has nodes 0 to {job.settings.nodes - 1}"
    if hello.term > job.term:
        return f"this coordinator's term {job.term} is over; you have obeyed term {hello.term}"
    return None


def successor(job: Job, hello: Hello) -> int | None:
    """The incarnation that has taken this one's place, if one has."""
    known = job.members.get(hello.node)
    if known is None or hello.incarnation == known.hello.incarnation:
        return None
    newest = known.parked[1].incarnation if known.parked is not None else known.hello.incarnation
    return newest if hello.incarnation < newest else None


def enter(job: Job, now: float, link: int, hello: Hello) -> None:
    """A launcher takes its index."""
    known = job.members.get(hello.node)
    again = known is not None and known.hello.incarnation == hello.incarnation
    if known is not None and known.link is not None and known.link != link:
        job.actions.append(Close(known.link))
    member = Member(
        hello=hello,
        link=link,
        running=hello.generation if hello.running else 0,
        done=max(hello.generation if hello.done else 0, known.done if known is not None else 0),
        ended=known.ended if again and known is not None else (),
        checkpoints=hello.checkpoints,
        tree=hello.tree,
        leaving=hello.leaving or (again and known is not None and known.leaving),
        parked=known.parked if again and known is not None else None,
    )
    job.members.by_node[hello.node] = member
    job.restoring = None  # what was asked of its predecessor is asked anew
    job.newest = max(job.newest, hello.generation)
    job.ledger.learn(hello)
    job.book.learn(hello.spent, now, job.settings.unix())
    job.say(f"{who(hello)} {'is back' if again else 'joined'}")
    if job.state is RunState.RUNNING:
        if job.generation not in {member.running, member.done}:
            lose(job, now, known if known is not None else member)
        elif member.leaving:
            leave(job, now, member)
    elif job.halt is not None:
        if member.running == job.generation:
            repeat_halt(job, member, job.halt)
        elif not again and known is not None and not known.settled:
            job.halt.lost.setdefault(known.node, known.hello)
        elif known is not None and known.running == job.generation != member.done:
            job.halt.apart.setdefault(known.node, hello)
    failure = hello.last_failure
    if failure is not None and job.halt is not None and failure.generation == job.generation:
        job.halt.inherit(failure)
    elif failure is not None:
        job.ledger.remember(hello, failure)
    if member.running and (member.running != job.generation or job.state is RunState.WAITING):
        # Nobody else tells it: its own end of the workers waits for a coordinator's word once one is there again.
        job.send(
            member,
            Stop(term=job.term, generation=member.running, why="its generation has no coordinator"),
        )


def replaces(hello: Hello, known: Member) -> bool:
    """Whether a hello is of a successor of a launcher that is still connected."""
    return known.link is not None and known.hello.incarnation < hello.incarnation
