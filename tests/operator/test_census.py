"""What the jobs are at a moment, counted: by condition, by what makes them slow, by how late their checkpoints are."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import generate_latest
from tests.operator.world import viewed

from ddpjob_api.efficiency import Efficiency
from ddpjob_operator import census
from ddpjob_operator.health import Metrics
from ddpjob_operator.model import ConditionState, ProgressState, Startup, Status, stamp

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


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
