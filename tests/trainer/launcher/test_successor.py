"""The state machine alone: new coordinators and their terms, launchers that are replaced, come back or were cut off."""

import pytest
from tests.trainer.launcher.coordinating import all_stopped, fail, running, sent
from tests.trainer.launcher.world import coordinator, hello, worker_exit

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Beat, Done, Paused, Start, Stop, Stopped
from ddpjob_api.report import Cause, Outcome, RunState
from ddpjob_trainer.launcher.actions import Refuse
from ddpjob_trainer.launcher.halt import failure_of


def test_a_coordinator_that_dies_of_its_last_verdict_leaves_it_to_the_next() -> None:
    core = running(1, max_restarts=0)
    fail(core, 0, 1.0)
    beats = sent(all_stopped(core), Beat)
    assert not beats, "a launcher that hears of the count forgets its failure"


def test_a_launcher_lost_after_its_workers_were_done_does_not_fail_the_job() -> None:
    core = running(2)
    core.received(1.0, 2, Done(generation=1))
    core.closed(1.1, 2)
    core.tick(5.0)
    core.hello(6.0, 3, hello(1, incarnation=1))
    core.received(7.0, 1, Done(generation=1))
    assert core.final is not None and core.final.outcome is Outcome.DONE


def test_a_new_coordinator_runs_nothing_again_that_all_have_done() -> None:
    core = coordinator(2, incarnation=1)
    core.hello(0.0, 1, hello(0, generation=4, done=True))
    core.hello(0.0, 2, hello(1, generation=4, done=True))
    assert core.final is not None and core.final.outcome is Outcome.DONE


def test_a_new_coordinator_stops_survivors_takes_the_highest_counts_and_goes_on() -> None:
    core = coordinator(2, incarnation=1)
    core.ledger.restarts = 1
    stops = sent(core.hello(0.0, 1, hello(1, generation=3, running=True, restarts=2, term=1)), Stop)
    assert isinstance(stops[1], Stop) and (stops[1].generation, stops[1].term) == (3, 2)
    assert not sent(core.hello(0.1, 2, hello(0, incarnation=1)), Start), "workers of generation 3 live"
    (start, _) = sent(core.received(0.2, 1, Stopped(generation=3)), Start).values()
    assert isinstance(start, Start)
    assert (start.generation, start.restarts, start.term) == (4, 2, 2)


@pytest.mark.parametrize(("counted", "restarts"), [(False, 1), (True, 1)])
def test_a_failure_that_a_lost_coordinator_took_with_it_is_counted_once(counted: bool, restarts: int) -> None:
    failure = failure_of(worker_exit(1), hello(1), generation=3, at="")
    core = coordinator(2, incarnation=1)
    for node in (0, 1):
        core.hello(
            0.0,
            node + 1,
            hello(
                node, generation=3, restarts=int(counted), last_failure=None if counted else failure, term=1
            ),
        )
    assert core.state is RunState.RUNNING
    assert core.ledger.restarts == restarts


def test_a_launcher_that_missed_the_count_does_not_have_its_failure_counted_again() -> None:
    core = running(2)
    fail(core, 1, 1.0)
    failure = failure_of(worker_exit(1), hello(1), generation=1, at="")
    core.closed(1.1, 1)
    all_stopped(core, 1.2)
    core.tick(2.2)
    assert (core.state, core.ledger.restarts) == (RunState.WAITING, 1)
    core.closed(2.3, 2)
    core.hello(2.4, 3, hello(1, generation=1, last_failure=failure))
    core.hello(2.5, 4, hello(0, incarnation=1, generation=1))
    assert (core.state, core.ledger.restarts) == (RunState.RUNNING, 1)


def test_a_coordinator_whose_term_is_over_refuses() -> None:
    core = coordinator(2)
    (refusal,) = [a for a in core.hello(0.0, 1, hello(1, term=2)) if isinstance(a, Refuse)]
    assert "term" in refusal.message


def test_a_replaced_launcher_is_told_to_end() -> None:
    core = running(2)
    core.closed(1.0, 2)
    core.hello(1.1, 3, hello(1, incarnation=1))
    (refusal,) = [a for a in core.hello(1.2, 4, hello(1)) if isinstance(a, Refuse)]
    assert refusal.replaced


