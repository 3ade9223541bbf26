"""Whatever request the operator dies at, before or after it took effect, the end is the same; two at once do no harm.

Each story is first played without a fault to learn its requests; then once for every request and both sides of it.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.operator.fake_api import Crash, failure, last_words, terminated
from tests.operator.world import World

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, RunState

Story = Callable[[World], Awaitable[None]]


async def starts(world: World) -> None:
    await world.apply()
    await world.passes(10)
    await world.run()
    await world.passes(2)


async def replaces_a_deleted_pod(world: World) -> None:
    await starts(world)
    await world.delete("pods", world.live()[1])
    await world.passes(10)
    await world.stopped("train-1")
    await world.run()


async def replaces_a_failed_pod(world: World) -> None:
    await starts(world)
    await world.end(world.live()[1], terminated(137, reason="OOMKilled"))
    await world.passes(30)
    await world.run()


async def loses_a_pod_and_then_its_replacement(world: World) -> None:
    """The coordinator tells of the first alone: the second is in no generation."""
    await starts(world)
    await world.say(state=RunState.RUNNING)
    uid = world.pod(world.live()[1])["metadata"]["uid"]
    lost = Failure(reason=Reason.POD_LOST, node=1, pod_uid=uid, generation=1, at="2026-01-01T00:00:09Z")
    await world.end(world.live()[1], terminated(137))
    report = {"state": RunState.WAITING, "disruptions": 1, "failures": (lost,), "last_failure": lost}
    await world.passes(30)
    await world.say(**report)
    await world.end(world.live()[1], terminated(137, reason="OOMKilled"))
    await world.passes(30)
    await world.say(**report)
    await world.run()


async def loses_the_coordinator_and_another(world: World) -> None:
    await starts(world)
    names = list(world.live().values())
    for name in names:
        world.api.delete("pods", "ns", name)
    await world.settle()
    await world.passes(10)
    for name in names:
        await world.stopped(name)
    await world.run()


async def loses_the_coordinators_node(world: World) -> None:
    await starts(world)
    await world.node("node-0", ready=False)
    await world.passes(121)
    await world.passes(10)
    await world.run()


async def loses_all_its_nodes_at_once(world: World) -> None:
    await starts(world)
    for name in ("node-0", "node-1"):
        await world.node(name, ready=False)
    await world.passes(121)
    await world.passes(10)
    await world.run()


async def does_not_meet_at_first(world: World) -> None:
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    await world.passes(10)
    names = list(world.live().values())
    await world.place(names[0], running={})
    await world.place(names[1], waiting={"reason": "ImagePullBackOff", "message": "no such image"})
    await world.passes(61)
    await world.passes(5)
    for name in names:
        await world.stopped(name)
    await world.passes(60)
    await world.passes(5)
    await world.run()


async def completes(world: World) -> None:
    await starts(world)
    await world.done(result={"accuracy": 1.0})
    await world.passes(60)


async def fails_by_its_budget(world: World) -> None:
    await world.apply(recovery={"maxRestarts": 0})
    await world.passes(10)
    await world.run()
    await world.end(world.live()[0], terminated(1))
    await world.passes(60)


async def hangs_with_no_restart_left(world: World) -> None:
    await world.apply(recovery={"maxRestarts": 0})
    await world.passes(10)
    await world.run()
    hang = {
        "reason": "NoProgress",
        "rank": 1,
        "node": 1,
        "pod": "train-1",
        "generation": 1,
        "message": "no step",
    }
    for name in list(world.live().values()):
        index = int(world.pod(name)["metadata"]["labels"]["ddpjob.dev/index"])
        await world.end(name, terminated(87, message=last_words("Failed", 87, index, failure=hang)))
    await world.passes(60)


async def is_suspended_and_resumed(world: World) -> None:
    await starts(world)
    await world.patch(suspend=True)
    await world.passes(10)
    for name in list(world.api.pods()):
        await world.stopped(name)
    await world.patch(suspend=False)
    await world.passes(10)
    await world.run()


async def is_edited_in_a_suspension_that_nobody_sees(world: World) -> None:
    await starts(world)
    await world.patch(env=[{"name": "A", "value": "b"}])
    await world.passes(10)
    for name in ("train-0", "train-1"):
        await world.stopped(name)
    await world.passes(10)
    await world.run()


async def is_deleted(world: World) -> None:
    await starts(world)
    await world.delete()
    await world.passes(10)
    for name in list(world.api.pods()):
        await world.stopped(name)
    await world.passes(10)


STORIES: list[Story] = [
    starts, replaces_a_deleted_pod, replaces_a_failed_pod, loses_a_pod_and_then_its_replacement,
    loses_the_coordinator_and_another,
    loses_the_coordinators_node, loses_all_its_nodes_at_once, does_not_meet_at_first, completes,
    fails_by_its_budget, hangs_with_no_restart_left, is_suspended_and_resumed,
    is_edited_in_a_suspension_that_nobody_sees, is_deleted,
]  # fmt: skip


def outcome(world: World) -> dict[str, Any]:
    """What must not depend on where the operator died. (Names may: a number can be skipped, never used twice.)"""
    assert len(world.created) == len(set(world.created)), f"a name was used twice: {world.created}"
    if ("ddpjobs", "ns", "train") not in world.api.objects:
        return {"left": sorted(key for key in world.api.objects if key[0] not in ("events", "nodes"))}
    status = world.status
    return {
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]},
        "counts": {
            name: status.get(name) for name in ("restarts", "disruptions", "state", "ready", "result")
        },
        "nodes": status["nodes"],
        "live": sorted(world.live()),
        "tracked": sorted(
            world.pod(name)["metadata"]["labels"]["ddpjob.dev/index"] for name in world.tracked()
        ),
        "children": sorted(key for key in world.api.objects if key[0] in ("services", "secrets")),
    }


async def played(
    story: Story, fault: Callable[[World], None] = lambda world: None, operators: int = 1
) -> World:
    """The world after the story; `api.requests` are those of the story itself."""
    world = await World().start(operators)
    world.api.requests.clear()
    fault(world)
    await story(world)
    await world.passes(60)
    world.api.before, world.api.after = lambda method, path: None, lambda method, path: None
    requests = list(world.api.requests)
    await world.resync()
    world.api.requests[:] = requests
    return world


def counted(world: World) -> int:
    return sum(len(tally.incidents) for tally in world.tallies)


def happened(world: World) -> int:
    """Restarts and disruptions, and the failure after which there was none."""
    status = world.newest
    return status.get("restarts", 0) + status.get("disruptions", 0) + (status.get("state") == "Failed")


def counts_nothing_twice(world: World) -> None:
    """A write whose answer was lost may go uncounted, and no transition is counted by two."""
    status = world.newest
    assert counted(world) <= happened(world)
    stages = [stage for tally in world.tallies for stage in tally.stages]
    assert len(stages) <= len(set(stages)) * (2 if status.get("activeSeconds") else 1), stages
    seconds = sum(sum(tally.seconds.values()) for tally in world.tallies)
    assert seconds <= sum(status.get("time", {}).values())


def dies_at(request: int, *, answered: bool) -> Callable[[World], None]:
    """The operator dies at its k-th request: before it reached the server, or before its answer came back."""

    def fault(world: World) -> None:
        left = request

        def count(method: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise Crash

        if answered:
            world.api.after = count
        else:
            world.api.before = count

    return fault


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_the_end_is_the_same_wherever_the_operator_dies(story: Story) -> None:
    whole = await played(story)
    expected, requests = outcome(whole), len(whole.api.requests)
    assert counted(whole) == happened(whole)
    for answered in (False, True):
        for k in range(requests):
            world = await played(story, dies_at(k, answered=answered))
            at = f"died {'after' if answered else 'before'} request {k}: {whole.api.requests[k]}"
            assert outcome(world) == expected, at
            assert world.crashes <= 1
            counts_nothing_twice(world)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_the_end_is_the_same_with_an_error_at_any_request(story: Story) -> None:
    whole = await played(story)
    expected, requests = outcome(whole), len(whole.api.requests)

    def fails_at(request: int) -> Callable[[World], None]:
        def fault(world: World) -> None:
            left = request

            def answer(method: str, path: str) -> Any:
                nonlocal left
                left -= 1
                return failure(500, "InternalError", "etcd is busy") if left == -1 else None

            world.api.before = answer

        return fault

    for k in range(requests):
        world = await played(story, fails_at(k))
        assert outcome(world) == expected, f"error at request {k}: {whole.api.requests[k]}"


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_two_operators_at_once_do_no_harm(story: Story) -> None:
    expected = outcome(await played(story))
    world = await played(story, operators=2)
    assert outcome(world) == expected
    counts_nothing_twice(world)
    assert world.created == (await played(story)).created


async def test_two_operators_write_nothing_more_once_they_agree() -> None:
    world = await played(starts, operators=2)
    before = len(world.api.writes)
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert len(world.api.writes) == before
