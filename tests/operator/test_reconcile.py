"""What the operator makes of a cluster, story by story, on the fake API server."""

import base64
import json
from typing import Any

import pytest
from tests.operator.fake_api import failure, last_words, terminated
from tests.operator.world import IMAGE, KEY, OPERATOR_IMAGE, World, running

from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Failure, InEffect, Outcome, Progress, RunState


async def started(**spec: Any) -> World:
    world = await World().start()
    await world.apply(**spec)
    await world.run()
    return world


async def test_a_job_becomes_a_service_a_secret_and_its_pods() -> None:
    world = await World().start()
    await world.apply()
    assert world.live() == {0: "train-0", 1: "train-1"}
    service = world.api.objects["services", "ns", "train"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    secret = world.api.objects["secrets", "ns", "train-token"]
    assert len(base64.b64decode(secret["data"]["token"])) == 64
    for child in (service, secret, world.pod("train-0")):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
            world.job["metadata"]["uid"],
            True,
            True,
        )
    assert "finalizers" not in world.job["metadata"]
    assert world.condition("Admitted") == ("True", "Accepted")
    assert world.condition("PodsReady") == ("False", "PodsStarting")
    assert world.status["state"] == "Starting"


async def test_a_whole_life_costs_few_requests_and_rest_costs_none() -> None:
    world = await World().start()
    await world.apply(nodes=8)
    await world.run()
    before = len(world.api.requests)
    assert len(world.api.writes) <= 8 + 10, world.api.writes
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert [w for w in world.api.writes if w in world.api.requests[before:]] == []
    await world.done()
    assert world.condition("Complete") == ("True", "AllRanksSucceeded")
    settled = len(world.api.writes)
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert len(world.api.writes) == settled


async def test_ready_pods_make_a_running_job() -> None:
    world = await started()
    assert world.condition("PodsReady") == ("True", "AllPodsReady")
    assert world.condition("RendezvousReady") == ("True", "AllRanksJoined")
    assert world.condition("Running") == ("True", "Training")
    assert (world.status["state"], world.status["ready"]) == ("Running", "2/2")
    assert world.status["observedGeneration"] == 1


async def test_a_script_without_a_process_group_runs_by_the_coordinators_word() -> None:
    world = await World().start()
    await world.apply()
    await world.run(ready=False)
    assert world.condition("Running") == ("False", "NotStarted")
    await world.say(state=RunState.RUNNING)
    assert world.condition("Running") == ("True", "Training")
    assert world.condition("RendezvousReady") == ("False", "WaitingForRanks")


async def test_a_script_that_begins_anew_is_running_with_advice() -> None:
    world = await started()
    await world.say(
        state=RunState.RUNNING, ddp=InEffect(not_resuming="generation 2 began again at step 0: load …")
    )
    assert world.condition("Running") == ("True", "NotResuming")
    assert world.status["ddp"]["notResuming"].startswith("generation 2 began again at step 0")


DISK_FULL = "checkpoints cannot be written to /checkpoints: No space left on device; the training goes on"
DAMAGED = "node 1: checkpoint /checkpoints/step-00000010 is damaged"


@pytest.mark.parametrize(
    ("report", "reason", "words"),
    [
        ({"checkpoint_trouble": DISK_FULL}, "CheckpointFailed", DISK_FULL),
        ({"passed_over": DAMAGED}, "CheckpointDamaged", DAMAGED),
    ],
)
async def test_a_checkpoint_that_failed_is_in_the_condition_and_told_once(
    report: dict[str, str], reason: str, words: str
) -> None:
    world = await started()
    await world.say(state=RunState.RUNNING, **report)
    assert world.condition("Running") == ("True", reason)
    assert words in world.message("Running")
    assert [event for event in world.events() if words in event] == [
        f"{reason}: the workers of every node run; {words}"
        if reason == "CheckpointFailed"
        else f"{reason}: the workers of every node run; a checkpoint was passed over: {words}"
    ]
    writes = len(world.api.writes)
    for _ in range(3):
        await world.say(state=RunState.RUNNING, **report)
        await world.passes(60)
    world.operators.clear()
    await world.start()  # it has heard of no report yet, and takes nothing back
    await world.settle()
    assert world.condition("Running") == ("True", reason)
    assert len(world.api.writes) == writes
    await world.say(state=RunState.RUNNING)
    assert world.condition("Running") == ("True", "Training")
    assert len(world.api.writes) == writes + 1


