"""A training that does not go on by itself: no step any more, or the same failure again and again."""

import signal
from collections.abc import Callable

import pytest
from tests.chaos.faults import WORKER, Faults
from tests.chaos.table import Incident, Table
from tests.chaos.training import Training
from tests.cluster.jobs import condition

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(600)]

HANGS = [
    pytest.param("sleep", "rank 1 sleeps in its program", id="sleep"),
    pytest.param("skip", "rank 1 waits in a collective that the others skip", id="collective"),
    pytest.param("stop", "worker of rank 1: SIGSTOP for good", id="sigstop"),
]


@pytest.mark.parametrize(("what", "words"), HANGS)
def test_a_hang_is_found_and_its_rank_named(
    begin: Callable[..., Training], faults: Faults, table: Table, what: str, words: str
) -> None:
    with table.row(words) as row:
        patience = {"progressTimeoutSeconds": 12, "maxRestarts": 1000, "gracePeriodSeconds": 10}
        training = begin(f"hung-{what}", recovery=patience, ddp={"timeoutSeconds": 600})
        incident = Incident.before(training, row)
        if what == "stop":
            training.strike()
            training.cluster.kill(faults.process(training, 1, WORKER), signal.SIGSTOP)
        else:
            training.fault(1, what)
        failure = incident.recovered(restarts=1, timeout=240)["lastFailure"]
        incident.kept(0, 1)
        assert failure["reason"] == "NoProgress"
        assert failure["rank"] == 1
        who = f"NoProgress: rank 1 (pod {failure['pod']} on node {failure['hostNode']}): "
        assert any(event.startswith(who) for event in training.job.events()), training.job.events()


def test_the_same_failure_at_the_same_step_again_and_again_ends_the_job(
    begin: Callable[..., Training], table: Table
) -> None:
    with table.row("the same sample fails every time") as row:
        training = begin("poisoned")
        incident = Incident.before(training, row)
        (training.journal.folder / "poison").write_text("17")
        found = training.job.until_true("Failed", 400)
        row.counted = f"{found['status']['restarts']} restarts of 1000"
        failed = condition(found, "Failed")
        assert failed["reason"] == "RepeatedFailure"
        assert "ValueError: bad sample 17" in failed["message"]
        assert found["status"]["restarts"] - incident.restarts <= 3
