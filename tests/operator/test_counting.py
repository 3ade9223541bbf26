"""What the operator counts as jobs go on: moments of a start, incidents, seconds; each once, whoever writes."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import generate_latest
from tests.operator.fake_api import last_words, terminated
from tests.operator.world import World, started, viewed

from ddpjob_api.codec import load, render
from ddpjob_api.conditions import Reason
from ddpjob_api.goodput import Spent, Times, Use
from ddpjob_api.report import Failure, Outcome, Progress, RunState
from ddpjob_operator import spending, tally
from ddpjob_operator.health import Metrics
from ddpjob_operator.model import Startup, Status, TimeState, stamp
from ddpjob_operator.tally import Stage

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(moment: datetime, **uses: float) -> Spent:
    times = Times(**{f"{use}_seconds": seconds for use, seconds in uses.items()})
    return Spent(
        times=times, until=moment.timestamp(), first_step_at=moment.timestamp() - uses.get("useful", 0.0)
    )


def counted(world: World) -> tuple[dict[Stage, float], list[Reason], dict[Use, int]]:
    """All that was counted so far; a stage that is counted twice is an error."""
    stages: dict[Stage, float] = {}
    seconds: dict[Use, int] = {}
    for each in world.tallies:
        assert not set(each.stages) & set(stages)
        stages |= each.stages
        for use, more in each.seconds.items():
            seconds[use] = seconds.get(use, 0) + more
    return stages, [reason for each in world.tallies for reason in each.incidents], seconds


async def test_the_moments_of_a_start_are_counted_once_and_anew_after_a_resumption() -> None:
    world = await World().start()
    world.api.now += timedelta(seconds=1)
    await world.apply()
    made = world.api.now
    await world.passes(20)
    await world.run()
    await world.say(state=RunState.RUNNING, progress=Progress(step=0))
    await world.passes(10)
    spent = at(world.api.now, queueing=20, start=6, useful=4)
    await world.say(state=RunState.RUNNING, progress=Progress(step=9), spent=spent)
    stages, _, _ = counted(world)
    assert stages == {Stage.PODS_CREATED: 0, Stage.PODS_RUNNING: 20, Stage.FIRST_STEP: 26}
    assert world.status["startup"] == {
        "podsCreatedAt": stamp(made),
        "podsRunningAt": stamp(made + timedelta(seconds=20)),
        "firstStepAt": stamp(made + timedelta(seconds=26)),
    }
    world.operators.clear()
    await world.start()  # a new operator has seen nothing, and counts nothing again
    await world.resync()
    await world.delete("pods", "train-1")
    await world.run()
    await world.say(state=RunState.RUNNING, progress=Progress(step=20), spent=spent)
    assert len(counted(world)[0]) == 3
    await world.patch(suspend=True)
    for name in ("train-0", "train-1-r1"):
        await world.stopped(name)
    await world.passes(3600)
    world.tallies.clear()
    await world.patch(suspend=False)
    await world.passes(7)
    await world.run()
    stages, _, _ = counted(world)
    assert stages == {Stage.PODS_CREATED: 0, Stage.PODS_RUNNING: 7}


async def test_the_first_step_before_a_suspension_is_not_that_after_it() -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    await world.passes(10)
    spent = at(world.api.now, start=6, useful=4)
    await world.say(state=RunState.RUNNING, progress=Progress(step=9), spent=spent)
    await world.patch(suspend=True)
    await world.passes(5)
    world.tallies.clear()
    await world.patch(suspend=False)
    assert "firstStepAt" not in world.status["startup"]
    for index in (0, 1):  # they saved until now
        words = last_words("Stopped", 85, index, spent=render(spent))
        await world.end(f"train-{index}", terminated(85, message=words))
    assert "firstStepAt" not in world.status["startup"]
    assert world.live() == {0: "train-0-r1", 1: "train-1-r1"}
    await world.run()
    await world.passes(20)
    await world.done(spent=render(at(world.api.now, start=16, useful=4)))
    assert counted(world)[0] == {Stage.PODS_CREATED: 0, Stage.PODS_RUNNING: 0, Stage.FIRST_STEP: 16}
    assert world.status["startup"]["firstStepAt"] == stamp(world.api.now - timedelta(seconds=4))


async def test_a_job_made_suspended_is_on_its_way_from_its_first_resumption() -> None:
    world = await World().start()
    await world.apply(suspend=True)
    await world.passes(3600)
    await world.patch(suspend=False)
    await world.passes(7)
    await world.run()
    assert counted(world)[0] == {Stage.PODS_CREATED: 0, Stage.PODS_RUNNING: 7}


async def test_each_incident_is_counted_under_its_reason() -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    await world.run()
    first = Failure(
        reason=Reason.PROGRAM_FAILED, rank=1, node=1, message="no", generation=1, at="2026-01-01T00:01:00Z"
    )
    second = replace(first, reason=Reason.NO_PROGRESS, generation=2, at="2026-01-01T00:02:00Z")
    await world.say(
        state=RunState.RUNNING, generation=3, restarts=3, last_failure=second, failures=(first, second)
    )
    assert counted(world)[1] == [Reason.OOM_KILLED, Reason.NO_PROGRESS, Reason.PROGRAM_FAILED]
    await world.passes(600)
    await world.delete("pods", "train-0")
    assert counted(world)[1][3:] == [Reason.DISRUPTED]
    await world.resync()
    assert len(counted(world)[1]) == 4


HANG = Failure(
    reason=Reason.NO_PROGRESS, rank=1, node=1, pod="train-1", generation=1, message="no step for 15 s", at="2026-01-01T00:01:00Z"
)  # fmt: skip


@pytest.mark.parametrize("told", ["by the coordinator", "by last words", "to an operator that was away"])
async def test_a_hang_with_no_restart_left_is_an_incident_once(told: str) -> None:
    world = await started(recovery={"maxRestarts": 0})
    await world.say(state=RunState.RUNNING, progress=Progress(step=9))
    if told == "by the coordinator":
        await world.say(state=RunState.FINISHED, outcome=Outcome.FAILED, last_failure=HANG, failures=(HANG,))
    if told == "to an operator that was away":
        world.operators.clear()
    for name, index in (("train-1", 1), ("train-0", 0)):
        words = last_words("Failed", 87, index, failure=render(HANG))
        await world.end(name, terminated(87, message=words))
    if not world.operators:
        await world.start()
        await world.settle()
    await world.passes(60)
    world.operators.clear()
    await world.start()
    await world.resync()
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert (world.status["restarts"], world.status["disruptions"]) == (0, 0)
    assert counted(world)[1] == [Reason.NO_PROGRESS]


async def test_the_last_failure_is_counted_beside_the_restarts_before_it() -> None:
    world = await started(recovery={"maxRestarts": 2})
    first = replace(HANG, reason=Reason.PROGRAM_FAILED)
    second = replace(HANG, reason=Reason.OOM_KILLED, generation=2, at="2026-01-01T00:02:00Z")
    third = replace(HANG, generation=3, at="2026-01-01T00:03:00Z")
    await world.say(state=RunState.RUNNING, generation=2, restarts=1, last_failure=first, failures=(first,))
    await world.say(
        state=RunState.FINISHED, outcome=Outcome.FAILED, generation=3, restarts=2,
        last_failure=third, failures=(first, second, third),
    )  # fmt: skip
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert counted(world)[1] == [Reason.PROGRAM_FAILED, Reason.NO_PROGRESS, Reason.OOM_KILLED]


@pytest.mark.parametrize(
    ("reason", "told", "restarts"),
    [
        (Reason.PROGRAM_FAILED, Reason.PROGRAM_FAILED, 3),
        (Reason.KILLED, Reason.KILLED, 3),
        (Reason.OOM_KILLED, Reason.OOM_KILLED, 3),
        (Reason.REPEATED_FAILURE, Reason.PROGRAM_FAILED, 1),
    ],
)
async def test_what_a_job_fails_of_is_an_incident_of_its_own_reason(
    reason: Reason, told: Reason, restarts: int
) -> None:
    world = await started()
    await world.say(state=RunState.RUNNING, generation=4, restarts=restarts)
    before = counted(world)[1]
    failure = replace(HANG, reason=reason, generation=4)
    words = last_words("Failed", 1, 1, failure=render(failure), restarts=restarts, generation=4)
    await world.end("train-1", terminated(1, message=words))
    assert world.condition("Failed") is not None
    assert counted(world)[1][len(before) :] == [told]


async def test_a_container_out_of_memory_with_no_restart_left_is_an_incident_once() -> None:
    world = await started(recovery={"maxRestarts": 0})
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert counted(world)[1] == [Reason.OOM_KILLED]


async def test_one_that_the_coordinator_took_for_a_lost_pod_is_not_counted_again() -> None:
    world = await started(recovery={"maxRestarts": 0})
    uid = world.pod("train-1")["metadata"]["uid"]
    lost = Failure(reason=Reason.POD_LOST, node=1, pod_uid=uid, generation=1, at="2025-12-31T23:59:59Z")
    await world.say(state=RunState.WAITING, disruptions=1, failures=(lost,), last_failure=lost)
    await world.end("train-1", terminated(137, reason="OOMKilled"))
    assert world.condition("Failed") == ("True", "MaxRestartsExceeded")
    assert counted(world)[1] == [Reason.POD_LOST]


async def test_a_lost_node_that_no_disruption_is_left_for_is_counted_as_one() -> None:
    world = await started(recovery={"maxDisruptions": 0})
    await world.node("node-0", ready=False)
    await world.passes(121)
    await world.passes(10)
    assert world.condition("Failed") == ("True", "MaxDisruptionsExceeded")
    assert counted(world)[1] == [Reason.NODE_LOST]


async def test_a_verdict_about_a_pod_whose_end_was_counted_is_not_another_incident() -> None:
    world = await started()
    await world.say(state=RunState.RUNNING)
    uid = world.pod("train-1")["metadata"]["uid"]
    await world.end("train-1", terminated(1))
    assert (world.status["restarts"], counted(world)[1]) == (1, [Reason.PROGRAM_FAILED])
    failure = replace(HANG, reason=Reason.PROGRAM_FAILED, pod_uid=uid)
    await world.say(
        state=RunState.FINISHED, outcome=Outcome.FAILED, last_failure=failure, failures=(failure,)
    )
    assert world.condition("Failed") == ("True", "ProgramFailed")
    assert counted(world)[1] == [Reason.PROGRAM_FAILED]


@pytest.mark.parametrize("outcome", ["Done", "Refused", "Deadline", "Suspended"])
async def test_an_end_without_an_incident_counts_none(outcome: str) -> None:
    world = await started(activeDeadlineSeconds=100)
    if outcome == "Done":
        await world.done()
    elif outcome == "Refused":
        failure = render(replace(HANG, reason=Reason.CONFIGURATION_REFUSED))
        for name, index in (("train-1", 1), ("train-0", 0)):
            await world.end(name, terminated(86, message=last_words("Refused", 86, index, failure=failure)))
    elif outcome == "Deadline":
        await world.passes(101)
    else:
        await world.patch(suspend=True)
        for name in ("train-0", "train-1"):
            await world.stopped(name)
    assert counted(world)[1] == []


def test_what_caused_an_incident_may_be_unknown() -> None:
    view = viewed()
    new = Status(restarts=2, last_failure=Failure(reason=Reason.CONFIGURATION_REFUSED))
    assert tally.between(view, Status(), new, None).incidents == (Reason.UNKNOWN, Reason.UNKNOWN)
    assert tally.between(view, new, Status(restarts=1), None).incidents == ()


async def test_time_goes_on_over_a_replaced_coordinator_and_ends_with_the_job() -> None:
    world = await World().start()
    await world.apply()
    began = world.api.now
    await world.passes(10)
    await world.run()
    await world.passes(30)
    spent = at(world.api.now, queueing=10, start=5, useful=25)
    await world.say(state=RunState.RUNNING, progress=Progress(step=50, total_steps=100), spent=spent)
    assert (world.status["goodputPercent"], world.status["time"]) == (
        62, {"usefulSeconds": 25, "queueingSeconds": 10, "startSeconds": 5},
    )  # fmt: skip
    writes = len(world.api.writes)
    later = at(world.api.now, queueing=10, start=5, useful=95)
    await world.say(state=RunState.RUNNING, progress=Progress(step=50, total_steps=100), spent=later)
    await world.passes(60)
    assert len(world.api.writes) == writes, "time alone is no reason to write"
    await world.delete("pods", "train-0")
    env = {v["name"]: v.get("value") for v in world.pod("train-0-r1")["spec"]["containers"][0]["env"]}
    told = Spent(
        times=Times(useful_seconds=95, queueing_seconds=10, start_seconds=5),
        until=began.timestamp() + 110,
        first_step_at=began.timestamp() + 15,
        reached=50,
    )
    assert load(Spent, json.loads(env["DDPJOB_SPENT"])) == told
    assert "DDPJOB_SPENT" not in str(world.pod("train-1"))
    await world.run()
    await world.passes(50)
    less = at(
        world.api.now, queueing=10, start=5, useful=20
    )  # a coordinator that knows less takes nothing back
    await world.say(state=RunState.RUNNING, term=2, progress=Progress(step=51, total_steps=100), spent=less)
    assert world.status["time"]["usefulSeconds"] == 95
    end = Spent(times=Times(useful_seconds=95, queueing_seconds=10, start_seconds=5, restart_seconds=40))
    await world.done(spent=render(end))
    assert world.condition("Complete") == ("True", "AllRanksSucceeded")
    assert world.status["time"] == {
        "usefulSeconds": 95, "queueingSeconds": 10, "startSeconds": 5, "restartSeconds": 40,
    }  # fmt: skip
    assert world.status["goodputPercent"] == 63
    assert counted(world)[2] == {Use.USEFUL: 95, Use.QUEUEING: 10, Use.START: 5, Use.RESTART: 40}


async def test_a_job_that_never_ran_was_queueing() -> None:
    world = await World().start()
    await world.apply(activeDeadlineSeconds=100)
    await world.passes(101)
    assert world.condition("Failed") == ("True", "DeadlineExceeded")
    assert world.status["time"] == {"queueingSeconds": 101}
    assert "goodputPercent" not in world.status


def test_sums_that_cannot_be_true_are_not_believed() -> None:
    status = Status(active_seconds=100)
    mad = Times(useful_seconds=float("nan"), start_seconds=float("inf"), hang_seconds=-5, restart_seconds=1e6)
    found = spending.merged(status, mad, limit=timedelta(seconds=160))
    assert found.time == TimeState()
    assert found.goodput_percent is None


def test_suspended_time_is_in_no_sum() -> None:
    since = NOW - timedelta(seconds=10)
    time = TimeState(useful_seconds=90, start_seconds=10)
    resumed = Status(active_seconds=100, active_since=stamp(since), time=time, startup=Startup())
    assert spending.for_coordinator(resumed).until == since.timestamp()
    assert spending.for_coordinator(resumed).first_step_at is None
    assert spending.closed(resumed, now=NOW).time == replace(time, other_seconds=10)


@pytest.mark.parametrize("unix", [5.0, -6.0e10, -1.0e300])
async def test_a_first_step_is_not_before_the_job(unix: float) -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    await world.passes(10)
    await world.say(state=RunState.RUNNING, progress=Progress(step=9), spent=Spent(first_step_at=unix))
    first = datetime.fromisoformat(world.status["startup"]["firstStepAt"])
    assert datetime.fromisoformat(world.status["activeSince"]) <= first <= world.api.now


def test_what_is_counted_is_what_is_scraped() -> None:
    metrics = Metrics()
    metrics.count(
        tally.Tally(stages={Stage.FIRST_STEP: 12.5}, incidents=(Reason.KILLED,), seconds={Use.USEFUL: 90})
    )
    text = generate_latest(metrics.registry).decode()
    for line in (
        'creation_seconds_bucket{le="20.0",stage="first_step"} 1.0',
        'creation_seconds_count{stage="pods_created"} 0.0',
        'incidents_total{reason="Killed"} 1.0',
        'incidents_total{reason="NoProgress"} 0.0',
        'job_seconds_total{use="useful"} 90.0',
        'job_seconds_total{use="hang"} 0.0',
    ):
        assert f"ddpjob_operator_{line}\n" in text
