"""The state machine alone: one incident is one count, no two generations live together, everything converges."""

from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.trainer.launcher.world import World, coordinator, hello, worker_exit

from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.messages import (
    SUMS,
    Beat,
    Done,
    Failed,
    Finish,
    Hung,
    Leave,
    Message,
    Pause,
    Paused,
    Prepare,
    Prepared,
    Preparing,
    Source,
    Start,
    Stop,
    StopAt,
    Stopped,
)
from ddpjob_api.report import Cause, Outcome, RankView, RunState
from ddpjob_trainer.launcher.actions import Action, Refuse, Say, Send
from ddpjob_trainer.launcher.coordinator import Coordinator
from ddpjob_trainer.launcher.halt import failure_of
from ddpjob_trainer.launcher.timing import STRAGGLER_SECONDS

M = TypeVar("M", bound=Message)


def sent(actions: list[Action], kind: type[M]) -> dict[int, M]:
    """Messages of a kind by connection."""
    return {
        action.link: action.message
        for action in actions
        if isinstance(action, Send) and isinstance(action.message, kind)
    }


def running(nodes: int = 2, **more: object) -> Coordinator:
    """A coordinator in generation 1, with node n on connection n + 1."""
    core = coordinator(nodes, **more)
    actions: list[Action] = []
    for node in range(nodes):
        actions = core.hello(0.0, node + 1, hello(node, pod=f"p{node}"))
    assert set(sent(actions, Start)) == set(range(1, nodes + 1))
    return core


def all_stopped(core: Coordinator, now: float = 1.0) -> list[Action]:
    actions: list[Action] = []
    for member in list(core.members):
        if member.link is not None and member.running:
            actions += core.received(now, member.link, Stopped(generation=member.running))
    return actions


def fail(core: Coordinator, node: int, now: float, **more: object) -> list[Action]:
    item = worker_exit(node, **more)  # type: ignore[arg-type]
    return core.received(now, node + 1, Failed(generation=core.generation, exits=(item,)))


def test_a_generation_starts_only_when_all_launchers_are_there() -> None:
    core = coordinator(2)
    assert not sent(core.hello(0.0, 1, hello(0)), Start)
    assert core.report().missing_nodes == (1,)
    started = sent(core.hello(5.0, 2, hello(1)), Start)
    assert set(started) == {1, 2}
    assert core.state is RunState.RUNNING


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


@pytest.mark.parametrize(
    ("steps", "delays"),
    [
        ((0, 0, 0, 0, 0), (0.0, 0.5, 1.0, 2.0, 4.0)),
        ((5, 0, 5, 0, 0), (0.0, 0.0, 0.0, 0.0, 0.5)),
    ],
)
def test_back_off_grows_only_while_no_step_is_made(steps: tuple[int, ...], delays: tuple[float, ...]) -> None:
    core = running(1, max_restarts=100)
    now, waited = 1.0, []
    for step in steps:
        fail(core, 0, now, step=step)
        all_stopped(core, now)
        begun = now
        while core.state is not RunState.RUNNING:
            now += 0.25
            core.tick(now)
        waited.append(now - begun)
    assert waited == list(delays)


def test_the_failure_after_the_last_restart_ends_the_job_with_the_programs_code_on_its_node() -> None:
    core = running(2, max_restarts=0)
    fail(core, 1, 1.0, returncode=7)
    finishes = sent(all_stopped(core), Finish)
    codes = {link: message.exit_code for link, message in finishes.items() if isinstance(message, Finish)}
    assert codes == {1: 88, 2: 7}
    assert core.final is not None and core.final.outcome is Outcome.FAILED


@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_restarts_are_those_that_were_made(allowed: int) -> None:
    core = running(2, max_restarts=allowed)
    now = 1.0
    for made in range(allowed + 1):
        assert (core.report().restarts, core.report().outcome) == (made, None)
        fail(core, 1, now, step=made + 1)
        all_stopped(core, now)
        now += 1
    assert core.final is not None
    assert (core.final.outcome, core.final.restarts, core.report().restarts) == (
        Outcome.FAILED,
        allowed,
        allowed,
    )


