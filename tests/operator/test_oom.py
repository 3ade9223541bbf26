"""Pods that end together, some out of memory: one restart, in whatever order their ends and the coordinator's word come.

Kubelets report independently, and a coordinator names the lowest of the pods that it lost.
"""

from dataclasses import replace
from itertools import permutations

import pytest
from tests.operator.fake_api import terminated
from tests.operator.test_counting import counted
from tests.operator.world import World, started

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, RunState
from ddpjob_operator.model import stamp

EVICTED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}


class Told:
    """One generation of four nodes that loses pods, seen piece by piece."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lost = Failure(
            reason=Reason.POD_LOST,
            node=1,
            pod="train-1",
            pod_uid=world.pod("train-1")["metadata"]["uid"],
            generation=1,
        )

    @classmethod
    async def training(cls, **recovery: int) -> "Told":
        world = await started(nodes=4, recovery=recovery)
        await world.say(state=RunState.RUNNING, generation=1, nodes_joined=4, nodes_expected=4)
        return cls(world)

    async def of(self, piece: str) -> None:
        name, _, evicted = piece.partition(" ")
        if piece == "report":
            self.lost = replace(self.lost, at=stamp(self.world.api.now))
            await self.report(1, generation=1)
        elif evicted:
            await self.world.end(name, terminated(137), pod={"conditions": [EVICTED]})
        else:
            await self.world.end(name, terminated(137, reason="OOMKilled"))
        await self.world.passes(1)

    async def report(self, disruptions: int, *, generation: int) -> None:
        """The coordinator has counted each lost launcher as a disruption, and knows of restarts what new pods bring."""
        await self.world.say(
            state=RunState.WAITING, generation=generation, disruptions=disruptions, restarts=generation - 1,
            failures=(self.lost,), last_failure=self.lost, nodes_joined=2, nodes_expected=4,
        )  # fmt: skip

    async def replacement(self, name: str, ending: str) -> None:
        """The one that waits for the next generation ends, too."""
        await self.world.passes(30)
        await self.world.run(ready=False)
        if ending == "evicted":
            await self.of(f"{name} evicted")
        elif ending == "out of memory":
            await self.of(name)
        else:
            await self.world.end(name, terminated(1))
            await self.world.passes(1)

    async def go_on(self, disruptions: int, restarts: int) -> None:
        """The next generation trains, and what it loses is one disruption more."""
        await self.world.passes(600)
        await self.world.run()
        counts = {"nodes_joined": 4, "nodes_expected": 4, "generation": 2, "restarts": restarts}
        await self.world.say(
            state=RunState.RUNNING, disruptions=disruptions, failures=(self.lost,), last_failure=self.lost, **counts
        )  # fmt: skip
        before = self.counts
        later = replace(
            self.lost, generation=2, node=3, pod="train-3", pod_uid="later", at=stamp(self.world.api.now)
        )
        await self.world.say(
            state=RunState.WAITING, disruptions=disruptions + 1, failures=(self.lost, later), last_failure=later, **counts
        )  # fmt: skip
        assert self.counts == (before[0], before[1] + 1), "what is lost later counts"

    @property
    def told(self) -> int:
        """The disruptions that a new coordinator begins with: those of its predecessors, by their count."""
        return self.counts[1] + self.world.status.get("misjudged", {}).get("count", 0)

    @property
    def counts(self) -> tuple[int, int]:
        return self.world.status["restarts"], self.world.status["disruptions"]


def orders(*pieces: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("order", [*permutations((*pieces, "report"))], ids=", ".join)


async def is_one_restart(told: Told, order: tuple[str, ...]) -> None:
    for piece in order:
        await told.of(piece)
    assert told.counts == (1, 0)
    assert told.world.status["lastFailure"]["reason"] == "OOMKilled"
    await told.world.passes(30)
    await told.world.run()
    await told.report(1, generation=2)
    assert told.counts == (1, 0)
    await told.report(2, generation=2)
    assert told.counts == (1, 1), "what is lost later counts"


@orders("train-1", "train-2")
async def test_two_pods_out_of_memory_at_once_are_one_restart(order: tuple[str, ...]) -> None:
    await is_one_restart(await Told.training(), order)


@orders("train-1", "train-2", "train-3")
async def test_three_pods_out_of_memory_at_once_are_one_restart(order: tuple[str, ...]) -> None:
    await is_one_restart(await Told.training(), order)


@orders("train-1 evicted", "train-2")
async def test_a_pod_out_of_memory_and_one_evicted_at_once_are_one_restart(order: tuple[str, ...]) -> None:
    await is_one_restart(await Told.training(), order)


async def test_one_evicted_and_one_out_of_memory_that_are_seen_together_are_one_restart() -> None:
    told = await Told.training()
    told.world.operators.clear()
    await told.of("train-1 evicted")
    await told.of("train-2")
    await told.world.start()
    await told.world.settle()
    assert (told.counts, told.world.status["lastFailure"]["pod"]) == ((1, 0), "train-2")


@pytest.mark.parametrize("first", ["report", "train-1 evicted"])
async def test_a_pod_out_of_memory_beside_a_lost_one_with_no_restart_left_is_counted_once(first: str) -> None:
    told = await Told.training(maxRestarts=0)
    await told.of(first)
    await told.of("train-2")
    assert told.world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert len(counted(told.world)[1]) == 1


async def test_a_disruption_that_is_not_the_lost_pods_stays_beside_the_restart() -> None:
    """The coordinator names a launcher that was cut off: it holds on to what it has counted."""
    told = await Told.training()
    told.lost = replace(told.lost, reason=Reason.DISRUPTED, node=3, pod="train-3", pod_uid="cut-off")
    for piece in ("report", "train-2"):
        await told.of(piece)
    assert told.counts == (1, 1)
    assert Reason.UNKNOWN not in counted(told.world)[1]


async def test_a_ranks_own_failure_beside_a_pod_out_of_memory_is_one_restart() -> None:
    told = await Told.training()
    failed = replace(told.lost, reason=Reason.PROGRAM_FAILED, rank=1, at=stamp(told.world.api.now))
    await told.world.say(state=RunState.WAITING, restarts=1, last_failure=failed, failures=(failed,))
    await told.of("train-2")
    assert told.counts == (1, 0)
    assert told.world.status["lastFailure"]["rank"] == 1


@pytest.mark.parametrize("generation", [1, 2])
async def test_a_rank_that_failed_is_not_taken_for_a_pod_that_is_lost(generation: int) -> None:
    """Also where a coordinator charges both to one generation: its totals stand."""
    told = await Told.training()
    failed = replace(told.lost, reason=Reason.OOM_KILLED, rank=3, node=3, pod="train-3", pod_uid="another")
    lost = replace(told.lost, generation=generation)
    await told.world.say(
        state=RunState.RUNNING, generation=2, restarts=1, last_failure=failed, failures=(failed,)
    )
    await told.world.say(
        state=RunState.WAITING, generation=2, restarts=1, disruptions=1, last_failure=lost, failures=(failed, lost)
    )  # fmt: skip
    assert told.counts == (1, 1)


async def test_a_lost_coordinator_that_its_successor_names_is_no_disruption_of_its_totals() -> None:
    """Pods 0 and 2 were out of memory; the next coordinator tells of the one before, which nobody has counted."""
    told = await Told.training()
    await told.of("train-2")
    await told.of("train-0")
    await told.world.passes(30)
    await told.world.run()
    missed = Failure(reason=Reason.POD_LOST, node=0, generation=1, at=stamp(told.world.api.now))
    counts = {"generation": 2, "restarts": 1, "nodes_joined": 4, "nodes_expected": 4}
    await told.world.say(state=RunState.RUNNING, last_failure=missed, failures=(missed,), **counts)
    assert (told.counts, told.world.status["lastFailure"]["reason"]) == ((1, 0), "OOMKilled")
    later = replace(told.lost, generation=2)
    await told.world.say(
        state=RunState.WAITING, disruptions=1, last_failure=later, failures=(missed, later), **counts
    )
    assert told.counts == (1, 1)


@pytest.mark.parametrize("ending", ["out of memory", "exit code 1"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("order", [*permutations(("train-1 evicted", "report"))], ids=", ".join)
async def test_a_replacement_that_fails_before_the_next_generation_is_a_restart_beside_the_disruption(
    order: tuple[str, ...], times: int, ending: str
) -> None:
    told = await Told.training(maxRestarts=9)
    for piece in order:
        await told.of(piece)
    assert told.counts == (0, 1)
    for k in range(1, times + 1):
        await told.replacement(f"train-1-r{k}", ending)
        assert told.counts == (k, 1)
    assert told.told == 1
    reason = Reason.OOM_KILLED if ending == "out of memory" else Reason.PROGRAM_FAILED
    assert counted(told.world)[1][1:] == [reason] * times
    await told.go_on(told.told, times)


@pytest.mark.parametrize("ending", ["out of memory", "exit code 1", "evicted"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("late", [False, True], ids=["the report first", "the report last"])
async def test_a_replacement_that_ends_after_pods_out_of_memory_is_one_incident_more(
    late: bool, times: int, ending: str
) -> None:
    """The coordinator's one word of a lost pod stands for the restart, once, whoever ends before or after it."""
    told = await Told.training(maxRestarts=9)
    await told.of("train-2")
    if not late:
        await told.of("report")
    await told.of("train-1")
    for k in range(1, times + 1):
        await told.replacement(f"train-1-r{k}", ending)
    if late:
        await told.of("report")
    disrupted = times if ending == "evicted" else 0
    assert told.counts == (1 + times - disrupted, disrupted)
    assert told.told == disrupted + 1
    await told.go_on(told.told, told.counts[0])


async def test_an_operator_started_anew_takes_no_word_off_again() -> None:
    told = await Told.training(maxRestarts=9)
    await told.of("train-1 evicted")
    await told.of("report")
    await told.replacement("train-1-r1", "out of memory")
    told.world.operators.clear()
    await told.world.start()
    await told.world.settle()
    await told.report(1, generation=1)
    await told.replacement("train-1-r2", "out of memory")
    assert (told.counts, told.told) == ((2, 1), 1)


async def test_a_generation_that_is_heard_of_after_it_has_lost_a_pod_takes_no_replacement_in() -> None:
    told = Told(await started(nodes=4))
    await told.of("train-1 evicted")
    await told.of("report")
    await told.replacement("train-1-r1", "out of memory")
    assert (told.counts, told.told) == ((1, 1), 1)
