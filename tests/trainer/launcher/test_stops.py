"""The state machine alone: stops on request, where all ranks save at one step."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.launcher.coordinating import all_stopped, fail, running, sent
from tests.trainer.launcher.world import coordinator, hello

from ddpjob_api.messages import Beat, Done, Finish, Leave, Pause, Paused, Start, Stop, StopAt, Stopped
from ddpjob_api.page import Slot
from ddpjob_api.report import Outcome, RunState
from ddpjob_trainer.launcher.crew import Crew
from ddpjob_trainer.launcher.stopping import after_step_seconds
from ddpjob_trainer.launcher.timing import KILL_FRACTION
from ddpjob_trainer.page import Page


def test_all_ranks_stop_one_boundary_after_the_highest() -> None:
    core = running(2)
    assert set(sent(core.received(1.0, 2, Leave(generation=1)), Pause)) == {1, 2}
    core.received(1.1, 1, Paused(generation=1, boundary=17))
    stops = sent(core.received(1.1, 2, Paused(generation=1, boundary=18)), StopAt)
    assert {m.step for m in stops.values() if isinstance(m, StopAt)} == {19}
    finishes = sent(all_stopped(core), Finish)
    assert set(finishes) == {2}, "only the one that was told to go"
    assert (core.state, core.ledger.disruptions) == (RunState.WAITING, 1)


def test_before_the_first_step_there_is_nothing_to_save() -> None:
    core = running(1)
    core.received(1.0, 1, Leave(generation=1))
    assert sent(core.received(1.1, 1, Paused(generation=1, boundary=0)), Stop)


def test_a_pause_that_is_not_answered_falls_back_to_a_stop() -> None:
    core = running(2)
    core.stop_job(1.0)
    core.received(1.1, 1, Paused(generation=1, boundary=5))
    assert not sent(core.tick(5.9), Stop)
    assert set(sent(core.tick(6.1), Stop)) == {1, 2}
    finishes = sent(all_stopped(core, 7.0), Finish)
    assert {m.exit_code for m in finishes.values() if isinstance(m, Finish)} == {85}


def test_ranks_that_reached_the_stop_step_have_most_of_the_grace_period_to_save() -> None:
    core = running(2)
    core.stop_job(1.0)
    for link in (1, 2):
        core.received(1.1, link, Paused(generation=1, boundary=5))
    core.received(2.0, 1, Beat(generation=1, steps=(6, 6)))
    core.received(2.0, 2, Beat(generation=1, steps=(6, 6)))
    assert not sent(core.tick(8.4), Stop)
    stops = sent(core.tick(8.6), Stop)
    assert {link: stop.why for link, stop in stops.items()} == dict.fromkeys(
        (1, 2),
        "every rank reached the stop step, but what they do after it (an evaluation, a save) did not end in time",
    )


def test_ranks_that_reached_the_stop_step_have_some_seconds_to_end_when_they_are_told_to() -> None:
    """A long evaluation after that step is nothing to wait for, and the program may handle SIGTERM."""
    for grace_seconds, seconds in ((60.0, 5.0), (10.0, 1.0)):
        assert grace_seconds * KILL_FRACTION - after_step_seconds(grace_seconds) == pytest.approx(seconds)


@pytest.mark.parametrize("beat", [None, Beat(generation=1, steps=(6, 5)), Beat(generation=1)])
def test_one_rank_before_the_stop_step_leaves_time_to_end_it(beat: Beat | None) -> None:
    core = running(2)
    core.stop_job(1.0)
    for link in (1, 2):
        core.received(1.1, link, Paused(generation=1, boundary=5))
    core.received(2.0, 1, Beat(generation=1, steps=(6, 6)))
    if beat is not None:
        core.received(2.0, 2, beat)
    assert not sent(core.tick(5.9), Stop)
    stops = sent(core.tick(6.1), Stop)
    assert {stop.why for stop in stops.values()} == {"not every rank reached the stop step in time"}


def test_ranks_that_ended_while_others_save_are_not_waited_for() -> None:
    core = running(2)
    core.stop_job(1.0)
    for link in (1, 2):
        core.received(1.1, link, Paused(generation=1, boundary=5))
    core.received(1.5, 1, Stopped(generation=1))
    core.received(2.0, 2, Beat(generation=1, steps=(6,)))
    assert not sent(core.tick(8.4), Stop)


def test_ranks_that_finish_while_a_stop_is_pending_are_done() -> None:
    core = running(2)
    core.stop_job(1.0)
    core.received(1.1, 1, Done(generation=1))
    core.received(1.2, 2, Done(generation=1))
    assert core.final is not None and core.final.outcome is Outcome.DONE


def test_a_failure_during_a_stop_on_request_ends_it_at_once_and_is_told() -> None:
    core = running(2)
    core.stop_job(1.0)
    assert sent(fail(core, 1, 1.1), Stop)
    all_stopped(core, 1.2)
    assert core.final is not None
    assert core.final.outcome is Outcome.STOPPED
    assert core.final.failure is not None and core.final.failure.rank == 1


def test_a_stop_of_the_job_while_nothing_runs_is_immediate() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0))
    assert set(sent(core.stop_job(1.0), Finish)) == {1}


def test_a_launcher_told_to_go_while_nothing_runs_goes_at_once_and_counts_nothing() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0))
    finishes = sent(core.received(1.0, 1, Leave(generation=0)), Finish)
    assert {m.exit_code for m in finishes.values() if isinstance(m, Finish)} == {85}
    assert (core.state, core.ledger.disruptions) == (RunState.WAITING, 0)


def test_a_launcher_told_to_go_during_a_failures_stop_is_one_incident() -> None:
    core = running(2)
    fail(core, 0, 1.0)
    core.received(1.1, 2, Leave(generation=1))
    finishes = sent(all_stopped(core, 1.2), Finish)
    assert set(finishes) == {2}
    assert (core.ledger.restarts, core.ledger.disruptions) == (1, 0)


def test_a_leave_that_becomes_a_stop_of_the_job_ends_all() -> None:
    core = running(2)
    core.received(1.0, 2, Leave(generation=1))
    core.received(1.1, 2, Leave(generation=1, whole_job=True))
    for link in (1, 2):
        core.received(1.2, link, Paused(generation=1, boundary=3))
    finishes = sent(all_stopped(core, 1.3), Finish)
    assert {m.exit_code for m in finishes.values() if isinstance(m, Finish)} == {85}
    assert set(finishes) == {1, 2}


def test_a_successor_waits_until_its_predecessor_has_saved() -> None:
    core = running(2)
    core.received(1.0, 2, Leave(generation=1))
    core.hello(1.1, 3, hello(1, incarnation=1))
    for link in (1, 2):
        core.received(1.2, link, Paused(generation=1, boundary=3))
    core.received(1.3, 1, Stopped(generation=1))
    actions = core.received(1.4, 2, Stopped(generation=1))
    assert set(sent(actions, Finish)) == {2}
    assert set(sent(core.tick(1.5), Start)) == {1, 3}
    assert core.ledger.disruptions == 1


def test_a_failure_while_the_job_stops_on_request_is_no_restart() -> None:
    core = running(2)
    core.stop_job(1.0)
    fail(core, 1, 1.1)
    all_stopped(core, 1.2)
    assert core.final is not None
    assert (core.final.outcome, core.final.restarts) == (Outcome.STOPPED, 0)


@pytest.mark.parametrize(
    ("boundary", "held", "stop_at"),
    [(18, True, 18), (18, False, 19), (17, False, 19)],
    ids=["both evaluate", "one is about to", "one is a step behind"],
)
def test_ranks_stop_in_an_evaluation_only_where_all_are_in_it(
    boundary: int, held: bool, stop_at: int
) -> None:
    """One that stops at its boundary does not evaluate, and the others would wait for it in a collective of that."""
    core = running(2)
    core.stop_job(1.0)
    core.received(1.1, 1, Paused(generation=1, boundary=18, held=True))
    stops = sent(core.received(1.1, 2, Paused(generation=1, boundary=boundary, held=held)), StopAt)
    assert {m.step for m in stops.values() if isinstance(m, StopAt)} == {stop_at}


@pytest.mark.parametrize(("lagging", "held"), [(18, True), (17, False)])
def test_a_node_is_held_only_where_each_of_its_ranks_evaluates(
    tmp_path: Path, lagging: int, held: bool
) -> None:
    pages = [Page(tmp_path / str(rank), create=True) for rank in (0, 1)]
    for page, boundary in zip(pages, (18, lagging), strict=True):
        page[Slot.BOUNDARY] = page[Slot.CAN_STOP_AT] = boundary
    crew: Any = SimpleNamespace(boundary=18, ranks=[SimpleNamespace(page=page) for page in pages])
    assert Crew.held.__get__(crew) is held
