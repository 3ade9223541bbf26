"""Nodes are lost; what the operator makes of it."""

from typing import Any

import pytest
from tests.operator.fake_api import failure
from tests.operator.world import Operator, World, node_body

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, RunState


async def trains(**spec: Any) -> World:
    """Two pods on two nodes, the coordinator says that all are there."""
    world = await World().start()
    await world.apply(**spec)
    await world.run()
    await world.say(state=RunState.RUNNING)
    return world


async def misses(world: World, *nodes: int) -> None:
    await world.say(
        state=RunState.WAITING, nodes_joined=2 - len(nodes), missing_nodes=tuple(nodes), disruptions=1
    )


async def test_a_pod_on_a_lost_node_is_replaced_and_the_node_is_named() -> None:
    world = await trains()
    await world.node("node-1", ready=False)
    await misses(world, 1)
    await world.passes(119)
    assert world.live() == {0: "train-0", 1: "train-1"}
    await misses(world, 1)
    await world.passes(2)
    assert world.live() == {0: "train-0", 1: "train-1-r1"}
    assert "train-1" not in world.api.pods(), "taken away by force: nobody else would end it"
    assert (world.status["disruptions"], world.status["restarts"]) == (1, 0)
    failure = world.status["lastFailure"]
    assert (failure["reason"], failure["hostNode"]) == ("NodeLost", "node-1")
    assert "node node-1 is NotReady: NodeStatusUnknown: Kubelet stopped" in failure["message"]
    assert world.condition("Restarting") == ("True", "NodeLost")


async def test_the_wait_is_said_with_the_moment_of_its_end() -> None:
    world = await trains(recovery={"nodeLostTimeoutSeconds": 60})
    world.api.change("pods", "ns", "train-1", lambda body: body["status"].update(conditions=[]))
    await world.node("node-1", ready=False)
    await misses(world, 1)
    assert world.condition("PodsReady") == ("False", "NodeNotReady")
    assert "pod train-1: node node-1 is NotReady" in world.message("PodsReady")
    assert "given up at 2026-01-01T00:01:00Z" in world.message("PodsReady")
    assert any(event.startswith("NodeNotReady: ") for event in world.events())
    await world.node("node-1")
    await world.passes(1000)
    assert world.live() == {0: "train-0", 1: "train-1"}
    assert world.condition("PodsReady") == ("False", "PodsStarting")


async def test_a_rank_that_the_coordinator_sees_alive_is_kept_though_its_kubelet_is_dead() -> None:
    world = await trains()
    await world.node("node-1", ready=False)
    for _ in range(60):
        await world.say(state=RunState.RUNNING)
        await world.passes(10)
    assert world.live() == {0: "train-0", 1: "train-1"}
    before = len(world.api.writes)
    await world.say(state=RunState.RUNNING)
    await world.passes(10)
    assert len(world.api.writes) == before
    await misses(world, 1)
    await world.passes(11)
    assert world.live()[1] == "train-1-r1"


async def test_a_silent_coordinator_on_a_lost_node_is_replaced_and_one_that_answers_is_not() -> None:
    world = await trains()
    await world.node("node-0", ready=False)
    for _ in range(30):
        await world.say(state=RunState.RUNNING)
        await world.passes(10)
    assert world.live()[0] == "train-0"
    await world.passes(30)
    await world.passes(10)
    assert world.live() == {0: "train-0-r1", 1: "train-1"}
    assert world.status["disruptions"] == 1


async def test_a_coordinator_out_of_the_operators_reach_loses_nobody() -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    await world.node("node-1", ready=False)
    await world.passes(1000)
    assert world.live() == {0: "train-0", 1: "train-1"}
    await world.node("node-0", ready=False)
    await world.passes(121)
    await world.passes(10)
    assert world.live() == {0: "train-0-r1", 1: "train-1-r1"}
    assert world.status["disruptions"] == 1, "one incident, whatever it takes down"


async def test_a_node_that_does_not_exist_any_more_is_a_lost_one() -> None:
    world = await trains()
    world.api.delete("nodes", "", "node-1")
    await world.settle()
    await world.passes(119)
    await misses(world, 1)
    await world.passes(2)
    assert world.live()[1] == "train-1-r1"
    assert "node node-1 does not exist any more" in world.status["lastFailure"]["message"]


async def test_a_node_that_joins_while_all_are_listed_is_there() -> None:
    world = await trains()
    nodes = world.operator.nodes

    def joins(method: str, path: str) -> None:
        if (method, path) == ("GET", "/api/v1/nodes"):
            world.api.after = lambda method, path: None
            world.api.create("nodes", "", node_body("node-9", world.api.now, ready=True))

    world.api.after = joins
    await world.resync()
    assert nodes.away("node-9") is None
    world.operators.clear()  # whose watch misses that it goes again
    world.api.delete("nodes", "", "node-9")
    operator = Operator(world.api)
    operator.nodes = nodes
    await operator.start()
    assert nodes.away("node-9") is not None


