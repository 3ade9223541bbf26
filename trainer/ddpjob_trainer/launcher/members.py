"""The launchers of a job as the coordinator knows them.

Why apart: who is there, whose workers may still live, and which incarnation counts are questions of every transition
of the state machine. Must not: decide what follows from the answers (`coordinator.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from ddpjob_api.messages import Hello
from ddpjob_api.report import RankView


@dataclass(kw_only=True)
class Member:
    """One index of the job, in its newest incarnation."""

    hello: Hello
    link: int | None
    """The connection it is on; None while it has none."""
    running: int = 0
    """The generation whose workers may live there; 0: none do."""
    done: int = 0
    """The generation all of whose workers ended with 0."""
    ended: tuple[RankView, ...] = ()
    """Where its ranks ended, if they all did with 0."""
    ended_early: bool = False
    """Some of its ranks have ended with 0, and others live."""
    patient_step: int | None = None
    """As its newest Beat has it."""
    checkpoints: tuple[int, ...] = ()
    tree: str = ""
    away_since: float | None = None
    """When its connection ended."""
    lost: bool = False
    """It was away too long, or a successor has come."""
    leaving: bool = False
    """It was told to go."""
    released: bool = False
    """Its Finish was sent; only a successor can take this index."""
    parked: tuple[int, Hello] | None = None
    """Connection and hello of a successor, who waits until this one's workers have ended."""

    @property
    def node(self) -> int:
        return self.hello.node

    @property
    def present(self) -> bool:
        return self.link is not None and not self.released

    @property
    def settled(self) -> bool:
        """Whether nothing more is to be expected from its workers."""
        return self.running == 0 or self.lost


@dataclass(kw_only=True)
class Members:
    """All indexes that ever said hello."""

    expected: int
    by_node: dict[int, Member] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Member]:
        return iter([self.by_node[node] for node in sorted(self.by_node)])

    def get(self, node: int) -> Member | None:
        return self.by_node.get(node)

    def on(self, link: int) -> Member | None:
        """The member on a connection."""
        return next((member for member in self if member.link == link), None)

    def parked_on(self, link: int) -> Member | None:
        """The member whose successor waits on a connection."""
        return next((m for m in self if m.parked is not None and m.parked[0] == link), None)

    @property
    def missing(self) -> tuple[int, ...]:
        """Indexes that are not there."""
        return tuple(
            node
            for node in range(self.expected)
            if (member := self.by_node.get(node)) is None or not member.present
        )

    def patient_step(self, generation: int) -> int | None:
        """The first step at which a rank of that generation does what takes long; None where none does."""
        steps = [member.patient_step for member in self if member.running == generation and not member.lost]
        return min((step for step in steps if step is not None), default=None)

    @property
    def quiet(self) -> bool:
        """Whether no worker of any generation can live."""
        return all(member.settled for member in self)

    def all_done(self, generation: int) -> bool:
        return len(self.by_node) == self.expected and all(m.done == generation > 0 for m in self)

    def done_with(self, generation: int) -> tuple[int, ...]:
        """Nodes whose workers of a generation all ended with 0."""
        return tuple(member.node for member in self if member.done == generation > 0)
