"""What is counted as a restart or a disruption, once, and what is made again."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.fake_api import last_words, terminated
from tests.operator.world import running, started

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, RunState


async def test_a_deleted_pod_is_replaced_at_once_while_the_other_stays() -> None:
    world = await started()
    survivor = world.pod("train-0")["metadata"]["uid"]
    await world.delete("pods", "train-1")
    assert world.live() == {0: "train-0", 1: "train-1-r1"}
    assert world.pod("train-0")["metadata"]["uid"] == survivor
    assert "train-1" in world.api.pods(), "the predecessor may still be saving"
    assert (world.status["disruptions"], world.status["restarts"]) == (1, 0)
    assert world.condition("Restarting") == ("True", "Disrupted")
    await world.stopped("train-1")
    assert "train-1" not in world.api.pods()
    await world.run()
    assert world.condition("Restarting") == ("False", "Training")
    assert world.status["disruptions"] == 1


async def test_five_deletions_take_five_names_and_count_five() -> None:
    world = await started()
    for k in range(1, 6):
        await world.delete("pods", world.live()[1])
        assert world.live()[1] == f"train-1-r{k}"
    assert world.status["disruptions"] == 5
    assert len(world.created) == len(set(world.created))


async def test_pods_of_one_incident_count_once() -> None:
    world = await started(nodes=4)
    await world.say(generation=3, state=RunState.RUNNING, nodes_joined=4, nodes_expected=4)
    await world.delete("pods", "train-2")
    await world.delete("pods", "train-0")
    await world.delete("pods", "train-3")
    assert world.status["disruptions"] == 1
    assert sorted(world.live()) == [0, 1, 2, 3]


async def test_what_coordinator_and_operator_both_saw_counts_once() -> None:
    world = await started()
    uid = world.pod("train-1")["metadata"]["uid"]
    lost = Failure(reason=Reason.POD_LOST, node=1, pod="train-1", pod_uid=uid, at="2026-01-01T00:00:01Z")
    await world.say(state=RunState.WAITING, disruptions=1, failures=(lost,), last_failure=lost)
    await world.end("train-1", terminated(137))
    assert world.status["disruptions"] == 1
    assert world.status["lastFailure"]["pod"] == "train-1"


async def test_a_departure_the_coordinator_has_counted_is_not_counted_again() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    await world.say(state=RunState.WAITING, disruptions=1)
    await world.delete("pods", "train-1")
    assert world.status["disruptions"] == 1
    await world.say(state=RunState.RUNNING, disruptions=1, generation=2)
    await world.delete("pods", "train-1-r1")
    assert world.status["disruptions"] == 2


async def test_a_loss_right_after_a_restart_that_fell_between_two_polls_counts() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING, generation=1)
    failed = Failure(reason=Reason.PROGRAM_FAILED, rank=1, node=1, generation=1, at="2026-01-01T00:00:01Z")
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, failures=(failed,), last_failure=failed)
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    await world.end("train-0", terminated(137))
    await world.end("train-1", terminated(137))
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 1)
    await world.passes(10)
    assert sorted(world.live()) == [0, 1]


async def test_a_pod_whose_program_failed_once_and_that_is_lost_later_is_a_restart_and_a_disruption() -> None:
    world = await started()
    uid = world.pod("train-1")["metadata"]["uid"]
    failed = Failure(
        reason=Reason.PROGRAM_FAILED, rank=1, node=1, pod_uid=uid, generation=1, at="2026-01-01T00:00:01Z"
    )
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, failures=(failed,), last_failure=failed)
    lost = Failure(reason=Reason.POD_LOST, node=1, pod_uid=uid, generation=2, at="2026-01-01T00:00:09Z")
    await world.say(
        state=RunState.WAITING, generation=2, restarts=1, disruptions=1, failures=(failed, lost), last_failure=lost
    )  # fmt: skip
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 1)
    await world.end("train-0", terminated(137))
    await world.end("train-1", terminated(137))
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 1)
    assert world.status["lastFailure"]["reason"] == "Killed"
    await world.passes(10)
    assert sorted(world.live()) == [0, 1]


async def test_all_pods_lost_are_a_disruption_where_the_first_to_end_had_failed_once() -> None:
    """Its coordinator is lost, too, and counts nothing; its rank's failure before is no word of this end."""
    world = await started()
    uid = world.pod("train-1")["metadata"]["uid"]
    failed = Failure(
        reason=Reason.PROGRAM_FAILED, rank=1, node=1, pod_uid=uid, generation=1, at="2026-01-01T00:00:01Z"
    )
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, failures=(failed,), last_failure=failed)
    await world.end("train-1", terminated(137))
    await world.end("train-0", terminated(137))
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 1)