async def test_a_coordinator_that_falls_silent_while_no_rank_is_ready_is_said() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    for name in world.live().values():
        world.api.change("pods", "ns", name, lambda body: running(body, ready=False))
    await world.settle()
    assert world.condition("Running") == ("True", "Training"), "it answered a moment ago"
    events = world.events()
    await world.passes(60)
    world.operators[0].add(KEY)
    await world.settle()
    assert world.condition("Running") == ("Unknown", "CoordinatorSilent")
    assert world.message("Running") == "the coordinator, the launcher of node 0, does not answer"
    assert (world.status["state"], world.status["reason"]) == ("Unknown", "CoordinatorSilent")
    assert world.condition("RendezvousReady") == ("False", "WaitingForRanks")
    assert world.condition("Restarting") is None
    assert world.events() == events, "nothing was seen to happen"
    await world.say(state=RunState.RUNNING)
    assert world.condition("Running") == ("True", "Training")


async def test_a_silence_is_no_restart_and_repeats_no_old_hang() -> None:
    world = await hung_once()
    before = {kind: world.condition(kind) for kind in ("RendezvousReady", "Restarting", "Hung")}
    assert before["Restarting"] == before["Hung"] == ("False", "Training")
    await world.passes(60)
    await world.resync()
    assert world.condition("Running") == ("Unknown", "CoordinatorSilent")
    assert {kind: world.condition(kind) for kind in before} == before
    writes = len(world.api.writes)
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    world.operators.clear()
    await world.start()
    await world.settle()
    assert len(world.api.writes) == writes
    await world.say(state=RunState.WAITING, generation=2, restarts=2, last_failure=HANG)
    assert world.condition("Running") == ("False", "NotStarted")
    assert world.condition("Restarting") == ("True", "NoProgress"), "it ran until it was silent"


async def test_a_restarted_operator_writes_nothing_about_a_job_whose_pods_are_never_ready() -> None:
    world = await hung_once()
    await world.say(
        state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG, progress=Progress(step=7)
    )
    assert world.condition("RendezvousReady") == ("True", "AllRanksJoined")
    writes = len(world.api.writes)
    world.operators.clear()
    await world.start()
    await world.settle()
    await world.passes(5)
    await world.say(
        state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG, progress=Progress(step=7)
    )
    assert len(world.api.writes) == writes
    assert world.condition("Running") == ("True", "Training")


async def test_ranks_that_leave_while_no_coordinator_can_be_asked_are_restarting() -> None:
    world = await started()
    world.api.change("pods", "ns", "train-1", lambda body: running(body, ready=False))
    await world.settle()
    assert world.condition("Running") == ("False", "NotStarted")
    assert world.condition("Restarting") == ("True", "Disrupted")
    await world.resync()
    assert world.condition("Running") == ("False", "NotStarted")
    world.api.change("pods", "ns", "train-1", lambda body: running(body, ready=True))
    await world.settle()
    assert world.condition("Running") == ("True", "Training")


HANG = Failure(
    reason=Reason.NO_PROGRESS,
    rank=1,
    node=1,
    exit_code=87,
    generation=1,
    message="no step for 31 s: rank 1 …",
)


async def hung_once() -> World:
    """A script without a process group that has started again after a hang, and runs."""
    world = await World().start()
    await world.apply()
    await world.run(ready=False)
    await world.say(state=RunState.RUNNING)
    await world.say(state=RunState.WAITING, restarts=1, last_failure=HANG)
    assert world.condition("Hung") == ("True", "NoProgress")
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG)
    return world