def test_what_is_refused_was_not_restarted() -> None:
    core = running(2)
    exits = (replace(worker_exit(1, returncode=86), refused=True),)
    core.received(1.0, 2, Failed(generation=1, exits=exits))
    all_stopped(core, 1.1)
    assert core.final is not None
    assert (core.final.outcome, core.final.restarts, core.report().restarts) == (Outcome.REFUSED, 0, 0)


def test_a_coordinator_that_dies_of_its_last_verdict_leaves_it_to_the_next() -> None:
    core = running(1, max_restarts=0)
    fail(core, 0, 1.0)
    beats = sent(all_stopped(core), Beat)
    assert not beats, "a launcher that hears of the count forgets its failure"


def test_a_signal_is_128_plus_its_number() -> None:
    core = running(1, max_restarts=0)
    fail(core, 0, 1.0, returncode=-9)
    (finish,) = sent(all_stopped(core), Finish).values()
    assert isinstance(finish, Finish) and finish.exit_code == 137
    assert finish.failure is not None and finish.failure.signal == "SIGKILL"


def test_a_refusal_is_final_and_the_same_for_all() -> None:
    core = running(2)
    fail(core, 0, 1.0, cause=Cause.OWN)
    fail(core, 1, 1.0, returncode=86, refused=True)
    finishes = sent(all_stopped(core), Finish).values()
    assert [m.exit_code for m in finishes if isinstance(m, Finish)] == [86, 86]
    assert core.final is not None and core.final.failure is not None
    assert core.final.failure.reason is Reason.CONFIGURATION_REFUSED


def test_success_needs_every_node() -> None:
    core = running(2)
    assert not sent(core.received(1.0, 1, Done(generation=1, result={"accuracy": 1.0})), Finish)
    finishes = sent(core.received(1.0, 2, Done(generation=1)), Finish)
    assert set(finishes) == {1, 2}
    assert core.final is not None and core.final.result == {"accuracy": 1.0}


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


def prepared(attempt: int, **more: object) -> Prepared:
    return Prepared(attempt=attempt, **more)  # type: ignore[arg-type]


def test_the_newest_step_of_any_node_is_compared_where_it_is_and_fetched_where_it_is_not() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10, 20, 30), address="h0", giver_port=4000))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10, 20), address="h1", giver_port=4001)), Prepare)
    assert {link: (each.step, [source.node for source in each.sources]) for link, each in asked.items()} == {
        1: (30, []),
        2: (30, [0]),
    }
    assert asked[2].sources == (Source(node=0, host="h0", port=4000),)
    core.received(
        1.0, 2, Preparing(attempt=asked[2].attempt, source=0, done_bytes=35 << 20, total_bytes=100 << 20)
    )
    assert core.report().restoring == "node 1 fetches step 30 (100.0 MiB) from node 0: 35 %"
    assert not sent(core.received(2.0, 1, prepared(asked[1].attempt)), Start)
    starts = sent(core.received(3.0, 2, prepared(asked[2].attempt, checkpoints=(10, 20, 30))), Start)
    assert {link: start.resume_step for link, start in starts.items()} == {1: 30, 2: 30}
    assert core.report().restoring == ""


def test_an_answer_to_an_older_order_is_none() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10, 20), address="h0", giver_port=4000))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10,), address="h1", giver_port=4001)), Prepare)
    again = sent(
        core.received(1.0, 1, prepared(asked[1].attempt, damaged="it has no state.pt", checkpoints=(10,))),
        Prepare,
    )
    assert {link: each.step for link, each in again.items()} == {1: 10, 2: 10}
    assert not sent(core.received(1.0, 2, prepared(asked[2].attempt)), Start)
    core.received(1.0, 1, prepared(again[1].attempt))
    assert sent(core.received(1.0, 2, prepared(again[2].attempt)), Start)[1].resume_step == 10
    assert core.report().passed_over == "node 0: it has no state.pt"
    fail(core, 0, 2.0)
    all_stopped(core, 2.1)
    core.tick(60.0)
    assert (core.generation, core.report().passed_over) == (2, "")


