"""How an ending is told: sentences, exit codes and the settings line, each from typed values."""

import dataclasses
from typing import Any

import pytest

from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.goodput import Spent, Times
from ddpjob_api.report import (
    Failure,
    InEffect,
    JobReport,
    Outcome,
    Override,
    Progress,
    RunState,
    TerminationMessage,
)
from ddpjob_cli.local import words
from ddpjob_cli.local.summary import Summary, summarize

RAISED = Failure(
    reason=Reason.PROGRAM_FAILED,
    rank=1,
    node=1,
    exit_code=1,
    message="ValueError: bad sample 17",
    location="train.py:31",
)
KILLED = Failure(
    reason=Reason.KILLED, rank=3, node=1, exit_code=137, signal="SIGKILL", message="died of SIGKILL", step=52
)
HUNG = Failure(reason=Reason.NO_PROGRESS, rank=0, node=0, message="no step for 60 s")
LOST = Failure(reason=Reason.POD_LOST, node=2, message="the launcher of node 2 is gone")


def ending(outcome: Outcome, *, code: int = 0, node: int = 0, **more: Any) -> TerminationMessage:
    numbers = {"term": 0, "generation": 1, "restarts": 0, "disruptions": 0, **more}
    return TerminationMessage(protocol=1, outcome=outcome, exit_code=code, node=node, **numbers)


def summary(*endings: TerminationMessage | None, last: JobReport | None = None, **more: Any) -> Summary:
    given: dict[str, Any] = {"returncodes": [0] * len(endings), "killed": False, "max_restarts": 3, **more}
    return summarize(name="job", ranks=2, seconds=14.23, last=last, endings=endings, **given)


def report(**more: Any) -> JobReport:
    numbers = {"term": 0, "generation": 1, "nodes_joined": 2, "nodes_expected": 2, "ranks": 4}
    return JobReport(protocol=1, name="job", state=RunState.RUNNING, **{**numbers, **more})


ENDINGS: list[tuple[Summary, int, list[str]]] = [
    (
        summary(
            ending(
                Outcome.DONE,
                progress=Progress(step=180, loss=0.0213),
                result={"accuracy": 0.98123, "loss": 1.0, "replicasEqual": True, "note": "x"},
            )
        ),
        0,
        ["done: 180 steps, loss 0.0213, accuracy 0.9812, 2 ranks, 14.2 s, restarts 0"],
    ),
    (
        summary(ending(Outcome.DONE, restarts=2), last=report(failures=(KILLED, KILLED), ranks=4, restarts=2)),
        0,
        [
            "survived (2 times): rank 3 (node 1): died of SIGKILL at step 52",
            "done: 4 ranks, 14.2 s, restarts 2",
        ],
    ),
    (
        summary(
            ending(Outcome.DONE, spent=Spent(times=Times(useful_seconds=8.41, start_seconds=2, hang_seconds=0.04))),
            ending(Outcome.STOPPED, node=1, spent=Spent(times=Times(useful_seconds=8, restart_seconds=1))),
        ),
        0,
        [
            "goodput 73 %: useful 8.4 s, start 2.0 s, restart 1.0 s",
            "done: 2 ranks, 14.2 s, restarts 0",
        ],
    ),
    (
        summary(
            ending(
                Outcome.DONE,
                efficiency=Efficiency(
                    exposed_communication_percent=9, data_wait_percent=4, ddp_efficiency_percent=91
                ),
            )
        ),
        0,
        [
            "ranks waited 9 % for other ranks, 4 % for data; DDP efficiency 91 %",
            "done: 2 ranks, 14.2 s, restarts 0",
        ],
    ),
    (
        summary(ending(Outcome.FAILED, code=87, failure=HUNG), last=report(spent=Spent(times=Times(start_seconds=9)))),
        87,
        ["failed: rank 0 (node 0): no step for 60 s, restarts 0 of 3"],
    ),
    (summary(ending(Outcome.STOPPED, code=85)), 85, ["stopped: 2 ranks, 14.2 s, restarts 0"]),
    (
        summary(
            ending(Outcome.REFUSED, code=86, failure=Failure(reason=Reason.CONFIGURATION_REFUSED, message="Refused: NCCL needs a GPU"))
        ),
        86,
        ["refused: NCCL needs a GPU"],
    ),
    (
        summary(ending(Outcome.FAILED, code=88, failure=RAISED, restarts=3)),
        1,
        ["failed: rank 1 (node 1): ValueError: bad sample 17 (train.py:31), exit code 1, restarts 3 of 3"],
    ),
    (
        summary(ending(Outcome.FAILED, code=88, failure=KILLED), last=report(failures=(RAISED, KILLED))),
        137,
        [
            "before: rank 1 (node 1): ValueError: bad sample 17 (train.py:31), exit code 1",
            "failed: rank 3 (node 1): died of SIGKILL at step 52, restarts 0 of 3",
        ],
    ),
    (
        summary(ending(Outcome.FAILED, code=87, failure=HUNG)),
        87,
        ["failed: rank 0 (node 0): no step for 60 s, restarts 0 of 3"],
    ),
    (
        summary(ending(Outcome.FAILED, code=88, failure=LOST), ending(Outcome.FAILED, code=3, node=1)),
        3,
        ["failed: the launcher of node 2 is gone, restarts 0 of 3"],
    ),
    (
        summary(None, None, returncodes=[1, -9]),
        70,
        [
            ("failed: the launcher of node 0 ended with code 1 and left no report; its last lines are above, "
            "restarts 0 of 3")
        ],
    ),
    (summary(None, killed=True), 130, ["killed: 2 ranks, 14.2 s, restarts 0"]),
]  # fmt: skip