async def test_the_failure_of_a_later_generation_is_the_last_whatever_its_nodes_clock_says() -> None:
    world = await started()
    first = Failure(
        reason=Reason.PROGRAM_FAILED, rank=1, node=1, generation=1, message="ahead", at="2026-01-01T00:10:00Z"
    )
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, failures=(first,), last_failure=first)
    second = replace(first, rank=0, node=0, generation=2, message="behind", at="2026-01-01T00:05:00Z")
    await world.say(
        state=RunState.RUNNING, generation=3, restarts=2, failures=(first, second), last_failure=second
    )
    assert world.status["lastFailure"]["message"] == "behind"
    assert [event for event in world.events() if "behind" in event] != []
    third = replace(second, generation=3, message="ahead again", at="2026-01-01T00:20:00Z")
    await world.say(
        state=RunState.RUNNING, generation=4, restarts=3, failures=(second, third), last_failure=third
    )
    await world.delete("pods", "train-1")
    assert world.status["lastFailure"]["pod"] == "train-1"


async def test_an_oom_kill_that_the_coordinator_saw_as_a_loss_is_a_restart() -> None:
    world = await started()
    uid = world.pod("train-1")["metadata"]["uid"]
    lost = Failure(
        reason=Reason.POD_LOST, node=1, pod="train-1", pod_uid=uid, generation=1, at="2025-12-31T23:59:59Z"
    )
    await world.say(state=RunState.WAITING, disruptions=1, failures=(lost,), last_failure=lost)
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 1)
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    await world.passes(30)
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    assert world.status["lastFailure"]["reason"] == "OOMKilled"
    await world.run()
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, disruptions=1, failures=(lost,))
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    before = len(world.api.writes)
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, disruptions=1, failures=(lost,))
    assert len(world.api.writes) == before
    await world.say(state=RunState.WAITING, generation=2, restarts=1, disruptions=2, failures=(lost,))
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 1)


async def test_an_oom_kill_that_the_coordinator_reports_later_is_counted_once_too() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    uid = world.pod("train-1")["metadata"]["uid"]
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    lost = Failure(
        reason=Reason.POD_LOST, node=1, pod="train-1", pod_uid=uid, generation=1, at="2026-01-01T00:00:00Z"
    )
    await world.say(state=RunState.WAITING, disruptions=1, failures=(lost,), last_failure=lost)
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    assert world.status["lastFailure"]["reason"] == "OOMKilled"


async def test_a_launcher_that_lived_on_knows_better_than_the_kubelets_word() -> None:
    world = await started()
    words = last_words("Stopped", 85, 1, message="stopped on request")
    await world.end("train-1", terminated(85, reason="OOMKilled", message=words))
    assert world.status["restarts"] == 0


async def test_pods_that_a_kubelet_refuses_are_not_made_in_a_tight_loop() -> None:
    world = await started()
    refused = {"reason": "UnexpectedAdmissionError", "message": "no device", "containerStatuses": []}
    await world.end("train-1", terminated(1), pod=refused)
    assert list(world.live()) == [0]
    assert (world.status["disruptions"], world.status["restarts"]) == (1, 0)
    assert "UnexpectedAdmissionError: no device" in world.status["lastFailure"]["message"]
    await world.passes(10)
    assert list(world.live()) == [0, 1]


async def test_an_oom_kill_is_a_restart_and_names_the_limit() -> None:
    world = await started(resourcesPerNode={"limits": {"memory": "2Gi"}})
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    await world.passes(10)
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    assert world.status["lastFailure"]["reason"] == "OOMKilled"
    assert world.status["lastFailure"]["message"].endswith(" ran out of memory (limit 2Gi) and was killed")
    assert world.live()[1] == "train-1-r1"
    env = {v["name"]: v.get("value") for v in world.pod("train-1-r1")["spec"]["containers"][0]["env"]}
    assert env["DDPJOB_RESTARTS"] == "1"


