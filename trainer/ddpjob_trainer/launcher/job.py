"""What the coordinator knows of its job, what it says of it, and how it lets launchers go.

Why apart: joining, starting and stopping (`joining.py`, `starting.py`, `stopping.py`) are rules about one state, and
none of them owns it. Must not: decide when anything happens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ddpjob_api.efficiency import Efficiency
from ddpjob_api.exits import Exit
from ddpjob_api.fields import Json
from ddpjob_api.goodput import Spent, Use
from ddpjob_api.messages import PROTOCOL, Beat, Finish, Message
from ddpjob_api.report import Failure, JobReport, Outcome, RunState
from ddpjob_trainer.launcher.actions import Action, Say, Send
from ddpjob_trainer.launcher.halt import Halt
from ddpjob_trainer.launcher.ledger import Ledger
from ddpjob_trainer.launcher.members import Member, Members
from ddpjob_trainer.launcher.peers.restoration import Restoring
from ddpjob_trainer.launcher.timebook import TimeBook
from ddpjob_trainer.launcher.windows import Windows


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
    unix: Callable[[], float]
    """The same moment as a number."""
    saves: bool = False
    """Whether the training leaves steps to go on from; a script's files are its own affair."""
    jitter: Callable[[], float] = lambda: 1.0
    """What a back-off is multiplied by, so that jobs that failed together do not try again together."""


@dataclass(kw_only=True)
class Job:
    """The state of one job, as far as this coordinator has learned it."""

    settings: Settings
    ledger: Ledger
    book: TimeBook = field(default_factory=TimeBook)
    newest: int = 0
    """The newest generation anybody has seen."""

    state: RunState = RunState.WAITING
    generation: int = 0
    """The generation that runs or is being stopped."""
    members: Members = field(init=False)
    windows: Windows = field(init=False)
    """How fast the ranks are, compared with each other."""
    halt: Halt | None = None
    job_stop: bool = False
    """The whole job was asked to stop."""
    resume_step: int | None = None
    passed_over: str = ""
    """Checkpoints found damaged before this generation began."""
    damages: list[str] = field(default_factory=list)
    """Those found since, whatever became of the attempt."""
    restoring: Restoring | None = None
    """What the nodes are asked to have before the next generation; None: not asked yet."""
    attempts: int = 0
    """Number of the newest Prepare."""
    now: float = 0.0
    """When something last happened."""
    began: float = 0.0
    reached: int = 0
    """Highest optimizer step seen in this generation."""
    hung: bool = False
    """A generation hung (no step was made, or collectives timed out), and none has been well since."""
    waiting_since: float | None = None
    reminded: float = 0.0
    result: Json = field(default_factory=dict)
    final: Finish | None = None
    """What every launcher hears at the end; the exit code is each one's own."""
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = Members(expected=self.settings.nodes)
        self.windows = Windows(self.settings.nodes * self.settings.processes_per_node)

    @property
    def term(self) -> int:
        return self.settings.incarnation + 1

    # the end

    def finish(self, outcome: Outcome, failure: Failure | None = None) -> None:
        self.state = RunState.FINISHED
        self.book.end(self.now, Use.OTHER)
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
            spent=self.spent(),
        )

    # words

    def spent(self) -> Spent:
        """What the time went to."""
        return self.book.spent(self.now, self.settings.unix())

    def beat(self) -> Beat:
        """What every launcher hears every second."""
        return Beat(
            generation=self.generation,
            patient_step=self.members.patient_step(self.generation),
            restarts=self.ledger.restarts,
            disruptions=self.ledger.disruptions,
            judged=self.ledger.judged,
            spent=self.spent(),
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
            restoring=self.restoring.sentence[:512] if self.restoring and self.final is None else "",
            efficiency=self.efficiency(),
            hung=self.hung and self.final is None,
            passed_over=self.passed_over[:512],
            back_off=round(self.ledger.back_off, 1)
            if self.state is RunState.WAITING and self.now < self.ledger.not_before
            else None,
            spent=self.spent(),
        )

    def efficiency(self) -> Efficiency | None:
        """How well the ranks work together; None before it is known."""
        shares, slow = self.windows.shares(), self.windows.named
        if shares is None and slow is None:
            return None
        return Efficiency(
            exposed_communication_percent=percent(shares.exposed if shares else None),
            data_wait_percent=percent(shares.data if shares else None),
            ddp_efficiency_percent=percent(shares.efficiency if shares else None),
            slowest_rank=slow.rank if slow else None,
            slowest_rank_cause=slow.cause if slow else None,
            slowest_node=self.place(slow.rank) if slow else None,
        )

    def place(self, rank: int) -> str:
        """Where a rank runs: the Kubernetes node, or the index of the launcher."""
        node = rank // self.settings.processes_per_node
        member = self.members.get(node)
        return (member.hello.host_node if member else "") or f"node {node}"

    def say(self, text: str) -> None:
        self.actions.append(Say(text))

    def send(self, member: Member, message: Message) -> None:
        if member.link is not None:
            self.actions.append(Send(member.link, message))

    def broadcast(self, message: Message) -> None:
        for member in self.members:
            if member.present:
                self.send(member, message)


def percent(part: float | None) -> int | None:
    """Within 0 … 100: clocks of a rank that do not quite agree make no other number."""
    return min(100, max(0, round(100 * part))) if part is not None else None
