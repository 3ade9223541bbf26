"""The state machine alone: whose failure it was."""

import pytest
from tests.trainer.launcher.coordinating import all_stopped, fail, running, sent
from tests.trainer.launcher.world import worker_exit

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Beat, Done, Hung, Leave, Message, Pace, Start, Stop, Stopped
from ddpjob_api.report import Cause, Outcome, RankView
from ddpjob_trainer.launcher.actions import Action
from ddpjob_trainer.launcher.coordinator import Coordinator
from ddpjob_trainer.launcher.timing import HEALTHY_SECONDS


def test_the_first_own_failure_is_blamed_and_the_second_named_beside_it() -> None:
    core = running(3)
    assert set(sent(fail(core, 2, 1.0, cause=Cause.VICTIM), Stop)) == {1, 2, 3}
    fail(core, 1, 1.1)
    fail(core, 0, 1.2)
    all_stopped(core, 1.3)
    failure = core.report().last_failure
    assert failure is not None
    assert (failure.rank, failure.node, failure.pod, failure.also) == (1, 1, "p1", (0,))
    assert core.ledger.restarts == 1
    assert core.generation == 2


def test_a_victim_is_blamed_only_after_the_time_in_which_a_lost_launcher_shows() -> None:
    core = running(2)
    fail(core, 0, 1.0, cause=Cause.VICTIM)
    assert not sent(all_stopped(core, 1.1), Start), "the verdict waits"
    core.closed(1.5, 2)
    core.tick(2.6)
    failure = core.report().last_failure
    assert failure is not None and failure.reason is Reason.POD_LOST and failure.node == 1
    assert (core.ledger.restarts, core.ledger.disruptions) == (0, 1)


def test_a_victim_alone_is_blamed_in_the_end() -> None:
    core = running(2)
    fail(core, 0, 1.0, cause=Cause.VICTIM)
    all_stopped(core, 1.1)
    assert set(sent(core.tick(2.1), Start)) == {1, 2}
    assert core.ledger.restarts == 1
    failure = core.report().last_failure
    assert failure is not None and failure.rank == 0
    assert failure.message.startswith("gave up on the other ranks, none of which failed: ")


def test_a_rank_that_ended_too_early_is_named_by_those_that_needed_it() -> None:
    core = running(2)
    core.received(0.9, 2, Done(generation=1))
    fail(core, 0, 1.0, cause=Cause.VICTIM)
    all_stopped(core, 1.1)
    core.tick(2.1)
    failure = core.report().last_failure
    assert failure is not None and failure.rank == 0
    assert failure.message.startswith("still needed the ranks of node 1, which had ended with exit code 0: ")


ENDED = RankView(rank=1, step=3, joined=True, ended=True)

GOES_ON = RankView(rank=0, step=3, joined=True, place="t.py:7 in f", in_collective=True)

UNEVEN = (
    "no step for 61 s: it had ended with exit code 0 after step 3, while rank 0 went on to step 4; "
    "give every rank the same number of steps"
)


def test_ranks_that_wait_in_a_step_for_one_that_has_ended_need_no_time_out() -> None:
    core = running(2)
    core.received(0.9, 2, Done(generation=1, ranks=(ENDED,)))
    assert not sent(core.received(60.0, 1, Beat(generation=1, waits_seconds=59.0)), Stop)
    stops = sent(core.received(62.0, 1, Beat(generation=1, waits_seconds=61.0)), Stop)
    assert stops[1].post_mortem
    core.received(63.0, 1, Stopped(generation=1, ranks=(GOES_ON,)))
    failure = core.report().last_failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.node, failure.pod) == (Reason.NO_PROGRESS, 1, 1, "p1")
    assert failure.message == UNEVEN
    assert core.ledger.restarts == 1