async def test_a_hang_is_a_condition_while_the_ranks_start_again() -> None:
    world = await started()
    await world.run(ready=False)
    for name in world.live().values():
        world.api.change("pods", "ns", name, lambda body: running(body, ready=False))
    await world.say(state=RunState.WAITING, restarts=1, last_failure=HANG, back_off=4.2)
    assert world.condition("Hung") == world.condition("Restarting") == ("True", "NoProgress")
    assert world.message("Hung") == HANG.message
    advice = "; the next try waits 4 s, because no step was made since the last"
    assert world.message("Restarting") == HANG.message + advice
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG)
    assert world.condition("Hung") == world.condition("Restarting") == ("False", "Training")
    assert sum("NoProgress: " in event for event in world.events()) == 2, "one of each condition"


async def test_a_hang_between_two_polls_is_in_the_last_failure_and_told_once() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    for _ in range(2):
        await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG)
    assert world.condition("Running") == ("True", "Training")
    assert world.status["lastFailure"]["reason"] == "NoProgress"
    assert [event for event in world.events() if "no step for" in event] == [f"NoProgress: {HANG.message}"]


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


async def test_an_oom_kill_that_the_coordinator_saw_as_a_loss_is_a_restart() -> None:
    world = await started()
    uid = world.pod("train-1")["metadata"]["uid"]
    lost = Failure(reason=Reason.POD_LOST, node=1, pod="train-1", pod_uid=uid, at="2025-12-31T23:59:59Z")
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
    lost = Failure(reason=Reason.POD_LOST, node=1, pod="train-1", pod_uid=uid, at="2026-01-01T00:00:00Z")
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


async def test_a_verdict_of_the_coordinator_stands_though_no_pod_had_time_for_last_words() -> None:
    world = await started(recovery={"maxRestarts": 0})
    failure = Failure(reason=Reason.PROGRAM_FAILED, rank=1, node=1, message="ValueError: bad sample 17")
    await world.say(
        state=RunState.FINISHED, outcome=Outcome.FAILED, last_failure=failure, failures=(failure,)
    )
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert "bad sample 17" in world.message("Failed")
    assert sorted(world.live()) == [0, 1], "they end by themselves"
    for name in list(world.live().values()):
        await world.end(name, terminated(137))
    await world.passes(60)
    assert world.created == ["train-0", "train-1"]


async def test_what_is_deleted_by_hand_is_back_within_seconds_and_told() -> None:
    world = await started()
    token = world.api.objects["secrets", "ns", "train-token"]["data"]
    await world.delete("services", "train")
    assert ("services", "ns", "train") in world.api.objects
    await world.delete("secrets", "train-token")
    await world.passes(15)
    assert world.api.objects["secrets", "ns", "train-token"]["data"] == token
    for child in ("Service train", "Secret train-token"):
        assert f"ChildRestored: {child} was deleted and is made again" in world.events()


async def test_a_suspended_job_at_rest_is_left_alone() -> None:
    world = await started()
    await world.patch(suspend=True)
    for name in list(world.api.pods()):
        await world.stopped(name)
    before = len(world.api.writes)
    for _ in range(3):
        await world.resync()
        await world.passes(600)
    assert len(world.api.writes) == before


async def test_an_oom_kill_is_a_restart_and_names_the_limit() -> None:
    world = await started(resourcesPerNode={"limits": {"memory": "2Gi"}})
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    await world.passes(10)
    assert (world.status["restarts"], world.status["disruptions"]) == (1, 0)
    assert world.status["lastFailure"]["reason"] == "OOMKilled"
    assert "limit 2Gi" in world.status["lastFailure"]["message"]
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


async def test_done_is_complete_with_the_result_of_node_0() -> None:
    world = await started()
    words = {"result": {"accuracy": 0.97}, "progress": {"step": 40, "totalSteps": 40, "loss": 0.1}}
    await world.done(**words)
    assert world.condition("Complete") == ("True", "AllRanksSucceeded")
    assert world.status["result"] == {"accuracy": 0.97}
    assert (world.status["progress"]["percent"], world.status["progress"]["text"]) == (100, "100 %")
    assert (world.status["ready"], world.status["nodes"]["succeeded"]) == ("2/2", 2)
    assert world.tracked() == []
    assert sorted(world.api.pods()) == ["train-0", "train-1"], "kept for their logs"


