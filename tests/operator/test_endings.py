"""How a job ends, by whose word, and what is left of it."""

import pytest
from tests.operator.fake_api import last_words, terminated
from tests.operator.world import started

from ddpjob_api.codec import render
from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, Outcome, RunState

RAISED = Failure(
    reason=Reason.PROGRAM_FAILED,
    rank=1,
    node=1,
    pod="train-1",
    host_node="node-1",
    exit_code=7,
    message="ValueError: bad sample 17",
    location="train.py:20",
    step=16,
    generation=1,
)
SENTENCE = (
    "rank 1 (pod train-1 on node node-1): ValueError: bad sample 17 (train.py:20), exit code 7 at step 16"
)


async def test_a_verdict_of_the_coordinator_stands_though_no_pod_had_time_for_last_words() -> None:
    world = await started(recovery={"maxRestarts": 0})
    await world.say(state=RunState.FINISHED, outcome=Outcome.FAILED, last_failure=RAISED, failures=(RAISED,))
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert world.message("Failed") == SENTENCE
    assert [event for event in world.events() if "ValueError" in event] == [
        f"MaxRestartsExceeded: {SENTENCE}"
    ]
    assert sorted(world.live()) == [0, 1], "they end by themselves"
    for name in list(world.live().values()):
        await world.end(name, terminated(137))
    await world.passes(60)
    assert world.created == ["train-0", "train-1"]


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
    for name, index in (("train-1", 1), ("train-0", 0)):
        await world.end(
            name,
            terminated(
                7,
                message=last_words(
                    outcome, 7, index, failure=render(RAISED), message="generation 4 failed", **words
                ),
            ),
        )
    assert world.condition("Failed") == ("True", reason)
    assert world.message("Failed") == f"{SENTENCE}; generation 4 failed"
    assert world.status["lastFailure"]["exitCode"] == 7
    assert world.status["restarts"] == (3 if reason == "MaxRestartsExceeded" else 0)
    assert world.live() == {}
    told = [event for event in world.events() if "bad sample 17" in event]
    assert told == [f"{reason}: {SENTENCE}; generation 4 failed"]


async def test_a_launchers_sentence_about_the_failure_is_not_said_twice() -> None:
    world = await started()
    words = last_words("Failed", 7, 1, failure=render(RAISED), message=f"failed after 3 restarts: {SENTENCE}")
    await world.end("train-1", terminated(7, message=words))
    assert world.message("Failed") == f"failed after 3 restarts: {SENTENCE}"
    assert sum("bad sample 17" in event for event in world.events()) == 1


async def test_a_job_that_spent_its_restarts_names_the_last_failure() -> None:
    world = await started(recovery={"maxRestarts": 1})
    await world.say(state=RunState.RUNNING, restarts=2, last_failure=RAISED, failures=(RAISED,))
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert world.message("Failed").endswith(f"and failed again. The last: {SENTENCE}")
    assert any(event.endswith(f"The last: {SENTENCE}") for event in world.events())


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