def test_it_may_have_ended_beside_one_that_lives() -> None:
    core = running(2)
    assert not sent(core.received(62.0, 1, Beat(generation=1, waits_seconds=61.0)), Stop), (
        "it may just be slow"
    )
    core.received(62.1, 2, Beat(generation=1, ended=True))
    assert set(sent(core.received(62.2, 1, Beat(generation=1, waits_seconds=61.2)), Stop)) == {1, 2}


def test_what_is_done_alone_after_the_last_step_may_take_long() -> None:
    core = running(2)
    core.received(0.9, 2, Done(generation=1, ranks=(ENDED,)))
    for second in range(1, 600):
        assert not sent(core.received(float(second), 1, Beat(generation=1)), Stop)


def test_an_own_failure_outranks_a_lost_launcher() -> None:
    core = running(2)
    core.closed(1.0, 2)
    fail(core, 0, 1.1)
    all_stopped(core, 1.2)
    core.tick(2.1)
    failure = core.report().last_failure
    assert failure is not None and failure.rank == 0
    assert (core.ledger.restarts, core.ledger.disruptions) == (1, 0)


def exception(step: int = 5, message: str = "ValueError: bad sample 17") -> dict[str, object]:
    return {"error_type": "ValueError", "message": message, "location": "t.py:3", "step": step}


@pytest.mark.parametrize(
    ("failures", "outcome"),
    [
        ([exception()] * 3, Outcome.FAILED),
        ([exception()] * 2, None),
        ([exception(), exception(6), exception()], None),
        ([exception(), exception(message="ValueError: bad sample 18"), exception()], None),
        ([exception(message=f"RuntimeError: at 0x{n}f") for n in (1, 2, 3)], Outcome.FAILED),
        ([{"returncode": -9, "message": "died of SIGKILL", "step": 5}] * 3, None),
    ],
)
def test_the_same_exception_at_the_same_step_three_times_in_a_row_is_permanent(
    failures: list[dict[str, object]], outcome: Outcome | None
) -> None:
    core = running(2, max_restarts=10)
    now = 1.0
    for failure in failures:
        fail(core, 1, now, **failure)
        all_stopped(core, now)
        now += 60.0
        core.tick(now)
    assert (core.final.outcome if core.final else None) is outcome
    if core.final is not None:
        assert core.final.failure is not None
        assert core.final.failure.reason is Reason.REPEATED_FAILURE
        assert str(failures[-1]["message"]) in core.final.failure.message
        assert "3 times in a row at step 5" in core.final.failure.message


def hung(core: Coordinator, now: float, *views: RankView) -> dict[int, Message]:
    actions: list[Action] = []
    for view in views[:1]:
        actions += core.received(now, view.rank + 1, Hung(generation=1, seconds=31.0, ranks=(view,)))
    stops = sent(actions, Stop)
    for view in views:
        core.received(now + 1, view.rank + 1, Stopped(generation=1, ranks=(view,)))
    return stops


@pytest.mark.parametrize("reporter", [0, 1, 2])
def test_a_hang_is_of_the_rank_that_is_behind_and_never_simply_of_the_first_to_report(reporter: int) -> None:
    core = running(3)
    views = [
        RankView(rank=rank, step=9 if rank != 1 else 8, joined=True, place="t.py:7 in f") for rank in range(3)
    ]
    stops = hung(core, 40.0, views[reporter], *(view for view in views if view.rank != reporter))
    assert set(stops) == {1, 2, 3}
    assert all(isinstance(stop, Stop) and stop.post_mortem for stop in stops.values())
    failure = core.report().last_failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.node, failure.pod) == (Reason.NO_PROGRESS, 1, 1, "p1")
    assert (failure.exit_code, failure.location, failure.step) == (87, "t.py:7", 8)
    assert failure.message.startswith("no step for 31 s: it stands in t.py:7 in f after step 8")
    assert (core.ledger.restarts, core.generation) == (1, 2)
    assert core.report().hung
    core.received(50.0, 1, Beat(generation=2, steps=(0,)))
    assert core.report().hung
    core.received(51.0, 1, Beat(generation=2, steps=(1,)))
    assert not core.report().hung


