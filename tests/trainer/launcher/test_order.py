"""Real launchers: what came first, a worker's failure or the signal that ended it, decides whose failure it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launcher.conftest import PROGRAM
from tests.trainer.launcher.local import LocalJob

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Outcome

pytestmark = pytest.mark.timeout(120)
MakeJob = Callable[..., LocalJob]


def script(state: Path, steps: int = 5, **plan: Any) -> dict[str, Any]:
    return {"script": {"args": [str(PROGRAM), json.dumps({"steps": steps, "state": str(state), **plan})]}}


@pytest.mark.parametrize("fault", ["raise and stay", "raise and finish slowly"])
def test_a_rank_that_failed_and_does_not_end_is_told_of_while_its_peers_wait_for_it(
    job: MakeJob, tmp_path: Path, fault: str
) -> None:
    """A collective's time-out, 60 s here, would have come first, without a word of the exception."""
    faults = {"1": {"1": fault}, "2": {"0": "wait"}}
    run = job(2, script(tmp_path, together=60, faults=faults), recovery={"gracePeriodSeconds": 10})
    first, second = run.launch_all()
    second.wrote("ValueError: bad sample 2")
    first.wrote("[rank 0] generation 2 from step 0")
    failure = run.report().last_failure
    (tmp_path / "go").touch()
    assert failure is not None
    assert (failure.rank, failure.reason, failure.exit_code) == (1, Reason.PROGRAM_FAILED, 1)
    assert failure.message == "ValueError: bad sample 2"
    assert "program.py:" in str(failure.location)
    assert [first.code(), second.code()] == [0, 0]
    assert "rank 1 has failed and does not end" in second.output
    assert "Timed out waiting" not in first.output, "the collective's time-out did not end it"
    assert first.output.count("generation 1, rank 1 on node 1 (test-1): ValueError") == 1, "told once"


def test_exit_handlers_of_a_rank_that_failed_are_not_cut_off(job: MakeJob, tmp_path: Path) -> None:
    run = job(
        2,
        script(tmp_path, together=60, faults={"1": {"1": "raise and upload"}}),
        recovery={"gracePeriodSeconds": 20},
    )
    first, second = run.launch_all()
    first.wrote("[rank 0] generation 2 from step 0")
    assert (tmp_path / "uploaded").exists()
    assert "rank 1 has failed and does not end" in second.output
    assert [first.code(), second.code()] == [0, 0]


def test_a_failure_that_was_written_is_blamed_although_a_peer_died_first(
    job: MakeJob, tmp_path: Path
) -> None:
    """Its process ends by our signal, while an exit handler holds it."""
    faults = {
        "1": {"0": "lose the one that raises", "1": "raise and finish slowly"},
        "2": {"0": "wait"},
    }
    run = job(2, script(tmp_path, faults=faults), recovery={"gracePeriodSeconds": 10})
    first, second = run.launch_all()
    first.wrote("[rank 0] generation 2 from step 0")
    failure = run.report().last_failure
    (tmp_path / "go").touch()
    assert failure is not None
    assert (failure.rank, failure.reason, failure.exit_code) == (1, Reason.PROGRAM_FAILED, 1)
    assert (failure.message, failure.step) == ("ValueError: bad sample 2", 2)
    assert "program.py:" in str(failure.location)
    assert [first.code(), second.code()] == [0, 0]


@pytest.mark.parametrize(
    "answer", ["answer with an exit code", "answer with an exception", "answer with an error"]
)
def test_what_a_rank_answers_when_it_is_told_to_end_is_no_failure(
    job: MakeJob, tmp_path: Path, answer: str
) -> None:
    """Before the first step there is nothing to save, so a drain ends the ranks by a signal."""
    run = job(
        1,
        script(tmp_path, after=0, faults={"1": {"0": answer}}),
        recovery={"gracePeriodSeconds": 10, "maxRestarts": 0},
    )
    [launcher] = run.launch_all()
    launcher.wrote(answer)
    launcher.term()
    assert launcher.code() == 85
    assert launcher.message.outcome is Outcome.STOPPED
    assert (launcher.message.restarts, launcher.message.failure) == (0, None)