@pytest.mark.parametrize(("found", "code", "lines"), ENDINGS, ids=[lines[-1][:40] for _, _, lines in ENDINGS])
def test_each_ending_has_its_sentence_and_its_exit_code(found: Summary, code: int, lines: list[str]) -> None:
    assert found.lines() == lines
    assert found.exit_code == code == found.json()["exitCode"]


def test_a_programs_results_stand_beside_ours_and_do_not_replace_them() -> None:
    found = summary(ending(Outcome.DONE, result={"steps": 7, "name": "x", "accuracy": 1})).json()
    assert (found["steps"], found["name"], found["accuracy"]) == (0, "job", 1)
    assert found["result"] == {"steps": 7, "name": "x", "accuracy": 1}


def test_the_last_report_fills_what_a_termination_message_leaves_out() -> None:
    ddp = InEffect(backend="gloo", all_reduces=9)
    last = report(ddp=ddp, progress=Progress(step=9, loss=0.5), result={"accuracy": 0.5})
    found = summary(ending(Outcome.DONE), last=last).json()
    assert (found["steps"], found["allReduces"], found["accuracy"], found["ranks"]) == (9, 9, 0.5, 4)


def test_the_settings_line_has_what_was_read_back() -> None:
    ddp = InEffect(
        backend="gloo",
        timeout=120.0,
        broadcast_buffers=True,
        static_graph=False,
        gradient_accumulation_steps=4,
        bucket_bytes=(2368520, 107520),
    )
    assert words.about(ddp) == [
        (
            "DDP settings in effect: backend gloo, timeoutSeconds 120, bucketCapMB default (25, first bucket 1), "
            "broadcastBuffers true, staticGraph false, gradientAccumulationSteps 4, buckets 2.3 MiB + 105 KiB"
        )
    ]
    early = dataclasses.replace(ddp, gradient_accumulation_steps=None)
    assert words.about(early) == []


def test_an_override_names_both_values_and_the_line() -> None:
    item = Override(setting="bucketCapMB", asked="50", effective="1", where="train.py:31")
    assert words.override(item) == "bucketCapMB: the script asked for 50, 1 is in effect (train.py:31)"
    kept = dataclasses.replace(item, effective="50", applied=False)
    assert (
        words.override(kept)
        == "bucketCapMB: the script's 50 is in effect, the resource says otherwise (train.py:31)"
    )


@pytest.mark.parametrize(
    ("nodes", "ranks", "expected"),
    [
        ((1,), 2, "node 1 (rank 1)"),
        ((1,), 8, "node 1 (ranks 4-7)"),
        ((0, 1), 4, "nodes 0, 1 (ranks 0-1, 2-3)"),
    ],
)
def test_missing_nodes_are_named_with_their_ranks(nodes: tuple[int, ...], ranks: int, expected: str) -> None:
    assert words.missing(report(missing_nodes=nodes, ranks=ranks)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.021312, "0.02131"), (1234.4, "1234"), (120.0, "120"), (1e308, "1e+308"), (-2.5e15, "-2.5e+15")],
)
def test_numbers(value: float, expected: str) -> None:
    assert words.number(value) == expected


@pytest.mark.parametrize(("seconds", "expected"), [(7.6, "8 s"), (200, "3 min 20 s"), (7530, "2 h 5 min")])
def test_durations(seconds: float, expected: str) -> None:
    assert words.duration(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, "0 ms"),
        (0.00123, "1.23 ms"),
        (0.1239, "124 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (3.41, "3.41 s"),
        (99.96, "100 s"),
        (1000.4, "1000 s"),
    ],
)
def test_times_of_a_step(seconds: float, expected: str) -> None:
    assert words.milliseconds(seconds) == expected