async def test_an_evicted_pod_is_a_disruption_in_the_clusters_words() -> None:
    world = await started()
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    await world.end(
        "train-1", terminated(85, message=last_words("Stopped", 85, 1)), pod={"conditions": [target]}
    )
    assert world.status["disruptions"] == 1
    assert "Eviction API: evicting" in world.status["lastFailure"]["message"]
    assert world.live()[1] == "train-1-r1"


async def test_only_the_last_failed_pod_of_an_index_is_kept_for_its_logs() -> None:
    world = await started(recovery={"maxRestarts": 10})
    for _ in range(3):
        await world.passes(60)
        await world.run()
        await world.end(world.live()[1], terminated(1))
    await world.passes(60)
    ended = [
        name for name, body in world.api.pods().items() if body.get("status", {}).get("phase") == "Failed"
    ]
    assert ended == ["train-1-r2"]
    assert world.tracked() == list(world.live().values())


async def test_a_launcher_that_fails_at_once_is_not_made_again_in_a_tight_loop() -> None:
    world = await started()
    await world.end("train-1", terminated(1))
    assert list(world.live()) == [0]
    await world.passes(10)
    assert list(world.live()) == [0, 1]


RANK_1: dict[str, Any] = {
    "rank": 1,
    "node": 1,
    "pod": "train-1",
    "host_node": "node-1",
    "step": 16,
    "generation": 1,
}
TOLD = [
    (
        Failure(
            reason=Reason.PROGRAM_FAILED, message="ValueError: bad sample 17", location="train.py:20", exit_code=1, **RANK_1
        ),
        "ProgramFailed: rank 1 (pod train-1 on node node-1): ValueError: bad sample 17 (train.py:20), exit code 1 at step 16",
    ),
    (
        Failure(reason=Reason.KILLED, message="died of SIGSEGV", signal="SIGSEGV", exit_code=139, **RANK_1),
        "Killed: rank 1 (pod train-1 on node node-1): died of SIGSEGV at step 16",
    ),
    (
        Failure(reason=Reason.NO_PROGRESS, message="no step for 60 s: …", location="train.py:20", exit_code=87, **RANK_1),
        "NoProgress: rank 1 (pod train-1 on node node-1): no step for 60 s: … (train.py:20) at step 16",
    ),
    (
        Failure(reason=Reason.POD_LOST, node=1, pod="train-1", message="the launcher of node 1 on node-1 is gone"),
        "PodLost: pod train-1: the launcher of node 1 on node-1 is gone",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("failure", "event"), TOLD, ids=[failure.reason.value for failure, _ in TOLD])
@pytest.mark.parametrize("seen", ["while the ranks start again", "when they run again"])
async def test_an_incident_is_told_with_rank_pod_place_and_step(
    failure: Failure, event: str, seen: str
) -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    lost = failure.reason is Reason.POD_LOST
    counts: dict[str, Any] = {"restarts": int(not lost), "disruptions": int(lost), "generation": 2}
    more = {**counts, "last_failure": failure, "failures": (failure,)}
    if seen == "while the ranks start again":
        for name in world.live().values():
            world.api.change("pods", "ns", name, lambda body: running(body, ready=False))
        await world.say(state=RunState.WAITING, back_off=4.2, **more)
        assert world.condition("Restarting") == ("True", failure.reason.value)
    else:
        await world.say(state=RunState.RUNNING, **more)
    reason = failure.reason.value
    told = [text for text in world.events() if text.startswith(f"{reason}: ")]
    assert told and all(text.startswith(event) for text in told), world.events()
    assert world.status["lastFailure"]["message"] == failure.message, "the program's own words alone"


async def test_of_a_long_failure_the_event_keeps_rank_pod_place_and_step() -> None:
    world = await started()
    long = replace(TOLD[0][0], message=f"ValueError: {'x' * 1000}")
    await world.say(state=RunState.RUNNING, restarts=1, generation=2, last_failure=long, failures=(long,))
    (event,) = [text for text in world.events() if "ValueError" in text]
    assert event.startswith("ProgramFailed: rank 1 (pod train-1 on node node-1): ValueError: xxx")
    assert event.endswith("xxx… (train.py:20), exit code 1 at step 16")
