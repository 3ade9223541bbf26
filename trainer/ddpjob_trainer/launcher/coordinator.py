"""The coordinator: when a generation begins, ends, and what its end was; a state machine without a socket or a clock.

Why apart: every interleaving of messages must be testable, and equal inputs give equal answers. It is told what
happened (`hello`, `received`, `closed`, `tick`, `stop_job`), with the time, and returns what is to be done. It keeps
nothing durable: a new one learns generation and budget from the hellos.
Must not: do I/O, read a clock, or know how a connection proved itself (`server.py`).

States (`RunState`): WAITING until every launcher is there and no worker of an older generation can live; RUNNING;
STOPPING from the first failure, loss or request until all workers have ended (`halt.py` holds what came in);
FINISHED. One incident is one pass through STOPPING, so it is counted once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ddpjob_api.conditions import Reason
from ddpjob_api.exits import Exit
from ddpjob_api.fields import Json
from ddpjob_api.messages import (
    PROTOCOL,
    Beat,
    Done,
    Failed,
    Finish,
    Hello,
    Leave,
    Message,
    Pause,
    Paused,
    Start,
    Stop,
    StopAt,
    Stopped,
)
from ddpjob_api.report import Failure, JobReport, Outcome, RunState
from ddpjob_trainer.launcher.actions import Action, Admit, Close, Refuse, Say, Send
from ddpjob_trainer.launcher.halt import Charge, Halt
from ddpjob_trainer.launcher.ledger import Ledger
from ddpjob_trainer.launcher.members import Member, Members
from ddpjob_trainer.launcher.timing import (
    HEALTHY_SECONDS,
    LOST_GRACE_SECONDS,
    REMIND_SECONDS,
    STOP_FRACTION,
)
from ddpjob_trainer.launcher.words import MANNER, ended, who


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the coordinator is told once."""

    name: str
    nodes: int
    processes_per_node: int
    incarnation: int
    """Of index 0; the term is one more, so that 0 means none."""
    grace_seconds: float
    rendezvous_seconds: float
    decides_rendezvous: bool
    """Whether missing launchers end the job here (on a laptop) or the operator decides about them (in a cluster)."""
    master_address: str
    port: Callable[[int], int | None]
    """A free rendezvous port for a generation; None where the whole window is taken."""
    wall: Callable[[], str]
    """RFC 3339, UTC."""


