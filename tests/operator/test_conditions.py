"""What a job's conditions say, and what they do not."""

from dataclasses import replace

import pytest
from tests.operator.world import KEY, World, running, started

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, InEffect, Progress, RunState


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
    assert world.events() == events, "that it runs was told"


async def test_advice_that_may_have_begun_in_a_silence_is_given_after_it() -> None:
    world = await World().start()
    await world.apply()
    await world.run(ready=False)
    await world.say(state=RunState.RUNNING)
    events = world.events()
    await world.passes(60)
    await world.resync()
    assert world.condition("Running") == ("Unknown", "CoordinatorSilent")
    await world.say(state=RunState.RUNNING, checkpoint_trouble=DISK_FULL)
    assert world.condition("Running") == ("True", "CheckpointFailed")
    [told] = [event for event in world.events() if event not in events]
    assert DISK_FULL in told, "and no second Running"
    await world.say(state=RunState.RUNNING, checkpoint_trouble=DISK_FULL)
    assert len(world.events()) == len(events) + 1


async def test_a_hang_of_an_earlier_generation_is_not_repeated_by_an_operator_that_has_heard_nothing() -> (
    None
):
    world = await hung_once()
    for name in world.live().values():
        world.api.change("pods", "ns", name, lambda body: running(body, ready=True))
    await world.settle()
    assert world.condition("PodsReady") == ("True", "AllPodsReady")
    world.operators.clear()
    await world.start()
    world.api.change("pods", "ns", "train-1", lambda body: running(body, ready=False))
    await world.settle()
    assert world.condition("Running") == ("False", "NotStarted")
    assert world.condition("Hung") == ("False", "Training")


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


async def test_a_coordinator_that_never_answers_a_restarted_operator_is_said_to_be_silent() -> None:
    world = await hung_once()
    assert world.condition("Running") == ("True", "Training")
    world.operators.clear()
    await world.start()
    await world.ask()
    await world.passes(14)
    await world.ask()
    assert world.condition("Running") == ("True", "Training"), "it may be busy"
    await world.passes(2)
    await world.ask()
    assert world.condition("Running") == ("Unknown", "CoordinatorSilent")
    writes = len(world.api.writes)
    await world.passes(60)
    await world.ask()
    assert len(world.api.writes) == writes
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG)
    assert world.condition("Running") == ("True", "Training")


async def test_a_new_coordinator_has_time_to_answer_after_one_that_was_silent() -> None:
    world = await World().start()
    await world.apply()
    await world.run(ready=False)
    await world.ask()
    await world.passes(16)
    await world.ask()
    assert world.message("RendezvousReady") == "the coordinator, the launcher of node 0, does not answer"
    await world.delete("pods", "train-0")
    await world.run(ready=False)
    await world.ask()
    assert world.message("RendezvousReady") == "the ranks are joining"
    await world.passes(16)
    await world.ask()
    assert world.message("RendezvousReady") == "the coordinator, the launcher of node 0, does not answer"


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
HANG_SENTENCE = f"rank 1 (node 1): {HANG.message}"


async def hung_once() -> World:
    """A script without a process group that has started again after a hang, and runs."""
    world = await World().start()
    await world.apply()
    await world.run(ready=False)
    await world.say(state=RunState.RUNNING)
    await world.say(state=RunState.WAITING, restarts=1, last_failure=HANG, hung=True)
    assert world.condition("Hung") == ("True", "NoProgress")
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG, hung=True)
    return world


async def test_a_hang_is_a_condition_while_the_ranks_start_again() -> None:
    world = await started()
    await world.run(ready=False)
    for name in world.live().values():
        world.api.change("pods", "ns", name, lambda body: running(body, ready=False))
    await world.say(state=RunState.WAITING, restarts=1, last_failure=HANG, hung=True, back_off=4.2)
    assert world.condition("Hung") == world.condition("Restarting") == ("True", "NoProgress")
    assert world.message("Hung") == HANG_SENTENCE
    advice = "; the next try waits 4 s, because no step was made since the last"
    assert world.message("Restarting") == HANG_SENTENCE + advice
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG)
    assert world.condition("Hung") == world.condition("Restarting") == ("False", "Training")
    assert sum("NoProgress: " in event for event in world.events()) == 2, "one of each condition"


async def test_a_hang_before_a_suspension_is_over() -> None:
    world = await hung_once()
    await world.patch(suspend=True)
    for name in list(world.api.pods()):
        await world.stopped(name)
    events = [event for event in world.events() if event.startswith("NoProgress")]
    await world.patch(suspend=False)
    assert world.condition("Hung") == ("False", "Training")
    await world.run(ready=False)
    await world.say(state=RunState.WAITING, term=2, restarts=1, last_failure=HANG)
    assert world.condition("Hung") == ("False", "Training")
    assert [event for event in world.events() if event.startswith("NoProgress")] == events


async def test_ranks_that_stop_long_after_a_hang_are_not_hung_again() -> None:
    world = await hung_once()
    made = {"generation": 2, "restarts": 1, "last_failure": HANG, "progress": Progress(step=7)}
    await world.say(state=RunState.RUNNING, **made)
    for state in (RunState.STOPPING, RunState.WAITING):
        await world.say(state=state, **made)
        assert world.condition("Running") == ("False", "NotStarted")
        assert world.condition("Hung") == ("False", "Training")


async def test_a_second_hang_is_told_in_its_own_words() -> None:
    world = await hung_once()
    second = replace(HANG, generation=2, message="no step for 44 s: rank 0 …")
    await world.say(state=RunState.STOPPING, generation=2, restarts=1, last_failure=HANG, hung=True)
    assert world.condition("Hung") == ("False", "Training"), "its verdict is not there yet"
    await world.say(state=RunState.WAITING, generation=2, restarts=2, last_failure=second, hung=True)
    assert world.condition("Hung") == ("True", "NoProgress")
    assert world.message("Hung") == f"rank 1 (node 1): {second.message}"


async def test_a_hang_between_two_polls_is_in_the_last_failure_and_told_once() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    for _ in range(2):
        await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=HANG)
    assert world.condition("Running") == ("True", "Training")
    assert world.status["lastFailure"]["reason"] == "NoProgress"
    assert [event for event in world.events() if "no step for" in event] == [f"NoProgress: {HANG_SENTENCE}"]