def test_a_launcher_that_comes_back_in_time_disturbs_nobody() -> None:
    core = running(2)
    core.closed(1.0, 2)
    core.hello(1.5, 3, hello(1, generation=1, running=True))
    core.tick(9.0)
    assert core.state is RunState.RUNNING
    assert core.ledger.disruptions == 0


def test_a_launcher_that_comes_back_when_its_generation_has_ended_is_told_to_end_its_workers() -> None:
    core = running(2)
    core.closed(1.0, 2)
    core.tick(10.0)
    core.received(10.1, 1, Stopped(generation=1))
    assert (core.state, core.ledger.disruptions) == (RunState.WAITING, 1)
    stops = sent(core.hello(11.0, 3, hello(1, generation=1, running=True)), Stop)
    assert {link: stop.generation for link, stop in stops.items()} == {3: 1}
    starts = sent(core.received(11.5, 3, Stopped(generation=1)), Start)
    assert {link: start.generation for link, start in starts.items()} == {1: 2, 3: 2}


def test_a_launcher_that_was_cut_off_and_ended_its_workers_is_a_disruption() -> None:
    core = running(2)
    fail(core, 0, 9.0, cause=Cause.VICTIM)  # a coordinator that stood still sees its own rank's end first
    core.received(9.1, 1, Stopped(generation=1))
    core.closed(9.2, 2)
    core.hello(9.3, 3, hello(1, generation=1))
    core.tick(12.0)
    assert (core.ledger.restarts, core.ledger.disruptions) == (0, 1)
    failure = core.report().last_failure
    assert failure is not None and (failure.reason, failure.node, failure.rank) == (Reason.DISRUPTED, 1, None)
    assert failure.message == "node 1 was cut off from the coordinator and ended its workers"


def test_an_own_failure_stays_one_when_a_launcher_was_cut_off_meanwhile() -> None:
    core = running(2)
    fail(core, 0, 9.0)
    core.received(9.1, 1, Stopped(generation=1))
    core.closed(9.2, 2)
    core.hello(9.3, 3, hello(1, generation=1))
    core.tick(12.0)
    assert (core.ledger.restarts, core.ledger.disruptions) == (1, 0)


def test_an_answer_that_a_short_break_took_is_nobodys_failure_where_the_stop_was_asked_for() -> None:
    core = running(2, max_disruptions=0)
    core.stop_job(1.0)
    for link in (1, 2):
        core.received(1.1, link, Paused(generation=1, boundary=3))
    core.received(1.2, 1, Stopped(generation=1))
    core.closed(1.3, 2)
    core.hello(1.4, 3, hello(1, generation=1))
    assert core.final is not None
    assert (core.final.outcome, core.final.failure) == (Outcome.STOPPED, None)
    assert (core.ledger.disruptions, core.ledger.failures) == (0, [])


def test_a_failure_that_the_operator_heard_of_is_not_counted_again_by_the_next_coordinator() -> None:
    failure = failure_of(worker_exit(1), hello(1), generation=3, at="")
    core = coordinator(2, incarnation=1)
    core.ledger.restarts = 1  # the environment of the new pod
    core.hello(0.0, 1, hello(0, incarnation=1, restarts=1))
    core.hello(0.1, 2, hello(1, generation=3, restarts=0, last_failure=failure, term=1))
    assert (core.state, core.ledger.restarts, core.ledger.failures) == (RunState.RUNNING, 1, [failure])


@pytest.mark.parametrize(("judged", "failures"), [(2, [Reason.POD_LOST]), (3, [])])
def test_the_loss_of_launcher_0_is_among_the_failures(judged: int, failures: list[Reason]) -> None:
    core = coordinator(2, incarnation=1)
    core.hello(0.0, 1, hello(0, incarnation=1))
    core.hello(0.1, 2, hello(1, generation=3, judged=judged, term=1))
    assert core.state is RunState.RUNNING
    report = core.report()
    assert [failure.reason for failure in report.failures] == failures
    assert [failure.node for failure in report.failures] == [0] * len(failures)