async def test_a_job_that_finished_while_the_operator_was_down_is_complete_and_never_run_again() -> None:
    world = await started()
    world.operators.clear()
    await world.done(result={"accuracy": 1.0})
    for name in list(world.api.pods()):
        world.api.delete("pods", "ns", name)
    assert len(world.api.pods()) == 2, "the tracking finalizer keeps them"
    await world.start()
    await world.settle()
    assert world.condition("Complete") == ("True", "AllRanksSucceeded")
    assert world.status["result"] == {"accuracy": 1.0}
    assert world.api.pods() == {}
    await world.resync()
    assert world.created == ["train-0", "train-1"]


@pytest.mark.parametrize(
    ("outcome", "words", "reason"),
    [
        ("Failed", {"restarts": 3}, "MaxRestartsExceeded"),
        ("Failed", {"disruptions": 101}, "MaxDisruptionsExceeded"),
        ("Failed", {}, "ProgramFailed"),
        ("Refused", {}, "ConfigurationRefused"),
    ],
)
async def test_a_launchers_verdict_fails_the_job_in_the_programs_words(
    outcome: str, words: dict[str, int], reason: str
) -> None:
    world = await started()
    failed = {
        "reason": "ProgramFailed",
        "rank": 1,
        "node": 1,
        "pod": "train-1",
        "exitCode": 7,
        "message": "ValueError: bad sample 17",
    }
    for name, index in (("train-1", 1), ("train-0", 0)):
        await world.end(
            name,
            terminated(
                7,
                message=last_words(outcome, 7, index, failure=failed, message="generation 4 failed", **words),
            ),
        )
    assert world.condition("Failed") == ("True", reason)
    assert "ValueError: bad sample 17" in world.message("Failed")
    assert world.status["lastFailure"]["exitCode"] == 7
    assert world.status["restarts"] == (3 if reason == "MaxRestartsExceeded" else 0)
    assert world.live() == {}
    assert any("bad sample 17" in event for event in world.events())


async def test_the_budget_of_restarts_is_the_operators_to_keep_when_launchers_die() -> None:
    world = await started(recovery={"maxRestarts": 1})
    for _ in range(2):
        await world.passes(60)
        await world.run()
        await world.end(world.live()[1], terminated(137, reason="OOMKilled"))
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    await world.passes(60)
    assert "deletionTimestamp" in world.pod("train-0")["metadata"]


async def test_a_launcher_that_could_not_end_its_worker_is_replaced_and_says_why() -> None:
    world = await started()
    why = "a worker is still there 30 s after SIGKILL; it waits in the kernel, for a device or a file system"
    named = {"reason": "PodLost", "node": 1, "pod": "train-1", "message": why, "at": "2026-01-01T00:00:00Z"}
    await world.end(
        "train-1", terminated(88, message=last_words("Stopped", 88, 1, message=why, failure=named))
    )
    await world.passes(10)  # it ended soon after its start
    assert world.live() == {0: "train-0", 1: "train-1-r1"}
    assert world.condition("Failed") is None
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 1)
    assert (world.status["lastFailure"]["reason"], world.status["lastFailure"]["message"]) == ("PodLost", why)


async def test_an_exit_code_alone_decides_nothing() -> None:
    world = await started()
    await world.end("train-1", terminated(0))
    assert world.condition("Complete") is None
    await world.passes(60)
    assert world.live()[1] == "train-1-r1"


