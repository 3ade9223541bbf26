"""What a status says of a training's progress: only what the API server takes, and only of the pods that are there."""

from typing import Any

import pytest
from tests.operator.fake_api import last_words, terminated
from tests.operator.world import World

from ddpjob_api.codec import render
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.report import Outcome, Progress, RunState
from ddpjob_operator import census
from ddpjob_operator.observe import job_of
from ddpjob_operator.progress import state_of


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ("2026-01-01T02:00:00.5+02:00", "2026-01-01T00:00:00Z"),
        ("0099-01-01T00:00:00Z", "0099-01-01T00:00:00Z"),
        ("0001-01-01T00:00:00+23:59", None),
        ("9999-12-31T23:59:59-23:59", None),
        ("yesterday", None),
        ("", None),
    ],
)
async def test_only_a_time_is_written_where_the_api_server_takes_nothing_else(
    said: str, written: str | None
) -> None:
    assert state_of(Progress(step=1, checkpoint_at=said)).checkpoint_at == written
    world = await World().start()
    await world.apply(checkpoint={"everySeconds": 60})
    await world.run()
    await world.say(state=RunState.RUNNING, progress=Progress(step=9, checkpoint_at=said))
    assert world.status["progress"].get("checkpointAt") == written
    census.take(world.operator.cache.jobs(), now=world.api.now)


HUGE = 2**63
"""What `sys.maxsize` is after its way through a float64."""


@pytest.mark.parametrize(
    ("said", "written"),
    [
        ({"total_steps": HUGE}, {"step": 9, "text": "step 9"}),
        ({"checkpoint_step": HUGE}, {"step": 9, "text": "step 9"}),
        ({"epoch": 2**31}, {"step": 9, "text": "step 9"}),
        ({"eta": 1e300}, {"step": 9, "text": "step 9"}),
        (
            {"total_steps": HUGE - 1, "eta": 2.0**62},
            {"step": 9, "totalSteps": HUGE - 1, "percent": 0, "text": "0 %", "etaSeconds": 2**62},
        ),
        ({"step": HUGE}, {"step": HUGE - 1, "text": f"step {HUGE - 1}"}),
    ],
)
async def test_a_number_that_its_field_does_not_hold_is_no_part_of_a_status(
    said: dict[str, Any], written: dict[str, Any]
) -> None:
    """The API server would refuse the whole status, at each look."""
    world = await World().start()
    await world.apply()
    await world.run()
    await world.say(state=RunState.RUNNING, progress=Progress(**{"step": 9, **said}))
    found = dict(world.status["progress"])
    found.pop("updatedAt")
    assert found == written


@pytest.mark.parametrize("early", [True, False], ids=["resumed while they save", "resumed later"])
async def test_a_rank_of_former_pods_makes_nobody_wait_after_a_resumption(early: bool) -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    slow = Efficiency(exposed_communication_percent=60, slowest_rank=1, slowest_rank_cause="data_wait")
    await world.say(state=RunState.RUNNING, progress=Progress(step=9), efficiency=slow)
    assert census.slow_cause(job_of(world.job)) == "data_wait"
    await world.patch(suspend=True)
    if early:
        await world.patch(suspend=False)
    for index in (0, 1):
        words = last_words("Stopped", 85, index, efficiency=render(slow))
        await world.end(f"train-{index}", terminated(85, message=words))
    await world.patch(suspend=False)
    await world.run()
    assert world.condition("Running") == ("True", "Training")
    assert "efficiency" not in world.status
    assert not [event for event in world.events() if event.startswith("StragglerGone")], "nobody saw its end"
    await world.done(efficiency=render(slow))
    assert world.status["efficiency"] == render(slow), "of those that ended the job"


@pytest.mark.parametrize("outcome", Outcome)
async def test_how_well_ranks_worked_together_is_taken_from_those_that_reached_the_end(
    outcome: Outcome,
) -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    code = 0 if outcome is Outcome.DONE else 1
    words = last_words(outcome.value, code, 0, efficiency={"exposedCommunicationPercent": 60})
    await world.end("train-0", terminated(code, message=words))
    assert ("efficiency" in world.status) is (outcome is Outcome.DONE)