@dataclass(kw_only=True)
class Coordinator:
    """The state of one job, as far as this coordinator has learned it."""

    settings: Settings
    ledger: Ledger
    newest: int = 0
    """The newest generation anybody has seen."""

    state: RunState = RunState.WAITING
    generation: int = 0
    """The generation that runs or is being stopped."""
    members: Members = field(init=False)
    halt: Halt | None = None
    job_stop: bool = False
    """The whole job was asked to stop."""
    resume_step: int | None = None
    began: float = 0.0
    reached: int = 0
    """Highest optimizer step seen in this generation."""
    waiting_since: float | None = None
    reminded: float = 0.0
    result: Json = field(default_factory=dict)
    final: Finish | None = None
    """What every launcher hears at the end; the exit code is each one's own."""
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = Members(expected=self.settings.nodes)

    @property
    def term(self) -> int:
        return self.settings.incarnation + 1

    # what happens

    def hello(self, now: float, link: int, hello: Hello) -> list[Action]:
        """A peer that knows the token says who it is."""
        refusal = self.refusal(hello)
        if refusal is not None:
            self.actions.append(Refuse(link, refusal))
            return self.settle(now)
        self.actions.append(Admit(link))
        newest = self.successor(hello)
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
        if known is not None and replaces(hello, known) and not known.settled:
            self.say(f"{who(hello)} replaces its predecessor, which is asked to stop first")
            if known.parked is not None:
                self.actions.append(Refuse(known.parked[0], "a newer incarnation has come", replaced=True))
            known.parked = (link, hello)
            self.leave(now, known)
            return self.settle(now)
        self.enter(now, link, hello)
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
                if message.generation == self.generation:
                    self.reached = max((self.reached, *message.steps))
            case Failed():
                self.failed(now, member, message)
            case Stopped():
                self.stopped(member, message)
            case Done():
                self.done(member, message)
            case Paused():
                self.paused(member, message)
            case Leave():
                if message.whole_job:
                    self.job_stop = True
                self.leave(now, member, alone=not message.whole_job)
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
                self.pause(now)
        return self.settle(now)

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self.settle(now)

    # what follows

    def refusal(self, hello: Hello) -> str | None:
        """Why a launcher may not join, if it may not."""
        if not 0 <= hello.node < self.settings.nodes:
            return f"node {hello.node} is not of this job, which has nodes 0 to {self.settings.nodes - 1}"
        if hello.term > self.term:
            return f"this coordinator's term {self.term} is over; you have obeyed term {hello.term}"
        return None

    def successor(self, hello: Hello) -> int | None:
        """The incarnation that has taken this one's place, if one has."""
        known = self.members.get(hello.node)
        if known is None or hello.incarnation == known.hello.incarnation:
            return None
        newest = known.parked[1].incarnation if known.parked is not None else known.hello.incarnation
        return newest if hello.incarnation < newest else None

    def enter(self, now: float, link: int, hello: Hello) -> None:
        """A launcher takes its index."""
        known = self.members.get(hello.node)
        again = known is not None and known.hello.incarnation == hello.incarnation
        if known is not None and known.link is not None and known.link != link:
            self.actions.append(Close(known.link))
        member = Member(
            hello=hello,
            link=link,
            running=hello.generation if hello.running else 0,
            done=max(hello.generation if hello.done else 0, known.done if known is not None else 0),
            checkpoints=hello.checkpoints,
            leaving=hello.leaving or (again and known is not None and known.leaving),
            parked=known.parked if again and known is not None else None,
        )
        self.members.by_node[hello.node] = member
        self.newest = max(self.newest, hello.generation)
        self.ledger.learn(hello)
        self.say(f"{who(hello)} {'is back' if again else 'joined'}")
        if self.state is RunState.RUNNING:
            if self.generation not in {member.running, member.done}:
                self.lose(now, known if known is not None else member)
            elif member.leaving:
                self.leave(now, member)
        elif self.halt is not None:
            if member.running == self.generation:
                self.repeat_halt(member, self.halt)
            elif not again and known is not None and not known.settled:
                self.halt.lost.setdefault(known.node, known.hello)
        failure = hello.last_failure
        if failure is not None and self.halt is not None and failure.generation == self.generation:
            self.halt.inherit(failure)
        elif failure is not None:
            self.ledger.remember(hello.node, failure)
        if member.running and member.running != self.generation:
            self.send(
                member,
                Stop(term=self.term, generation=member.running, why="its generation has no coordinator"),
            )

    def failed(self, now: float, member: Member, message: Failed) -> None:
        for item in message.exits:
            self.say(
                f"generation {message.generation}, rank {item.rank} on {who(member.hello)}: "
                f"{item.message or 'ended'}{MANNER[item.cause]}"
            )
        if message.generation != self.generation or self.state not in {RunState.RUNNING, RunState.STOPPING}:
            return
        if self.halt is None or not self.halt.hard:
            rank = message.exits[0].rank if message.exits else "?"
            self.stop(now, f"rank {rank} failed")
        assert self.halt is not None
        self.reached = max((self.reached, *(item.step for item in message.exits)))
        self.halt.add(message.exits, member.hello, self.settings.wall())

    def stopped(self, member: Member, message: Stopped) -> None:
        if message.generation != member.running:
            return
        member.running = 0
        member.checkpoints = message.checkpoints
        if self.halt is not None and message.generation == self.generation:
            self.reached = max((self.reached, *(item.step for item in message.exits)))
            self.halt.add(message.exits, member.hello, self.settings.wall())

    def done(self, member: Member, message: Done) -> None:
        if message.generation != member.running:
            return
        member.running, member.done = 0, message.generation
        if member.node == 0:
            self.result = message.result

    def leave(self, now: float, member: Member, *, alone: bool = True) -> None:
        """A launcher was told to go; the others keep their place unless the whole job stops."""
        if self.final is not None or member.released:
            return
        if alone and not member.leaving:
            member.leaving = True
            self.say(f"{who(member.hello)} was told to go")
        if self.state is RunState.RUNNING:
            self.pause(now)

    def pause(self, now: float) -> None:
        """Begin a soft stop of the running generation."""
        self.state = RunState.STOPPING
        self.halt = Halt(
            generation=self.generation,
            opened=now,
            hard=False,
            deadline=now + self.settings.grace_seconds * STOP_FRACTION,
        )
        self.broadcast(Pause(term=self.term, generation=self.generation))

    def paused(self, member: Member, message: Paused) -> None:
        halt = self.halt
        if halt is None or halt.hard or message.generation != self.generation or halt.stop_at is not None:
            return
        halt.boundaries[member.node] = message.boundary

    def stop(self, now: float, why: str) -> None:
        """End the running generation at once."""
        if self.halt is None:
            self.halt = Halt(generation=self.generation, opened=now, hard=True)
        else:
            self.halt.hard = True
        self.state = RunState.STOPPING
        self.say(f"generation {self.generation} is stopped: {why}")
        self.broadcast(Stop(term=self.term, generation=self.generation, why=why[:1024]))

    def repeat_halt(self, member: Member, halt: Halt) -> None:
        """Tell a launcher that was away where the stop stands."""
        if halt.hard:
            self.send(
                member, Stop(term=self.term, generation=self.generation, why="the generation is stopped")
            )
        elif halt.stop_at is not None:
            self.send(member, StopAt(term=self.term, generation=self.generation, step=halt.stop_at))
        else:
            self.send(member, Pause(term=self.term, generation=self.generation))

    def lose(self, now: float, member: Member) -> None:
        """A launcher is lost while a generation runs or is stopped."""
        member.lost = True
        if member.done == self.generation or self.state not in {RunState.RUNNING, RunState.STOPPING}:
            return
        if self.halt is None or not self.halt.hard:
            self.stop(now, f"the launcher of node {member.node} is lost")
        assert self.halt is not None
        self.halt.lost.setdefault(member.node, member.hello)

    # transitions that only time or completeness bring about

    def settle(self, now: float) -> list[Action]:
        """Follow every transition that is due, and hand over what is to be done."""
        if self.final is None:
            self.expire(now)
        if self.final is None and self.halt is not None and not self.halt.hard:
            self.continue_soft(now, self.halt)
        if self.final is None and self.state is RunState.RUNNING and self.members.all_done(self.generation):
            self.finish(Outcome.DONE)
        if self.final is None and self.halt is not None and self.members.quiet:
            self.conclude(now, self.halt)
        if self.final is None and self.state is RunState.WAITING:
            self.wait(now)
        actions, self.actions = self.actions, []
        return actions

    def expire(self, now: float) -> None:
        """Launchers that were away too long are lost; successors take over from those that have ended."""
        for member in self.members:
            away = member.away_since if member.link is None else None
            late = away is not None and now >= away + LOST_GRACE_SECONDS
            if away is not None and not member.lost and (late or member.parked is not None):
                self.lose(now, member)
            if member.parked is not None and member.settled and (member.lost or self.halt is None):
                link, hello = member.parked
                member.parked = None
                if member.link is not None:
                    self.release(member, Outcome.STOPPED)
                self.enter(now, link, hello)

    def continue_soft(self, now: float, halt: Halt) -> None:
        """All boundaries known: name the stop step. Nothing reached: nothing to save. Too late: end it."""
        waited = {m.node for m in self.members if m.running == self.generation and not m.lost}
        if halt.stop_at is None and waited and waited <= set(halt.boundaries):
            highest = max(halt.boundaries.values())
            if highest <= 0:
                self.stop(now, "no rank has made a step yet, so there is nothing to save")
                return
            halt.stop_at = highest + 1
            self.say(f"generation {self.generation}: all ranks save and stop at step {halt.stop_at}")
            self.broadcast(StopAt(term=self.term, generation=self.generation, step=halt.stop_at))
        elif halt.deadline is not None and now >= halt.deadline and not self.members.quiet:
            self.stop(now, "not every rank reached the stop step in time")

    def conclude(self, now: float, halt: Halt) -> None:
        """All workers have ended: the verdict."""
        if self.members.all_done(self.generation):
            self.finish(Outcome.DONE)
            return
        requested = self.job_stop or any(member.leaving for member in self.members)
        verdict = halt.verdict(
            requested=requested, at=self.settings.wall(), done=self.members.done_with(self.generation)
        )
        if not verdict.certain and now < halt.opened + LOST_GRACE_SECONDS:
            return
        charge = verdict.charge
        if charge is Charge.NOTHING and not self.job_stop:
            charge = Charge.DISRUPTION
        if verdict.refused:
            charge = Charge.NOTHING  # it is not tried again
        lived = self.reached == 0 and now >= self.began + HEALTHY_SECONDS
        fruitful = self.reached > (self.resume_step or 0) or lived
        self.ledger.enter(verdict, charge, generation=self.generation, fruitful=fruitful, now=now)
        self.say(ended(self.generation, verdict.failure, charge, self.ledger))
        self.halt = None
        if verdict.refused:
            self.finish(Outcome.REFUSED, verdict.failure)
        elif self.ledger.spent:
            self.finish(Outcome.FAILED, verdict.failure)
        elif self.job_stop:
            self.finish(Outcome.STOPPED, verdict.failure)
        else:
            # A coordinator that comes after this one must not count it again, nor forget it where the job ends here.
            self.broadcast(self.beat())
            self.state = RunState.WAITING
            self.waiting_since = now

    def wait(self, now: float) -> None:
        """No generation: begin one when all are there, and none of an older one can live."""
        if self.waiting_since is None:
            self.waiting_since = now
        for member in self.members:
            if member.leaving and member.running == 0 and member.present:
                self.release(member, Outcome.STOPPED)
        if self.job_stop and self.members.quiet:
            self.finish(Outcome.STOPPED)
            return
        missing = self.members.missing
        if missing:
            self.remind(now, missing)
            return
        if any(member.running for member in self.members) or now < self.ledger.not_before:
            return
        if self.members.all_done(self.newest):
            self.finish(Outcome.DONE)
            return
        inherited = self.ledger.inherit(self.newest)
        if inherited is not None:
            self.say(ended(self.newest, inherited, Charge.RESTART, self.ledger))
        if inherited is not None and self.ledger.spent:
            self.finish(Outcome.FAILED, inherited)
            return
        self.begin(now)

    def remind(self, now: float, missing: tuple[int, ...]) -> None:
        """Say who is missing; on a laptop, give up after the rendezvous time-out."""
        assert self.waiting_since is not None
        waited = now - self.waiting_since
        names = ", ".join(str(node) for node in missing[:32]) + (" …" if len(missing) > 32 else "")
        if waited >= self.settings.rendezvous_seconds and self.settings.decides_rendezvous:
            text = (
                f"rendezvous timed out after {self.settings.rendezvous_seconds:.0f} s: node {names} of "
                f"{self.settings.nodes} did not join; see its log, or raise recovery.rendezvousTimeoutSeconds"
            )
            self.say(text)
            reason = Reason.RENDEZVOUS_TIMEOUT
            self.finish(
                Outcome.FAILED,
                Failure(reason=reason, message=text, generation=self.newest, at=self.settings.wall()),
            )
        elif now - self.reminded >= REMIND_SECONDS and waited >= LOST_GRACE_SECONDS:
            self.reminded = now
            self.say(f"waiting for node {names} of {self.settings.nodes} for {waited:.0f} s")

    def begin(self, now: float) -> None:
        """The next generation, on a port that no earlier one used."""
        generation = self.newest + 1
        port = self.settings.port(generation)
        if port is None:
            if now - self.reminded >= REMIND_SECONDS:
                self.reminded = now
                self.say(
                    "no port of the rendezvous window (64 from spec.ports.rendezvous on) is free; waiting"
                )
            return
        self.newest = self.generation = generation
        self.state, self.waiting_since = RunState.RUNNING, None
        self.began, self.reached = now, 0
        self.resume_step = self.members.common_checkpoint
        for member in self.members:
            member.running, member.done = generation, 0
        start = Start(
            term=self.term,
            generation=generation,
            master_address=self.settings.master_address,
            master_port=port,
            restarts=self.ledger.restarts,
            disruptions=self.ledger.disruptions,
            resume_step=self.resume_step,
        )
        origin = "" if self.resume_step is None else f" from step {self.resume_step}"
        nodes = f"{self.settings.nodes} node{'s' if self.settings.nodes > 1 else ''}"
        self.say(f"generation {generation} starts{origin}: {nodes}, port {port}")
        self.broadcast(start)

    # the end

    def finish(self, outcome: Outcome, failure: Failure | None = None) -> None:
        self.state = RunState.FINISHED
        codes = {Outcome.DONE: Exit.DONE, Outcome.STOPPED: Exit.STOPPED, Outcome.REFUSED: Exit.REFUSED}
        self.final = replace(self.farewell(outcome, codes.get(outcome, Exit.PEER_LOST)), failure=failure)
        self.halt = None
        for member in self.members:
            self.release(member)
            if member.parked is not None:
                self.actions.append(Send(member.parked[0], self.final))

    def release(self, member: Member, outcome: Outcome | None = None) -> None:
        """Send a launcher its Finish: the job's, or (with `outcome`) its own while the job goes on."""
        if member.link is None or member.released:
            return
        if outcome is not None:
            finish = self.farewell(outcome, Exit.STOPPED)
        else:
            assert self.final is not None
            finish = self.final
            failure = finish.failure
            if finish.outcome is Outcome.FAILED and failure is not None and failure.node == member.node:
                finish = replace(finish, exit_code=failure.exit_code or int(Exit.PEER_LOST))
        self.actions.append(Send(member.link, finish))
        member.released = True

    def farewell(self, outcome: Outcome, code: int) -> Finish:
        return Finish(
            term=self.term,
            outcome=outcome,
            exit_code=int(code),
            restarts=self.ledger.restarts,
            disruptions=self.ledger.disruptions,
            result=self.result,
        )

    # words

    def beat(self) -> Beat:
        """What every launcher hears every second."""
        return Beat(
            generation=self.generation,
            restarts=self.ledger.restarts,
            disruptions=self.ledger.disruptions,
            judged=self.ledger.judged,
        )

    def report(self) -> JobReport:
        """Where the job stands; progress, settings and result are added by who reads rank 0's page."""
        missing = self.members.missing
        return JobReport(
            protocol=PROTOCOL,
            name=self.settings.name,
            state=self.state,
            term=self.term,
            generation=max(self.generation, self.newest),
            nodes_joined=self.settings.nodes - len(missing) if self.final is None else self.settings.nodes,
            nodes_expected=self.settings.nodes,
            missing_nodes=missing[:32] if self.final is None else (),
            restarts=self.ledger.restarts,
            disruptions=self.ledger.disruptions,
            result=self.result,
            last_failure=self.ledger.failures[-1] if self.ledger.failures else None,
            failures=tuple(self.ledger.failures),
            outcome=self.final.outcome if self.final else None,
            ranks=self.settings.nodes * self.settings.processes_per_node,
        )

    def say(self, text: str) -> None:
        self.actions.append(Say(text))

    def send(self, member: Member, message: Message) -> None:
        if member.link is not None:
            self.actions.append(Send(member.link, message))

    def broadcast(self, message: Message) -> None:
        for member in self.members:
            if member.present:
                self.send(member, message)


def replaces(hello: Hello, known: Member) -> bool:
    """Whether a hello is of a successor of a launcher that is still connected."""
    return known.link is not None and known.hello.incarnation < hello.incarnation