def test_a_newer_step_that_is_torn_is_told_once_though_all_nodes_see_it_and_an_older_order_found_it() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10,)))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10,))), Prepare)
    for link in (1, 2):
        attempt = 0 if link == 1 else asked[link].attempt
        core.received(1.0, link, prepared(attempt, passed_over="step 20 has no state.pt"))
    core.received(1.1, 1, prepared(asked[1].attempt))
    assert core.state is RunState.RUNNING
    assert core.report().passed_over == "node 0: step 20 has no state.pt"


def test_a_launcher_that_is_lost_meanwhile_makes_the_question_a_new_one() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10,), address="h0", giver_port=4000))
    first = sent(core.hello(0.0, 2, hello(1, address="h1", giver_port=4001)), Prepare)
    core.closed(1.0, 2)
    again = sent(core.hello(2.0, 3, hello(1, 1, address="h1", giver_port=4002)), Prepare)
    assert again[3].attempt > first[2].attempt
    assert again[1].attempt > first[1].attempt
    assert not sent(core.received(2.0, 1, prepared(first[1].attempt)), Start)


def test_what_some_node_has_and_not_all_can_take_is_waited_for_in_words() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10,), address="h0", giver_port=4000))
    asked = sent(core.hello(0.0, 2, hello(1, address="h1", giver_port=4001)), Prepare)
    core.received(0.0, 1, prepared(asked[1].attempt, checkpoints=(10,)))
    actions = core.received(1.0, 2, prepared(asked[2].attempt, refused="no room for step-00000010"))
    assert not sent(actions, Start)
    assert "node 1 cannot take step 10: no room for step-00000010" in core.report().restoring
    assert not sent(core.tick(2.0), Prepare)
    assert sent(core.tick(12.0), Prepare)


def test_a_launcher_that_gets_no_further_is_taken_for_unable() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10, 20), address="h0", giver_port=4000))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10,), address="h1", giver_port=4001)), Prepare)
    core.received(0.0, 1, prepared(asked[1].attempt, checkpoints=(10, 20)))
    core.received(80.0, 2, Preparing(attempt=asked[2].attempt, source=0, done_bytes=5, total_bytes=9))
    assert not sent(core.tick(160.0), Prepare)
    assert {each.step for each in sent(core.tick(171.0), Prepare).values()} == {10}


def test_generations_never_share_a_port_with_the_one_before() -> None:
    core = running(1, max_restarts=100)
    ports = []
    for _ in range(5):
        fail(core, 0, 1.0, step=1)
        actions = all_stopped(core)
        ports += [m.master_port for m in sent(actions, Start).values() if isinstance(m, Start)]
    assert len(set(ports)) == 5


def test_missing_launchers_are_named_when_the_rendezvous_times_out() -> None:
    core = coordinator(3, decides_rendezvous=True)
    core.hello(0.0, 1, hello(0))
    core.tick(59.0)
    assert core.final is None
    (finish,) = sent(core.tick(60.0), Finish).values()
    assert isinstance(finish, Finish) and finish.failure is not None
    assert finish.failure.reason is Reason.RENDEZVOUS_TIMEOUT
    assert "node 1, 2 of 3" in finish.failure.message


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


def test_a_wait_between_two_tries_is_in_the_report_and_varies() -> None:
    core = running(1, max_restarts=100, jitter=lambda: 1.2)
    assert core.report().back_off is None
    for now in (1.0, 3.0, 12.0):
        core.tick(now)
        fail(core, 0, now)
        actions = all_stopped(core, now)
        lines = [action.text for action in actions if isinstance(action, Say)]
    assert core.report().back_off == 1.2
    assert any("next try in 1.2 s, after 3 failures in a row without a step" in line for line in lines)
    core.tick(20.0)
    assert (core.state, core.report().back_off) == (RunState.RUNNING, None)