async def test_suspend_saves_and_resume_takes_the_next_names_and_a_new_runtime() -> None:
    world = await started()
    await world.patch(suspend=True)
    assert world.operator.poller.asked == 1
    assert world.live() == {}
    assert (world.condition("Suspended"), world.status["state"]) == (("False", "Suspended"), "Suspending")
    for name in list(world.api.pods()):
        await world.stopped(name)
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.status["nodes"]["desired"] == 0
    assert "runtime" not in world.status
    assert (world.status["disruptions"], world.status["restarts"]) == (0, 0)
    world.operator.reconciler._image = "registry/trainer:2"
    await world.patch(suspend=False)
    assert world.live() == {0: "train-0-r1", 1: "train-1-r1"}
    assert world.condition("Suspended") == ("False", "Resumed")
    assert world.status["runtime"]["image"] == "registry/trainer:2"


async def test_a_running_job_keeps_its_image_when_the_operators_default_changes() -> None:
    world = await started()
    world.operator.reconciler._image = "registry/trainer:2"
    await world.delete("pods", "train-1")
    assert world.pod("train-1-r1")["spec"]["containers"][0]["image"] == IMAGE


async def test_versions_do_not_mix_in_a_job_with_an_image_of_its_own() -> None:
    world = await started(image="theirs:1")
    assert world.status["runtime"]["trainerFrom"] == OPERATOR_IMAGE
    world.operator.reconciler._operator_image = "registry/operator:2"
    await world.delete("pods", "train-1")
    assert world.pod("train-1-r1")["spec"]["initContainers"][0]["image"] == OPERATOR_IMAGE


async def test_our_own_image_needs_nothing_put_beside_it() -> None:
    world = await started(image=IMAGE)
    assert "trainerFrom" not in world.status["runtime"]
    assert "initContainers" not in world.pod("train-0")["spec"]


async def test_the_deadline_counts_active_time_only() -> None:
    world = await started(activeDeadlineSeconds=100)
    await world.passes(60)
    await world.patch(suspend=True)
    await world.passes(1000)
    assert world.condition("Failed") is None
    await world.patch(suspend=False)
    await world.passes(39)
    assert world.condition("Failed") is None
    await world.passes(2)
    assert world.condition("Failed") == ("True", "DeadlineExceeded")
    assert world.live() == {}


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
    await world.say(state=RunState.WAITING, nodes_joined=1, missing_nodes=(1,), disruptions=1)
    if ready:
        world.api.change("pods", "ns", "train-1", lambda body: body["status"]["conditions"].pop())
        await world.settle()
    assert world.live() == {0: "train-0", 1: "train-1"}
    await world.passes(59)
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
    await world.say(state=RunState.WAITING, nodes_joined=1, missing_nodes=(1,))
    await world.passes(61)
    assert world.condition("PodsReady") == ("False", "RendezvousTimeout")
    assert "the launchers of 1 have not joined" in world.message("PodsReady")


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


async def test_a_finished_job_is_deleted_after_its_ttl() -> None:
    world = await started(ttlSecondsAfterFinished=60)
    await world.done()
    await world.passes(59)
    assert ("ddpjobs", "ns", "train") in world.api.objects
    await world.passes(2)
    assert [key for key in world.api.objects if key[0] not in ("events", "nodes")] == []


async def test_deletion_leaves_nothing_even_if_the_operator_was_down() -> None:
    world = await started()
    await world.delete()
    assert world.tracked() == []
    for name in list(world.api.pods()):
        await world.stopped(name)
    assert [key for key in world.api.objects if key[0] not in ("events", "nodes")] == []

    world = await started()
    world.operators.clear()
    await world.delete()
    assert len(world.tracked()) == 2
    await world.start()
    await world.settle()
    assert world.tracked() == []


async def test_a_job_applied_again_under_the_same_name_waits_for_the_old_pods() -> None:
    world = await started()
    old = world.job["metadata"]["uid"]
    world.operators.clear()
    world.api.delete("ddpjobs", "ns", "train")
    await world.start()
    await world.apply()
    await world.passes(5)
    for name, body in list(world.api.pods().items()):
        if body["metadata"]["ownerReferences"][0]["uid"] == old:
            await world.stopped(name)
    for _ in range(3):
        await world.passes(5)
    assert sorted(world.live()) == [0, 1]
    assert {b["metadata"]["ownerReferences"][0]["uid"] for b in world.api.pods().values()} == {
        world.job["metadata"]["uid"]
    }
    assert world.status["disruptions"] == 0
    assert world.condition("Admitted") == ("True", "Accepted")


