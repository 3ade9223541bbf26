"""The coordinator: when a generation begins, ends, and what its end was; a state machine without a socket or a clock.

Why apart: every interleaving of messages must be testable, and equal inputs give equal answers. It is told what
happened (`hello`, `received`, `closed`, `tick`, `stop_job`), with the time, and returns what is to be done. It keeps
nothing durable: a new one learns generation and budget from the hellos.
Must not: do I/O, read a clock, or know how a connection proved itself (`server.py`).

States (`RunState`): WAITING until every launcher is there and no worker of an older generation can live; RUNNING;
STOPPING from the first failure, loss or request until all workers have ended (`halt.py` holds what came in);
FINISHED. One incident is one pass through STOPPING, so it is counted once.
"""

from ddpjob_api.exits import Exit
from ddpjob_api.messages import (
    Beat,
    Done,
    Failed,
    Hello,
    Hung,
    Leave,
    Message,
    Pace,
    Paused,
    Prepared,
    Preparing,
    Stopped,
)
from ddpjob_api.report import Outcome, RunState
from ddpjob_trainer.launcher import comparing, joining, restoring, starting, stopping
from ddpjob_trainer.launcher.actions import Action, Admit, Refuse, Send
from ddpjob_trainer.launcher.job import Job
from ddpjob_trainer.launcher.members import Member
from ddpjob_trainer.launcher.timing import LOST_GRACE_SECONDS
from ddpjob_trainer.launcher.words import who


class Coordinator(Job):
    """A job and the events that move it."""

    # what happens

    def hello(self, now: float, link: int, hello: Hello) -> list[Action]:
        """A peer that knows the token says who it is."""
        refusal = joining.refusal(self, hello)
        if refusal is not None:
            self.actions.append(Refuse(link, refusal))
            return self.settle(now)
        self.actions.append(Admit(link))
        newest = joining.successor(self, hello)
        if newest is not None:
            text = (
                f"incarnation {hello.incarnation} of node {hello.node} was replaced by incarnation {newest}"
            )
            self.actions.append(Refuse(link, text, replaced=True))
            return self.settle(now)
        if self.final is not None:
            self.members.by_node[hello.node] = Member(hello=hello, link=link)
            self.release(self.members.by_node[hello.node])
            return self.settle(now)
        known = self.members.get(hello.node)
        if known is not None and joining.replaces(hello, known) and not known.settled:
            self.say(f"{who(hello)} replaces its predecessor, which is asked to stop first")
            if known.parked is not None:
                self.actions.append(Refuse(known.parked[0], "a newer incarnation has come", replaced=True))
            known.parked = (link, hello)
            stopping.leave(self, now, known)
            return self.settle(now)
        joining.enter(self, now, link, hello)
        return self.settle(now)

    def received(self, now: float, link: int, message: Message) -> list[Action]:
        """A message from a launcher that was admitted."""
        member = self.members.on(link)
        if member is None:
            waiting = self.members.parked_on(link)
            if waiting is not None and isinstance(message, Leave):
                waiting.parked = None
                self.actions.append(Send(link, self.farewell(Outcome.STOPPED, Exit.STOPPED)))
            return self.settle(now)
        match message:
            case Beat():
                member.patient_step = message.patient_step if message.generation == self.generation else None
                if message.generation == self.generation:
                    self.reached = max((self.reached, *message.steps))
                    if self.state is RunState.RUNNING and stopping.is_well(self, now):
                        self.hung = False
                    self.paced(now, member, message.pace)
                    comparing.heard(self, now, member, message)
                    stopping.advanced(self, member, message)
                    stopping.waited(self, now, member, message)
            case Failed():
                stopping.failed(self, now, member, message)
            case Hung():
                stopping.hung(self, now, member, message)
            case Stopped():
                if message.generation == self.generation:
                    self.paced(now, member, message.pace)
                stopping.stopped(self, member, message)
            case Done():
                if message.generation == self.generation:
                    self.paced(now, member, message.pace)
                stopping.done(self, member, message)
            case Preparing():
                restoring.heard(self, now, member, message)
            case Prepared():
                restoring.answered(self, member, message)
            case Paused():
                stopping.paused(self, member, message)
            case Leave():
                if message.whole_job:
                    self.job_stop = True
                stopping.leave(self, now, member, alone=not message.whole_job)
            case _:
                self.say(
                    f"{who(member.hello)} sent {type(message).__name__}, which is not a launcher's to send"
                )
        return self.settle(now)

    def closed(self, now: float, link: int) -> list[Action]:
        """A connection ended, or was silent for too long."""
        waiting = self.members.parked_on(link)
        if waiting is not None:
            waiting.parked = None
        member = self.members.on(link)
        if member is not None:
            member.link = None
            member.away_since = now
            if self.final is None and not member.released:
                self.say(f"{who(member.hello)}: connection lost")
        return self.settle(now)

    def stop_job(self, now: float) -> list[Action]:
        """All ranks save at one step and end (suspend, deadline, Ctrl-C)."""
        if not self.job_stop and self.final is None:
            self.job_stop = True
            self.say("the whole job was asked to stop")
            if self.state is RunState.RUNNING:
                stopping.pause(self, now)
        return self.settle(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self.settle(now)

    # transitions that only time or completeness bring about

    def settle(self, now: float) -> list[Action]:
        """Follow every transition that is due, and hand over what is to be done."""
        self.now = now
        self.book.open(now, self.settings.unix())
        if self.final is None:
            self.expire(now)
        if self.final is None and self.halt is not None and not self.halt.hard:
            stopping.continue_soft(self, now, self.halt)
        if self.final is None and self.state is RunState.RUNNING and self.members.all_done(self.generation):
            self.finish(Outcome.DONE)
        if self.final is None and self.halt is not None and self.members.quiet:
            stopping.conclude(self, now, self.halt)
        if self.final is None and self.state is RunState.WAITING:
            self.book.wait(now, whole=not self.members.missing)
            starting.wait(self, now)
        actions, self.actions = self.actions, []
        return actions

    def paced(self, now: float, member: Member, pace: Pace | None) -> None:
        """Steps were made; node 0 speaks for all.

        Not those of a rank that hung, and was let go on so that it writes its stacks.
        """
        if member.node == 0 and not (self.halt is not None and self.halt.post_mortem):
            self.book.pace(pace, now, self.settings.unix())

    def expire(self, now: float) -> None:
        """Launchers that were away too long are lost; successors take over from those that have ended."""
        for member in self.members:
            away = member.away_since if member.link is None else None
            late = away is not None and now >= away + LOST_GRACE_SECONDS
            if away is not None and not member.lost and (late or member.parked is not None):
                stopping.lose(self, now, member)
            if member.parked is not None and member.settled and (member.lost or self.halt is None):
                link, hello = member.parked
                member.parked = None
                if member.link is not None:
                    self.release(member, Outcome.STOPPED)
                joining.enter(self, now, link, hello)
