"""What the operator counts: moments of a start, incidents, seconds, jobs; each once, whoever writes."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.operator.fake_api import last_words, terminated
from tests.operator.world import World

from ddpjob_api.codec import load, render
from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.goodput import Spent, Times, Use
from ddpjob_api.report import Failure, Outcome, Progress, RunState
from ddpjob_operator import census, spending, tally
from ddpjob_operator.health import Metrics
from ddpjob_operator.model import (
    ConditionState,
    ProgressState,
    Startup,
    Status,
    TimeState,
    read_status,
    stamp,
)
from ddpjob_operator.observe import JobView, job_of
from ddpjob_operator.progress import state_of
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


def viewed(status: Status | None = None, **spec: Any) -> JobView:
    body = {
        "metadata": {"name": "train", "namespace": "ns", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                     "resourceVersion": "7", "generation": 2},
        "spec": {"nodes": 2, "script": {"args": ["train.py"]}, **spec},
    }  # fmt: skip
    return replace(job_of(body), status=status or Status())


def true(kind: str, reason: str, *, since: datetime = NOW) -> ConditionState:
    return ConditionState(
        type=kind, status="True", reason=reason, message="", last_transition_time=stamp(since)
    )


RUNS = (true("Running", "Training", since=NOW - timedelta(days=1)),)
A_MINUTE_AGO = (true("Running", "Training", since=NOW - timedelta(minutes=1)),)
TASK = {"script": None, "task": {"entrypoint": "a.b:c", "maxSteps": 9, "globalBatchSize": 4}}
EVERY_MINUTE = {"checkpoint": {"everySeconds": 60}}
STALE: list[tuple[str, dict[str, Any], Status, bool]] = [
    ("saved in time", {**TASK, **EVERY_MINUTE}, saved := Status(
        conditions=RUNS, progress=ProgressState(checkpoint_at=stamp(NOW - timedelta(seconds=170)))), False),
    ("late", {**TASK, "checkpoint": {"everySeconds": 50}}, saved, True),
    ("late, and it does not run", {**TASK, "checkpoint": {"everySeconds": 50}}, replace(saved, conditions=()), False),
    ("only steps are counted", {**TASK, "checkpoint": {"everySteps": 50}}, saved, False),
    ("six hours", {**TASK, "checkpoint": {"everySteps": 50}}, Status(
        conditions=RUNS, progress=ProgressState(checkpoint_at=stamp(NOW - timedelta(hours=7)))), True),
    ("it saves at its end", {**TASK, "checkpoint": {}}, saved, False),
    ("it does not save", TASK, saved, False),
    ("nothing was ever saved", {**TASK, **EVERY_MINUTE}, started := Status(
        conditions=RUNS, startup=Startup(first_step_at=stamp(NOW - timedelta(hours=1)))), True),
    ("a script's way of saving is not seen", EVERY_MINUTE, started, False),
    ("a framework's is", {"checkpoint": {"everySeconds": 50}}, saved, True),
    ("resumed a minute ago", {**TASK, "checkpoint": {"everySeconds": 50}}, replace(saved, conditions=A_MINUTE_AGO), False),
    ("its coordinator answers since a minute ago", {**TASK, "checkpoint": {"everySeconds": 50}}, replace(
        saved, conditions=(*A_MINUTE_AGO, true("RendezvousReady", "AllRanksJoined", since=NOW - timedelta(days=1)))), True),
    ("resumed a minute ago, and long since for its policy", {**TASK, "checkpoint": {"everySeconds": 10}},
     replace(saved, conditions=A_MINUTE_AGO), True),
    ("its first step was after a long start", {**TASK, "checkpoint": {"everySeconds": 50}}, replace(
        saved, startup=Startup(first_step_at=stamp(NOW - timedelta(minutes=1)))), False),
    ("it runs, and no step is known", {**TASK, **EVERY_MINUTE}, Status(conditions=RUNS), False),
    ("a time that no calendar has", {**TASK, **EVERY_MINUTE}, Status(
        conditions=RUNS, progress=ProgressState(checkpoint_at="0001-01-01T00:00:00+23:59")), False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "status", "late"), [case[1:] for case in STALE], ids=[case[0] for case in STALE]
)
def test_a_checkpoint_is_late_by_its_policy(spec: dict[str, Any], status: Status, late: bool) -> None:
    assert census.is_stale(viewed(status, **{k: v for k, v in spec.items() if v is not None}), NOW) is late


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


@pytest.mark.parametrize("unix", [5.0, -6.0e10, -1.0e300])
async def test_a_first_step_is_not_before_the_job(unix: float) -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    await world.passes(10)
    await world.say(state=RunState.RUNNING, progress=Progress(step=9), spent=Spent(first_step_at=unix))
    first = datetime.fromisoformat(world.status["startup"]["firstStepAt"])
    assert datetime.fromisoformat(world.status["activeSince"]) <= first <= world.api.now


def test_jobs_are_counted_by_their_true_conditions() -> None:
    failing = Status(conditions=(true("Running", "CheckpointFailed"), true("PodsReady", "AllPodsReady")))
    strange = Status(
        conditions=(true("Running", "FromTheFuture"), true("Levitating", "Training")), state="Running"
    )
    metrics = Metrics()
    metrics.show(census.take([viewed(failing), viewed(strange), viewed()], now=NOW))
    text = generate_latest(metrics.registry).decode()
    for line in (
        'jobs_by_condition{condition="Running",reason="CheckpointFailed"} 1.0',
        'jobs_by_condition{condition="Running",reason="Unknown"} 1.0',
        'jobs_by_condition{condition="PodsReady",reason="AllPodsReady"} 1.0',
        'jobs_by_condition{condition="Failed",reason="InvalidSpec"} 0.0',
        "checkpoint_failing_jobs 1.0",
        "stale_checkpoint_jobs 0.0",
        'jobs{state="New"} 2.0',
    ):
        assert f"ddpjob_operator_{line}\n" in text
    assert "Levitating" not in text


def test_jobs_that_wait_for_a_rank_or_most_of_their_time_are_counted_while_they_run() -> None:
    slow = Efficiency(exposed_communication_percent=45, slowest_rank=1, slowest_rank_cause="data_wait")
    found = census.take(
        [
            viewed(Status(conditions=RUNS, efficiency=slow)),
            viewed(Status(conditions=RUNS, efficiency=replace(slow, slowest_rank_cause="from the future"))),
            viewed(Status(efficiency=slow)),
            viewed(Status(conditions=RUNS, efficiency=Efficiency(exposed_communication_percent=30, data_wait_percent=30))),
            viewed(),
        ],
        now=NOW,
    )  # fmt: skip
    assert (found.slow, found.inefficient) == ({"data_wait": 1}, 1)


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


def test_the_new_fields_are_read_back() -> None:
    status = Status(
        goodput_percent=3, time=TimeState(hang_seconds=4), startup=Startup(first_step_at=stamp(NOW))
    )
    assert read_status(render(status)) == status