@pytest.mark.parametrize(
    ("plural", "name", "kind"), [("services", "train", "Service"), ("secrets", "train-token", "Secret")]
)
async def test_an_object_of_a_childs_name_that_is_not_ours_is_left_alone(
    plural: str, name: str, kind: str
) -> None:
    world = await World().start()
    foreign = {"metadata": {"name": name, "namespace": "ns", "labels": {"owner": "somebody"}}, "spec": {}}
    world.api.create(plural, "ns", foreign)
    before = dict(world.api.objects[plural, "ns", name])
    await world.apply()
    assert world.condition("Admitted") == ("False", "NameConflict")
    assert kind in world.message("Admitted")
    assert world.api.pods() == {}
    assert world.api.objects[plural, "ns", name] == before
    await world.delete(plural, name)
    await world.passes(10)
    assert sorted(world.live()) == [0, 1]


async def test_a_foreign_pod_of_a_pods_name_is_a_conflict() -> None:
    world = await World().start()
    world.api.create(
        "pods", "ns", {"kind": "Pod", "metadata": {"name": "train-1", "namespace": "ns"}, "spec": {}}
    )
    await world.apply()
    await world.passes(6)
    assert world.condition("Admitted") == ("False", "NameConflict")
    assert "train-1" in world.message("Admitted")


async def test_a_deleted_service_and_a_deleted_secret_come_back() -> None:
    world = await started()
    token = world.api.objects["secrets", "ns", "train-token"]["data"]
    await world.delete("services", "train")
    assert ("services", "ns", "train") in world.api.objects
    await world.delete("secrets", "train-token")
    await world.delete("pods", "train-1")
    assert world.api.objects["secrets", "ns", "train-token"]["data"] == token