def test_a_failure_while_the_job_stops_on_request_is_no_restart() -> None:
    core = running(2)
    core.stop_job(1.0)
    fail(core, 1, 1.1)
    all_stopped(core, 1.2)
    assert core.final is not None
    assert (core.final.outcome, core.final.restarts) == (Outcome.STOPPED, 0)


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


def test_a_rank_that_makes_the_others_wait_is_said_once_and_is_in_the_report() -> None:
    core = running(2)
    said: list[str] = []
    steps = [0.0, 0.0]
    for window in range(6):
        for node in (0, 1):
            steps[node] += 100
            sums = dict.fromkeys(SUMS, 0.0) | {"steps": steps[node], "seconds": 0.05 * steps[node]}
            sums["forward" if node else "comm_exposed"] = 0.04 * steps[node]
            beat = Beat(generation=1, steps=(int(steps[node]),), sums=tuple(sums[name] for name in SUMS))
            actions = core.received(10.0 + STRAGGLER_SECONDS * window, node + 1, beat)
            said += [action.text for action in actions if isinstance(action, Say)]
    (line,) = said
    assert line.startswith("rank 1 on node 1 makes the others wait, in forward: ")
    assert line.endswith("(40 ms more per step than the others)")
    assert core.report().efficiency == Efficiency(
        exposed_communication_percent=40,
        data_wait_percent=0,
        slowest_rank=1,
        slowest_rank_cause="forward",
        slowest_node="node 1",
    )


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


def test_ranks_that_all_evaluate_stop_where_they_are() -> None:
    core = running(2)
    core.stop_job(1.0)
    core.received(1.1, 1, Paused(generation=1, boundary=18, held=True))
    stops = sent(core.received(1.1, 2, Paused(generation=1, boundary=18, held=True)), StopAt)
    assert {m.step for m in stops.values() if isinstance(m, StopAt)} == {18}


EVENTS = (
    "say", "say", "say", "hear", "hear", "hear", "tick", "step", "fail", "victim", "succeed", "hang", "poll",
    "cut", "alone", "connect", "kill", "replace", "leave", "fail_over", "exchange", "exchange", "exchange",
)  # fmt: skip


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 2)), max_size=120), st.sampled_from([1, 1000])
)
@example([("exchange", 0), ("fail", 0), ("cut", 0), ("connect", 0)], 1000)
@example([("leave", 0), ("exchange", 1), ("fail", 1)], 1)
@example([("hear", n) for n in (0, 1, 2)] * 3 + [("fail", 1), ("kill", 0), ("replace", 0)], 1000)
def test_whatever_happens_nothing_is_counted_twice_and_the_job_ends(
    events: list[tuple[str, int]], max_restarts: int
) -> None:
    world = World(3, max_restarts=max_restarts, max_disruptions=1000)
    for name, node in events:
        if world.core is not None and world.core.final is not None:
            break
        if name == "tick":
            world.tick()
        else:
            getattr(world, name)(node)
        if world.core is not None:
            assert world.core.ledger.restarts <= len(world.failed_generations)
            assert world.core.ledger.disruptions <= world.disturbances
    world.heal()
    assert world.core is not None
    assert world.core.final is not None, "the job never ends"
    assert world.core.ledger.restarts <= len(world.failed_generations)
    if world.core.final.outcome is Outcome.FAILED:
        assert world.core.ledger.restarts == max_restarts
    else:
        assert world.core.final.outcome is Outcome.DONE


def test_a_report_counts_no_launcher_that_was_released() -> None:
    core = running(2)
    core.received(1.0, 2, Leave(generation=1))
    for link in (1, 2):
        core.received(1.1, link, Paused(generation=1, boundary=1))
    all_stopped(core)
    report = core.report()
    assert (report.state, report.nodes_joined, report.missing_nodes) == (RunState.WAITING, 1, (1,))
    assert replace(report, failures=()) == report
