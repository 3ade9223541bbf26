"""What the coordinator does with the speed of its ranks: it says who makes the others wait, and that nobody does any more.

Why apart: one event of a job, like joining or stopping. Must not: judge (`windows.py`), or let the
training know.
"""

from ddpjob_api.messages import Beat
from ddpjob_api.report import RunState
from ddpjob_trainer.launcher.job import Job
from ddpjob_trainer.launcher.members import Member


def heard(job: Job, now: float, member: Member, message: Beat) -> None:
    """A launcher says how far its ranks are."""
    if message.sums:
        change = job.windows.hear(now, member.node * job.settings.processes_per_node, message.sums)
    else:
        change = job.windows.wait(now) if job.state is RunState.RUNNING else None
    if change is None:
        return
    if change.after is not None:
        found = job.efficiency()
        assert found is not None
        job.say(f"{found.sentence()} ({1000 * change.after.excess:.0f} ms more per step than the others)")
    elif change.blind:
        job.say("who makes the others wait is not known any more: some rank's steps are not counted")
    elif change.before is not None:
        where = job.place(change.before.rank)
        job.say(f"rank {change.before.rank} on {where} does not make the others wait any more")
