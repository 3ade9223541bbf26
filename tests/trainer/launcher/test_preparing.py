"""The state machine alone: which checkpoint a generation begins at, and what it waits for."""

from tests.trainer.launcher.coordinating import all_stopped, fail, sent
from tests.trainer.launcher.world import coordinator, hello

from ddpjob_api.messages import Prepare, Prepared, Preparing, Source, Start, Stopped
from ddpjob_api.report import RunState


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


def test_what_was_found_torn_is_told_though_a_launcher_was_lost_before_the_answer_came() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10,)))
    first = sent(core.hello(0.0, 2, hello(1, checkpoints=(10,))), Prepare)
    core.closed(1.0, 2)
    core.tick(2.1)
    assert core.restoring is None
    core.received(2.2, 1, prepared(first[1].attempt, checkpoints=(10,), passed_over="step 20 is torn"))
    again = sent(core.hello(3.0, 3, hello(1, checkpoints=(10,))), Prepare)
    for link, each in again.items():
        core.received(3.1, link, prepared(each.attempt, checkpoints=(10,)))
    assert core.state is RunState.RUNNING
    assert core.report().passed_over == "node 0: step 20 is torn"


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


def test_what_is_torn_is_told_also_where_nothing_is_left_to_go_on_from() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0))
    assert sent(core.hello(0.0, 2, hello(1)), Start)[1].resume_step is None
    for link in (1, 2):
        core.received(1.0, link, prepared(0, passed_over="step 8 has no state.pt"))
    assert core.report().passed_over == "node 0: step 8 has no state.pt", "once: both see the same folder"
    fail(core, 0, 2.0)
    all_stopped(core, 2.1)
    core.tick(60.0)
    assert (core.generation, core.report().passed_over) == (2, "")


def test_a_torn_step_that_stays_in_a_shared_folder_is_told_of_each_generation() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10,)))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10,))), Prepare)
    for generation in (1, 2):
        now = 60.0 * generation
        for link, each in asked.items():
            core.received(now, link, prepared(each.attempt, checkpoints=(10,), passed_over="step 20 is torn"))
        assert (core.generation, core.report().passed_over) == (generation, "node 0: step 20 is torn")
        fail(core, 0, now + 1)
        stopped = Stopped(generation=generation, checkpoints=(10,))
        actions = [action for link in (1, 2) for action in core.received(now + 2, link, stopped)]
        asked = sent([*actions, *core.tick(now + 59)], Prepare)


def test_an_intact_step_that_is_left_for_an_older_one_is_told() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10, 20)))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10, 20))), Prepare)
    core.received(0.0, 1, prepared(asked[1].attempt, checkpoints=(10, 20)))
    refused = "state.pt: Stale file handle"
    again = sent(
        core.received(1.0, 2, prepared(asked[2].attempt, checkpoints=(10,), refused=refused)), Prepare
    )
    for link, each in again.items():
        core.received(2.0, link, prepared(each.attempt, checkpoints=(10,)))
    assert (core.state, core.resume_step) == (RunState.RUNNING, 10)
    assert core.report().passed_over == f"node 1 cannot take step 20: {refused}"


def test_a_launcher_that_gets_no_further_is_taken_for_unable() -> None:
    core = coordinator(2)
    core.hello(0.0, 1, hello(0, checkpoints=(10, 20), address="h0", giver_port=4000))
    asked = sent(core.hello(0.0, 2, hello(1, checkpoints=(10,), address="h1", giver_port=4001)), Prepare)
    core.received(0.0, 1, prepared(asked[1].attempt, checkpoints=(10, 20)))
    core.received(80.0, 2, Preparing(attempt=asked[2].attempt, source=0, done_bytes=5, total_bytes=9))
    assert not sent(core.tick(160.0), Prepare)
    assert {each.step for each in sent(core.tick(171.0), Prepare).values()} == {10}