@pytest.mark.parametrize("sees_steps", [False, True])
def test_a_hang_is_over_where_a_job_whose_steps_are_not_seen_has_run_for_long(sees_steps: bool) -> None:
    core = running(2)
    if sees_steps:
        core.received(30.0, 1, Beat(generation=1, steps=(4,), pace=Pace(step=4, made=4)))
    hung(core, 40.0, *(RankView(rank=rank, joined=True) for rank in range(2)))
    assert (core.generation, core.report().hung) == (2, True)
    core.received(core.began + HEALTHY_SECONDS - 1, 1, Beat(generation=2, steps=(0,)))
    assert core.report().hung
    core.received(core.began + HEALTHY_SECONDS, 1, Beat(generation=2, steps=(0,)))
    assert core.report().hung is sees_steps, "steps that are seen, and not made, are none"


@pytest.mark.parametrize(("steps", "culprit"), [((9, 8), 1), ((8, 9), 0), ((9, 9), None)])
def test_aborts_of_all_ranks_are_of_the_rank_that_is_behind(
    steps: tuple[int, int], culprit: int | None
) -> None:
    core = running(2)
    for rank in (0, 1):
        fail(core, rank, 1.0, returncode=-6, message="died of SIGABRT")
    for rank, sequence in enumerate(steps):
        view = RankView(rank=rank, step=5, sequence=sequence, micro_batches=6, joined=True)
        core.received(1.1, rank + 1, Stopped(generation=1, ranks=(view,)))
    core.tick(2.2)
    failure = core.report().last_failure
    assert failure is not None
    assert (failure.reason, failure.rank) == (Reason.NO_PROGRESS, culprit)
    assert "ranks 0, 1 were aborted" in failure.message
    assert core.ledger.restarts == 1


def test_a_rank_that_was_aborted_after_it_was_told_to_end_is_as_one_before() -> None:
    """Its handler of SIGTERM waits for Python while the main thread is in the collective."""
    core = running(2)
    fail(core, 0, 1.0, returncode=-6, message="died of SIGABRT")
    told = worker_exit(1, returncode=-6, message="died of SIGABRT", cause=Cause.KILLED)
    core.received(1.1, 1, Stopped(generation=1))
    core.received(1.1, 2, Stopped(generation=1, exits=(told,)))
    core.tick(2.2)
    failure = core.report().last_failure
    assert failure is not None and failure.reason is Reason.NO_PROGRESS
    assert "ranks 0, 1 were aborted" in failure.message


def test_aborts_of_ranks_that_were_told_to_end_are_nobodys_failure() -> None:
    core = running(2)
    core.received(1.0, 1, Leave(generation=1))
    for node in range(2):
        told = worker_exit(node, returncode=-6, message="died of SIGABRT", cause=Cause.KILLED)
        core.received(1.1, node + 1, Stopped(generation=1, exits=(told,)))
    core.tick(2.2)
    assert core.report().last_failure is None


def test_a_time_out_is_of_the_rank_that_did_not_come_and_not_of_those_that_waited() -> None:
    core = running(2)
    stops = sent(
        fail(core, 0, 1.0, cause=Cause.VICTIM, late=True, message="RuntimeError: Timed out waiting"), Stop
    )
    assert all(isinstance(stop, Stop) and stop.post_mortem for stop in stops.values())
    for rank, batches in enumerate((6, 5)):
        view = RankView(rank=rank, step=5, micro_batches=batches, joined=True, place="t.py:7 in load")
        core.received(1.1, rank + 1, Stopped(generation=1, ranks=(view,)))
    core.tick(2.2)
    failure = core.report().last_failure
    assert failure is not None
    assert (failure.reason, failure.rank, failure.exit_code) == (Reason.NO_PROGRESS, 1, 87)
    assert "rank 0 waited for it until the time-out (RuntimeError: Timed out waiting)" in failure.message
    assert core.report().hung
