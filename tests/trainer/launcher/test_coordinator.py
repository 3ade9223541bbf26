"""The state machine alone: one incident is one count, no two generations live together, everything converges."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.trainer.launcher.coordinating import all_stopped, fail, running, sent
from tests.trainer.launcher.world import World, coordinator, hello, worker_exit

from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.messages import SUMS, Beat, Done, Failed, Finish, Leave, Paused, Start
from ddpjob_api.report import Cause, Outcome, RunState
from ddpjob_trainer.launcher.actions import Say
from ddpjob_trainer.launcher.timing import STRAGGLER_SECONDS


def test_a_generation_starts_only_when_all_launchers_are_there() -> None:
    core = coordinator(2)
    assert not sent(core.hello(0.0, 1, hello(0)), Start)
    assert core.report().missing_nodes == (1,)
    started = sent(core.hello(5.0, 2, hello(1)), Start)
    assert set(started) == {1, 2}
    assert core.state is RunState.RUNNING


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
        ddp_efficiency_percent=50,
        slowest_rank=1,
        slowest_rank_cause="forward",
        slowest_node="node 1",
    )
    for second in range(1, 100):
        actions = core.received(35.0 + second, 1 + second % 2, Beat(generation=1, steps=(600,)))
        said += [action.text for action in actions if isinstance(action, Say)]
    assert said[1:] == ["who makes the others wait is not known any more: some rank's steps are not counted"]


def test_every_launcher_hears_that_a_rank_of_another_one_saves() -> None:
    core = running(3)
    assert core.beat().patient_step is None
    core.received(1.0, 1, Beat(generation=1, patient_step=20))
    core.received(1.0, 2, Beat(generation=1, patient_step=10))
    core.received(1.0, 3, Beat(generation=1))
    assert core.beat().patient_step == 10
    core.received(2.0, 2, Beat(generation=1))
    assert core.beat().patient_step == 20
    core.received(2.0, 1, Beat(generation=0, patient_step=20))
    assert core.beat().patient_step is None, "that is of another generation"


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
