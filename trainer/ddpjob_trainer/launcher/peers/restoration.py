"""Who gives what to whom before a generation begins: the decision, as a state machine without a socket or a clock.

Why apart: every case of who has what, what turns out damaged and who cannot take it must be testable as a table.
The newest step that any node has is the goal. Who has it compares it with its hashes, who lacks it takes it from one
that has; a copy that turns out damaged makes a taker of its node. A step that not every node can have is given up for
the next older one. For a script the goal is that all folders are one, which needs one node of each kind of folder.
Must not: speak to a launcher (`coordinator.py` does), or take an order as obeyed before its answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

TAKERS_PER_SOURCE = 4


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one node is to do now."""

    node: int
    step: int | None
    """Have this step, intact; None: have what the sources have."""
    sources: tuple[int, ...] = ()
    """A step: one after the other until one gives it. Without a step: all of them."""


@dataclass(kw_only=True)
class Restoration:
    """One attempt, from what the nodes say they have to the step that all of them have."""

    steps: Mapping[int, frozenset[int]]
    """Steps by node; every node of the job is there."""
    trees: Mapping[int, str] = field(default_factory=dict)
    """Digest of a script's folder by node; empty where there is nothing."""

    step: int | None = None
    """The step that is being brought everywhere, or was; None: there is none to go on from."""
    over: bool = False
    stuck: bool = False
    """Something is there to go on from, and not every node can have it."""
    troubles: list[str] = field(default_factory=list)
    """Why newer steps are not used, in words."""
    given_up: list[str] = field(default_factory=list)
    """Those of them after which an intact step was left for an older one."""
    ready: set[int] = field(default_factory=set)
    _left: list[int] = field(default_factory=list)
    _holders: set[int] = field(default_factory=set)
    _asked: dict[int, Order] = field(default_factory=dict)
    _failed: dict[int, set[int]] = field(default_factory=dict)
    """By taker, the sources that could not give."""
    _blocked: bool = False
    """A step was given up that some node may still have."""

    def __post_init__(self) -> None:
        self._left = sorted(frozenset[int]().union(*self.steps.values()))
        self._next()

    @property
    def by_tree(self) -> bool:
        return any(self.trees.values())

    @property
    def asked(self) -> Mapping[int, Order]:
        """Orders that have not been answered."""
        return self._asked

    def orders(self) -> list[Order]:
        """What is to be said now; each order is handed out once."""
        if self.over:
            return []
        found = []
        for position, node in enumerate(sorted(self.steps)):
            if node in self.ready or node in self._asked:
                continue
            order = self._order(node, position)
            if order is not None and (not order.sources or self._has_a_free_source()):
                self._asked[node] = order
                found.append(order)
        return found

    def done(self, node: int) -> None:
        """The node has it, intact."""
        if self._asked.pop(node, None) is None:
            return
        self.ready.add(node)
        if len(self.ready) == len(self.steps):
            self.over = True

    def damaged(self, node: int, why: str) -> None:
        """What the node had is not what was written."""
        if self._asked.pop(node, None) is None:
            return
        self.troubles.append(f"node {node}: {why}")
        self._holders.discard(node)
        self._give_up_if_nobody_has_it()

    def failed(self, node: int, sources: Mapping[int, str]) -> None:
        """The node could not take it from any of these sources."""
        if self._asked.pop(node, None) is None:
            return
        self._failed.setdefault(node, set()).update(sources)
        self.troubles += [f"node {node} from node {source}: {why}" for source, why in sources.items()]
        if not self._sources(node):
            self._give_up(f"node {node} cannot have {self.goal}: no node could give it")

    def refused(self, node: int, why: str) -> None:
        """The node cannot take it from anybody."""
        if self._asked.pop(node, None) is not None:
            self._give_up(f"node {node} cannot take {self.goal}: {why}")

    @property
    def goal(self) -> str:
        return "the checkpoint folder" if self.by_tree else f"step {self.step}"

    def _order(self, node: int, position: int) -> Order | None:
        if self.by_tree:
            return Order(node=node, step=None, sources=self._one_of_each(node, position))
        if node in self._holders:
            return Order(node=node, step=self.step)
        sources = self._sources(node)
        turn = position % len(sources) if sources else 0
        # Takers begin at different sources.
        return Order(node=node, step=self.step, sources=sources[turn:] + sources[:turn]) if sources else None

    def _has_a_free_source(self) -> bool:
        """Whoever has it by then gives it to the next: so many takers are served in few rounds."""
        takers = sum(1 for order in self._asked.values() if order.sources)
        sources = len(self.trees) if self.by_tree else len(self._holders | self.ready)
        return takers < TAKERS_PER_SOURCE * sources

    def _sources(self, node: int) -> tuple[int, ...]:
        if self.by_tree:
            needed = {
                digest for number, digest in self.trees.items() if digest and digest != self.trees[node]
            }
            found = self._one_of_each(node, 0)
            return found if len(found) == len(needed) else ()
        having = self._holders | self.ready
        return tuple(sorted(having - self._failed.get(node, set()) - {node}))

    def _one_of_each(self, node: int, position: int) -> tuple[int, ...]:
        """For each kind of folder that this node does not have, one node that has it."""
        kinds: dict[str, list[int]] = {}
        for number, digest in sorted(self.trees.items()):
            if digest and digest != self.trees[node] and number not in self._failed.get(node, set()):
                kinds.setdefault(digest, []).append(number)
        return tuple(sorted(numbers[position % len(numbers)] for numbers in kinds.values()))

    def _give_up_if_nobody_has_it(self) -> None:
        if not self.by_tree and not (self._holders | self.ready):
            self._next()

    def _give_up(self, why: str) -> None:
        self.troubles.append(why)
        self.given_up.append(why)
        self._blocked = True
        self._next()

    def _next(self) -> None:
        """The newest step that is left, or the end."""
        self.ready.clear()
        self._asked.clear()
        self._failed.clear()
        if self.by_tree and not self._blocked:
            return
        self.step = self._left.pop() if self._left else None
        if self.step is None:
            self.over, self.stuck = True, self._blocked
            return
        self._holders = {node for node, steps in self.steps.items() if self.step in steps}


@dataclass(kw_only=True)
class Restoring:
    """One attempt as the coordinator goes through it."""

    plan: Restoration
    numbers: dict[int, int] = field(default_factory=dict)
    """By node: the number of the Prepare that it was sent last."""
    heard: dict[int, tuple[float, int]] = field(default_factory=dict)
    """By node: when it last got further, and how many bytes it had then."""
    again_at: float | None = None
    """It is stuck until then."""
    sentence: str = ""
    """For people."""