async def test_the_api_servers_opinion_of_the_pod_is_the_jobs_invalid_spec() -> None:
    world = await World().start()
    words = 'Pod "train-0" is invalid: spec.dnsPolicy: Unsupported value: "Sometimes"'
    world.api.before = lambda method, path: (
        failure(422, "Invalid", words) if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.apply(template={"spec": {"dnsPolicy": "Sometimes"}})
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert words in world.message("Failed")
    assert world.condition("Admitted") == ("False", "InvalidSpec")
    assert world.api.pods() == {}


async def test_quota_and_webhooks_are_waited_for() -> None:
    world = await World().start()
    words = (
        'pods "train-0" is forbidden: exceeded quota: small, requested: pods=1, used: pods=2, limited: pods=2'
    )
    world.api.before = lambda method, path: (
        failure(403, "Forbidden", words) if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.apply()
    assert world.condition("PodsReady") == ("False", "QuotaExceeded")
    assert world.message("PodsReady") == words
    world.api.before = lambda method, path: None
    await world.passes(6)
    assert sorted(world.live()) == [0, 1]
    assert world.condition("PodsReady") == ("False", "PodsStarting")
    denied = 'admission webhook "policy.example" denied the request: no'
    world.api.before = lambda method, path: (
        failure(400, "BadRequest", denied) if (method, path[-5:]) == ("POST", "/pods") else None
    )
    await world.delete("pods", "train-1")
    assert world.condition("PodsReady") == ("False", "PodRefused")
    world.api.before = lambda method, path: None
    await world.passes(6)
    assert sorted(world.live()) == [0, 1]


async def test_a_read_write_once_claim_for_two_nodes_is_refused() -> None:
    world = await World().start()
    claim = {"metadata": {"name": "ckpt", "namespace": "ns"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    world.api.create("persistentvolumeclaims", "ns", claim)
    await world.apply(checkpoint={"persistentVolumeClaim": "ckpt"})
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert "the claim is not ReadWriteMany" in world.message("Failed")


async def test_a_rule_that_the_crd_cannot_say_is_an_invalid_spec() -> None:
    world = await World().start()
    task = {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 7}
    await world.apply(script=None, task=task)
    assert world.condition("Failed") == ("True", "InvalidSpec")
    assert "globalBatchSize" in world.message("Failed")


async def test_a_missing_config_map_is_found_in_the_events() -> None:
    world = await World().start()
    await world.apply(workspace={"configMap": "code"})

    def creating(body: dict[str, Any]) -> None:
        body["spec"]["nodeName"] = "node-0"
        state = {"waiting": {"reason": "ContainerCreating"}}
        body["status"] = {"phase": "Pending", "containerStatuses": [{"name": "trainer", "state": state}]}

    for name in ("train-0", "train-1"):
        world.api.change("pods", "ns", name, creating)
    words = 'MountVolume.SetUp failed for volume "workspace" : configmap "code" not found'
    uid = world.pod("train-0")["metadata"]["uid"]
    event = {
        "metadata": {"name": "e"},
        "involvedObject": {"uid": uid},
        "type": "Warning",
        "reason": "FailedMount",
        "message": words,
    }
    world.api.create("events", "ns", event)
    await world.settle()
    assert world.condition("PodsReady") == ("False", "PodsStarting")
    await world.passes(11)
    assert world.condition("PodsReady") == ("False", "VolumeNotReady")
    assert words in world.message("PodsReady")


async def test_progress_is_written_seldom_and_counters_at_once() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING, progress=Progress(step=1, total_steps=100, loss=1.0))
    written = world.status["progress"]["step"]
    before = len(world.api.writes)
    for step in range(2, 12):
        efficiency = Efficiency(exposed_communication_percent=step)
        now = Progress(step=step, total_steps=100, loss=0.5)
        await world.say(state=RunState.RUNNING, progress=now, efficiency=efficiency)
        await world.passes(1)
    assert len(world.api.writes) == before
    await world.passes(10)
    assert len(world.api.writes) == before + 1
    assert world.status["progress"]["step"] == 11 > written
    assert world.status["efficiency"] == {"exposedCommunicationPercent": 11}
    await world.say(
        state=RunState.RUNNING, generation=2, restarts=1, progress=Progress(step=12, total_steps=100)
    )
    assert (world.status["restarts"], world.status["generation"], world.status["progress"]["step"]) == (
        1,
        2,
        12,
    )


async def test_a_pod_that_lost_the_tracking_finalizer_gets_it_back() -> None:
    world = await started()
    world.api.change("pods", "ns", "train-0", lambda body: body["metadata"].pop("finalizers"))
    await world.settle()
    assert world.tracked() == ["train-0", "train-1"]


async def test_a_deletion_that_no_watch_reported_is_found_by_the_resync() -> None:
    world = await started()
    world.api.change("pods", "ns", "train-1", lambda body: body["metadata"].pop("finalizers"))
    del world.api.objects["pods", "ns", "train-1"]
    await world.resync()
    assert sorted(world.live()) == [0, 1]


async def test_what_the_launcher_is_told() -> None:
    world = await World().start()
    await world.apply(
        env=[{"name": "A", "value": "$(B)"}], template={"metadata": {"labels": {"team": "vision"}}}
    )
    body = world.pod("train-1")
    env = {
        v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"]
        for v in body["spec"]["containers"][0]["env"]
    }
    assert env["DDPJOB_COORDINATOR"] == "train-0.train.ns.svc:29400"
    assert env["DDPJOB_ADVERTISE_HOST"] == "status.podIP"
    assert (env["DDPJOB_NODE_INDEX"], env["DDPJOB_INCARNATION"], env["A"]) == ("1", "0", "$(B)")
    assert json.loads(env["DDPJOB_SPEC"]) == {"nodes": 2, "script": {"args": ["train.py"]}}
    assert body["metadata"]["labels"]["team"] == "vision"
    assert (body["spec"]["hostname"], body["spec"]["subdomain"]) == ("train-1", "train")