async def test_in_a_storm_no_pod_is_given_up_and_the_job_says_so() -> None:
    world = await trains()
    world.api.change("pods", "ns", "train-1", lambda body: body["status"].update(conditions=[]))
    for index in range(1, 6):
        await world.node(f"node-{index}", ready=False)
    for _ in range(40):
        await misses(world, 1)
        await world.passes(10)
    assert world.live() == {0: "train-0", 1: "train-1"}
    assert world.condition("PodsReady") == ("False", "NodeStorm")
    assert "5 of 8 nodes are NotReady" in world.message("PodsReady")
    assert any("5 of 8 nodes" in event for event in world.events())
    await world.node("node-5")
    await misses(world, 1)
    await world.passes(10)
    assert world.live()[1] == "train-1-r1"


async def test_a_terminating_pod_of_a_lost_node_does_not_stay_for_ever() -> None:
    world = await trains()
    await world.node("node-1", ready=False)
    await world.delete("pods", "train-1")
    assert world.live()[1] == "train-1-r1"
    await world.passes(121)
    assert "train-1" not in world.api.pods()
    assert world.status["disruptions"] == 1

    world = await trains()
    await world.node("node-1", ready=False)
    await world.patch(suspend=True)
    await world.stopped("train-0")
    await world.passes(121)
    assert world.condition("Suspended") == ("True", "Suspended")


async def test_a_pod_that_was_given_up_and_comes_back_is_not_the_jobs_any_more() -> None:
    world = await trains()
    world.api.before = lambda method, path: (
        failure(500, "InternalError", "no") if (method, path[-8:]) == ("DELETE", "/train-1") else None
    )
    await world.node("node-1", ready=False)
    await world.passes(119)
    await misses(world, 1)
    await world.passes(2)
    assert "train-1-r1" in world.api.pods(), "cleaning up may fail, replacing must not"
    world.api.before = lambda method, path: None
    await world.node("node-1")
    await world.passes(2)
    assert world.live() == {0: "train-0", 1: "train-1-r1"}


async def test_the_cause_the_cluster_knows_stays_when_the_coordinator_repeats_its_own() -> None:
    world = await trains()
    uid = world.pod("train-1")["metadata"]["uid"]
    lost = Failure(reason=Reason.POD_LOST, node=1, pod="train-1", pod_uid=uid, at="2026-01-01T00:00:05Z")
    said: dict[str, Any] = {"state": RunState.WAITING, "nodes_joined": 1, "missing_nodes": (1,),
                            "disruptions": 1, "failures": (lost,), "last_failure": lost}  # fmt: skip
    await world.say(**said)
    assert world.status["lastFailure"]["reason"] == "PodLost"
    await world.node("node-1", ready=False)
    await world.passes(119)
    await world.say(**said)
    await world.passes(2)
    assert world.live()[1] == "train-1-r1"
    assert (world.status["lastFailure"]["reason"], world.status["disruptions"]) == ("NodeLost", 1)
    before = len(world.api.writes)
    await world.say(**said)
    await world.passes(60)
    await world.resync()  # the coordinator has not answered for a minute
    assert world.status["lastFailure"]["reason"] == "NodeLost"
    assert len(world.api.writes) == before


@pytest.mark.parametrize("watched", [True, False])
async def test_without_sight_of_nodes_kubernetes_deletes_the_pods_in_the_same_time(watched: bool) -> None:
    world = await World().start()
    world.operator.nodes.watched = watched
    await world.apply(recovery={"nodeLostTimeoutSeconds": 60})
    found = world.pod("train-0")["spec"].get("tolerations", [])
    assert [(t["key"], t["tolerationSeconds"]) for t in found] == (
        [] if watched else [("node.kubernetes.io/not-ready", 60), ("node.kubernetes.io/unreachable", 60)]
    )


async def test_a_coordinator_that_follows_a_lost_one_does_not_take_back_that_its_node_was() -> None:
    world = await trains()
    await world.node("node-0", ready=False)
    await world.passes(121)
    assert world.live()[0] == "train-0-r1"
    assert world.status["lastFailure"]["hostNode"] == "node-0"
    # It knows no more than that there was one.
    gone = Failure(reason=Reason.POD_LOST, node=0, generation=1, at="2027-01-01T00:00:00Z", message="is gone")
    await world.place("train-0-r1", running={})
    await world.say(state=RunState.RUNNING, generation=2, term=2, failures=(gone,), last_failure=gone)
    failure = world.status["lastFailure"]
    assert (failure["reason"], failure["hostNode"]) == ("NodeLost", "node-0")
