"""Ranks that do not meet: how long they have, and how often."""

from typing import Any

import pytest
from tests.operator.world import World

from ddpjob_api.report import RunState


async def test_a_gang_that_does_not_meet_in_time_is_released() -> None:
    """From the moment the last pod is scheduled: waiting for a node does not count."""
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    await world.place("train-0", running={})
    await world.passes(1000)
    await world.place("train-1", waiting={"reason": "ImagePullBackOff", "message": "no such image"})
    await world.passes(59)
    assert sorted(world.live()) == [0, 1]
    await world.passes(2)
    assert world.live() == {}
    assert world.condition("Failed") is None
    assert world.condition("PodsReady") == ("False", "RendezvousTimeout")
    assert "(60): " in world.message("PodsReady")
    assert "no such image" in world.message("PodsReady")
    assert any("1 of 3 attempts" in event for event in world.events())


async def test_a_gang_that_did_not_meet_tries_again_and_the_third_time_has_failed() -> None:
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    for attempt in (1, 2, 3):
        names = list(world.live().values())
        assert names == [f"train-{i}{f'-r{attempt - 1}' if attempt > 1 else ''}" for i in (0, 1)]
        await world.place(names[0], running={})
        await world.place(names[1], waiting={"reason": "ImagePullBackOff", "message": "no such image"})
        await world.passes(61)
        assert world.live() == {}
        for name in list(world.api.pods()):
            await world.stopped(name)
        writes = len(world.api.writes)
        await world.passes(20)
        assert len(world.api.writes) == writes, "nothing is written while it waits"
        await world.passes(60)
    assert world.condition("Failed") == ("True", "RendezvousTimeout")
    assert "in 3 attempts" in world.message("Failed")
    assert "no such image" in world.message("Failed")
    assert (world.status["disruptions"], world.status["restarts"]) == (0, 0)


async def test_attempts_are_forgotten_once_the_ranks_have_met() -> None:
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    for name in list(world.live().values()):
        await world.place(name, waiting={"reason": "ImagePullBackOff"})
    await world.passes(61)
    assert world.status["rendezvous"]["attempts"] == 1
    await world.passes(40)
    await world.run()
    assert world.condition("Running") == ("True", "Training")
    assert "rendezvous" not in world.status
    for name in list(world.api.pods()):
        if "deletionTimestamp" in world.pod(name)["metadata"]:
            await world.stopped(name)
    assert world.status["disruptions"] == 0


@pytest.mark.parametrize("ready", [True, False])
async def test_ranks_that_were_together_have_the_whole_time_to_meet_again(ready: bool) -> None:
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    for name in ("train-0", "train-1"):
        await world.place(name, running={})
    for name in ("train-0", "train-1") if ready else ():
        world.api.change("pods", "ns", name, is_ready)
    await world.say(state=RunState.RUNNING)
    await world.passes(10_000)
    lacks = {"state": RunState.WAITING, "nodes_joined": 1, "missing_nodes": (1,), "disruptions": 1}
    await world.say(**lacks)
    if ready:
        world.api.change("pods", "ns", "train-1", lambda body: body["status"]["conditions"].pop())
        await world.settle()
    assert world.live() == {0: "train-0", 1: "train-1"}
    await world.passes(50)
    await world.say(**lacks)
    await world.passes(9)
    assert world.live() == {0: "train-0", 1: "train-1"}
    await world.passes(2)
    assert world.live() == {}


def is_ready(body: dict[str, Any]) -> None:
    body["status"]["conditions"].append({"type": "Ready", "status": "True"})


async def test_launchers_that_never_join_are_named() -> None:
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    for name in ("train-0", "train-1"):
        await world.place(name, running={})
    for seconds in (50, 11):
        await world.say(state=RunState.WAITING, nodes_joined=1, missing_nodes=(1,))
        await world.passes(seconds)
    assert world.condition("PodsReady") == ("False", "RendezvousTimeout")
    assert "the launchers of 1 have not joined" in world.message("PodsReady")


async def test_the_old_word_of_a_silent_coordinator_takes_no_training_apart() -> None:
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    for name in ("train-0", "train-1"):
        await world.place(name, running={})
    await world.say(state=RunState.WAITING, nodes_joined=1, missing_nodes=(1,))
    await world.passes(30)
    await world.resync()
    await world.passes(1000)
    await world.resync()
    assert world.live() == {0: "train-0", 1: "train-1"}
    await world.say(state=RunState.WAITING, nodes_joined=1, missing_nodes=(1,))
    assert world.live() == {}, "that it is still so is its word of now"


async def test_a_program_without_a_process_group_is_not_taken_for_one_that_does_not_meet() -> None:
    world = await World().start()
    await world.apply(recovery={"rendezvousTimeoutSeconds": 60})
    for name in ("train-0", "train-1"):
        await world.place(name, running={})
    await world.passes(100)
    assert world.condition("Failed") is None, "a coordinator out of reach is no missing launcher"
    await world.say(state=RunState.RUNNING)
    await world.passes(10_000)
    assert world.condition("Failed") is None
