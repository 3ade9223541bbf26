"""Who has what, what becomes of it, and which step the training goes on from."""

from dataclasses import dataclass, field

import pytest

from ddpjob_trainer.launcher.peers.restoration import Order, Restoration


@dataclass
class World:
    """Nodes that answer their orders; some copies are damaged, some nodes give or take nothing."""

    steps: dict[int, set[int]]
    damaged: set[tuple[int, int]] = field(default_factory=set)
    dumb: set[int] = field(default_factory=set)
    """Nodes that give nothing."""
    full: set[int] = field(default_factory=set)
    """Nodes that take nothing."""
    fetched: list[tuple[int, int, int]] = field(default_factory=list)
    """Taker, step, source."""

    def play(self) -> Restoration:
        plan = Restoration(steps={node: frozenset(steps) for node, steps in self.steps.items()})
        for _ in range(100):
            orders = plan.orders()
            if not orders:
                break
            for order in orders:
                if plan.asked.get(order.node) is order:
                    self.obey(plan, order)
        assert plan.over, f"nobody works and nothing is decided: {plan}"
        return plan

    def obey(self, plan: Restoration, order: Order) -> None:
        node, step = order.node, order.step
        assert step is not None
        assert node not in order.sources
        if not order.sources:
            if (node, step) in self.damaged:
                self.steps[node].discard(step)
                plan.damaged(node, "damaged")
            else:
                assert step in self.steps[node]
                plan.done(node)
            return
        if node in self.full:
            plan.refused(node, "no room")
            return
        failures = {}
        for source in order.sources:
            if source in self.dumb or (source, step) in self.damaged or step not in self.steps[source]:
                failures[source] = "no"
                continue
            self.steps[node].add(step)
            self.fetched.append((node, step, source))
            plan.done(node)
            return
        plan.failed(node, failures)


CASES: list[tuple[str, World, int | None, bool]] = [
    ("nobody has anything", World({0: set(), 1: set()}), None, False),
    ("all have it", World({0: {10, 20}, 1: {10, 20}}), 20, False),
    ("one of three has it", World({0: set(), 1: {20}, 2: set()}), 20, False),
    ("one is behind", World({0: {10, 20}, 1: {10}}), 20, False),
    ("the newest is damaged here", World({0: {10, 20}, 1: {10, 20}}, damaged={(0, 20)}), 20, False),
    (
        "the newest is damaged everywhere",
        World({0: {10, 20}, 1: {10, 20}}, damaged={(0, 20), (1, 20)}),
        10,
        False,
    ),
    ("the only copy is damaged", World({0: {20}, 1: set()}, damaged={(0, 20)}), None, False),
    ("one source of two is damaged", World({0: {20}, 1: {20}, 2: set()}, damaged={(1, 20)}), 20, False),
    ("one source of two does not give", World({0: {20}, 1: {20}, 2: set()}, dumb={0}), 20, False),
    ("the only source does not give", World({0: {10, 20}, 1: {10}}, dumb={0}), 10, False),
    ("nobody gives what only one has", World({0: {20}, 1: set()}, dumb={0}), None, True),
    ("no room for the newest", World({0: {10, 20}, 1: {10}}, full={1}), 10, False),
    ("no room at all", World({0: {20}, 1: set()}, full={1}), None, True),
    ("a single node", World({0: {10, 20}}), 20, False),
    ("a single node's newest is damaged", World({0: {10, 20}}, damaged={(0, 20)}), 10, False),
]


@pytest.mark.parametrize(
    ("world", "step", "stuck"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_newest_step_that_all_can_have(world: World, step: int | None, stuck: bool) -> None:
    plan = world.play()
    assert (plan.step, plan.stuck) == (step, stuck)
    if step is not None:
        assert all(step in steps for steps in world.steps.values())
    if stuck:
        assert plan.troubles


def test_takers_begin_at_different_sources() -> None:
    world = World({0: {5}, 1: {5}, 2: set(), 3: set()})
    world.play()
    assert {source for _, _, source in world.fetched} == {0, 1}


def test_who_has_it_by_now_gives_it_to_the_others() -> None:
    plan = Restoration(steps={0: frozenset({5}), 1: frozenset(), 2: frozenset()})
    assert {order.node: order.sources for order in plan.orders()} == {0: (), 1: (0,), 2: (0,)}
    plan.done(0)
    plan.done(1)
    plan.failed(2, {0: "gone"})
    assert plan.orders() == [Order(node=2, step=5, sources=(1,))]


@pytest.mark.parametrize(
    ("trees", "expected"),
    [
        ({0: "", 1: ""}, None),
        ({0: "a", 1: "a"}, {0: (), 1: ()}),
        ({0: "", 1: "a"}, {0: (1,), 1: ()}),
        ({0: "a", 1: "b"}, {0: (1,), 1: (0,)}),
        ({0: "a", 1: "a", 2: "b", 3: ""}, {0: (2,), 1: (2,), 2: (0,), 3: (1, 2)}),
    ],
)
def test_folders_of_a_script_become_one(
    trees: dict[int, str], expected: dict[int, tuple[int, ...]] | None
) -> None:
    plan = Restoration(steps={node: frozenset() for node in trees}, trees=trees)
    orders = {order.node: order.sources for order in plan.orders()}
    assert orders == (expected or {})
    for node in orders:
        plan.done(node)
    assert (plan.over, plan.stuck) == (True, False)


def test_a_folder_that_cannot_be_had_is_asked_of_another_node_that_has_it() -> None:
    plan = Restoration(steps={0: frozenset(), 1: frozenset(), 2: frozenset()}, trees={0: "a", 1: "a", 2: ""})
    sources = {order.node: order.sources for order in plan.orders()}
    plan.done(0)
    plan.done(1)
    (first,) = sources[2]
    plan.failed(2, {first: "gone"})
    assert plan.orders() == [Order(node=2, step=None, sources=(1 - first,))]
    plan.failed(2, {1 - first: "gone"})
    assert (plan.over, plan.stuck) == (True, True)


def test_a_hundred_takers_of_one_source_are_served_in_rounds_that_grow() -> None:
    plan = Restoration(steps={node: frozenset({5} if node == 0 else ()) for node in range(101)})
    rounds = []
    while not plan.over:
        orders = plan.orders()
        rounds.append(sum(1 for order in orders if order.sources))
        for order in orders:
            plan.done(order.node)
    assert rounds[:3] == [4, 20, 76]
