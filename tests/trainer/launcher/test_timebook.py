"""Timelines of jobs, and what their time went to."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trainer.launcher.world import coordinator, hello, worker_exit

from ddpjob_api.conditions import Reason
from ddpjob_api.goodput import Spent, Times, Use, at_least
from ddpjob_api.messages import Beat, Done, Failed, Pace, Stopped
from ddpjob_trainer.launcher.timebook import TimeBook

EPOCH = 1_000_000.0
"""Unix time at 0 of the monotonic clock."""


@dataclass(frozen=True)
class Steps:
    """The rank has come so far: its step, how many of them in this generation, when the first and the last was made."""

    step: int
    made: int
    first: float
    last: float


WHOLE, MISSING, BEGIN = "all launchers are there", "one is missing", "a generation begins"
Event = str | Steps | Use

TIMELINES: list[tuple[str, list[tuple[float, Event]], dict[str, float]]] = [
    ("nothing is known yet", [(0, MISSING), (9, MISSING)], {}),
    ("pods come one by one", [(0, MISSING), (9, WHOLE)], {"queueing": 9}),
    ("all are there and nothing has begun", [(0, WHOLE), (3, WHOLE)], {"start": 3}),
    (
        "an undisturbed training",
        [(0, MISSING), (5, WHOLE), (6, BEGIN), (20, Steps(4, 4, 16, 19)), (30, Steps(9, 9, 16, 29)), (32, Use.OTHER)],
        {"queueing": 5, "start": 11, "useful": 13, "other": 3},
    ),
    (
        "what happens between two steps is theirs",
        [(0, WHOLE), (0, BEGIN), (11, Steps(1, 1, 10, 10)), (99, Steps(1, 1, 10, 10)), (101, Steps(2, 2, 10, 100))],
        {"start": 10, "useful": 90},
    ),
    (
        "a failure, and steps made again",
        [
            (0, WHOLE), (0, BEGIN), (10, Steps(10, 10, 1, 10)), (12, Use.RESTART),
            (13, BEGIN), (15, Steps(6, 1, 15, 15)), (19, Steps(10, 5, 15, 19)), (25, Steps(16, 11, 15, 25)),
        ],
        {"start": 1, "useful": 15, "restart": 5, "repeated": 4},
    ),
    (
        "in one look both repeated and new ones",
        [
            (0, WHOLE), (0, BEGIN), (10, Steps(10, 10, 1, 10)), (10, Use.RESTART),
            (10, BEGIN), (25, Steps(16, 11, 15, 25)),
        ],
        {"start": 1, "useful": 15, "restart": 5, "repeated": 4},
    ),
    (
        "a script that begins anew",
        [(0, WHOLE), (0, BEGIN), (5, Steps(4, 4, 2, 5)), (5, Use.RESTART), (5, BEGIN), (13, Steps(7, 7, 7, 13))],
        {"start": 2, "useful": 6, "restart": 2, "repeated": 3},
    ),
    (
        "a hang",
        [(0, WHOLE), (0, BEGIN), (8, Steps(5, 5, 4, 8)), (68, Use.HANG), (70, BEGIN), (73, Steps(6, 1, 73, 73))],
        {"start": 4, "useful": 4, "hang": 60, "restart": 5},
    ),
    ("a hang before the first step", [(0, WHOLE), (1, BEGIN), (99, Use.HANG)], {"start": 1, "hang": 98}),
    (
        "a pod is lost and its replacement waits for a node",
        [
            (0, WHOLE), (0, BEGIN), (8, Steps(5, 5, 4, 8)), (9, Use.RESTART), (10, MISSING), (110, WHOLE),
            (111, BEGIN), (115, Steps(6, 1, 115, 115)),
        ],
        {"start": 4, "useful": 4, "restart": 6, "queueing": 101},
    ),
    (
        "it fails before its first step",
        [(0, WHOLE), (0, BEGIN), (7, Use.RESTART), (8, BEGIN), (12, Steps(1, 1, 12, 12))],
        {"restart": 7, "start": 5},
    ),
    ("a program whose steps nobody sees", [(0, WHOLE), (2, BEGIN), (500, Use.OTHER)], {"start": 2, "other": 498}),
    ("a job that ends while pods are missing", [(0, MISSING), (600, Use.OTHER)], {"queueing": 600}),
]  # fmt: skip


def told(book: TimeBook, timeline: list[tuple[float, Event]]) -> Spent:
    now = 0.0
    for now, event in timeline:
        book.open(now, EPOCH + now)
        match event:
            case Use():
                book.end(now, event)
            case Steps(step, made, first, last):
                pace = Pace(step=step, made=made, first_seconds=now - first, last_seconds=now - last)
                book.pace(pace, now, EPOCH + now)
            case _ if event is BEGIN:
                book.begin(now)
            case _:
                book.wait(now, whole=event is WHOLE)
    return book.spent(now, EPOCH + now)


@pytest.mark.parametrize(
    ("timeline", "sums"), [case[1:] for case in TIMELINES], ids=[c[0] for c in TIMELINES]
)
def test_every_second_has_one_use(timeline: list[tuple[float, Event]], sums: dict[str, float]) -> None:
    spent = told(TimeBook(), timeline)
    assert {use.value: spent.times.of(use) for use in Use if spent.times.of(use)} == pytest.approx(sums)
    assert spent.times.total == pytest.approx(spent.until - EPOCH)


def test_goodput_is_the_share_of_steps_made_for_the_first_time() -> None:
    assert Times().goodput is None
    assert Times(start_seconds=100).goodput is None
    assert Times(useful_seconds=90, start_seconds=8, repeated_seconds=2).goodput == 90


def test_a_successor_goes_on_where_the_newest_word_ends() -> None:
    first = TimeBook()
    life: list[tuple[float, Event]] = [
        (0, WHOLE),
        (0, BEGIN),
        (10, Steps(10, 10, 1, 10)),
        (20, Steps(20, 20, 1, 20)),
    ]
    early, late = told(first, life[:3]), told(first, life)
    second = TimeBook(early)  # the operator asked ten seconds before the pod was lost
    second.open(30.0, EPOCH + 30)
    second.wait(30.0, whole=False)
    second.learn(early, 30.5, EPOCH + 30.5)
    second.learn(late, 31.0, EPOCH + 31)
    second.learn(early, 31.5, EPOCH + 31.5)
    spent = told(second, [(32, WHOLE), (33, BEGIN), (36, Steps(16, 1, 36, 36)), (46, Steps(26, 11, 36, 46))])
    assert spent.times == Times(
        useful_seconds=25, start_seconds=1, queueing_seconds=12, restart_seconds=4, repeated_seconds=4
    )
    assert spent.first_step_at == EPOCH + 1
    second.learn(replace(late, until=EPOCH + 99), 47.0, EPOCH + 47)
    assert second.spent(47.0, EPOCH + 47) == spent, "what it has seen itself is not overruled"


def test_a_job_that_is_resumed_starts_and_does_not_restart() -> None:
    before = Spent(times=Times(useful_seconds=50), until=EPOCH - 5, reached=9)
    spent = told(TimeBook(before), [(0, MISSING), (1, WHOLE), (1, BEGIN), (4, Steps(10, 1, 4, 4))])
    assert spent.times == Times(useful_seconds=50, queueing_seconds=6, start_seconds=3)
    assert spent.first_step_at == EPOCH + 4


events = st.one_of(
    st.sampled_from([WHOLE, MISSING, BEGIN, Use.RESTART, Use.HANG, Use.OTHER]),
    st.builds(
        lambda step, made: Steps(step, made, 0, 0),
        st.integers(min_value=0, max_value=50),
        st.integers(min_value=0, max_value=50),
    ),
)


@given(
    st.lists(st.tuples(st.floats(min_value=0, max_value=100), st.floats(min_value=0, max_value=1), events))
)
def test_sums_only_grow_and_never_exceed_the_time(story: list[tuple[float, float, Any]]) -> None:
    book, now = TimeBook(), 0.0
    before = Times()
    book.open(now, EPOCH)
    for pause, part, event in story:
        began, now = now, now + pause
        if isinstance(event, Steps):
            event = replace(event, first=began, last=began + part * pause)
        spent = told(book, [(now, event)])
        assert at_least(spent.times, before) == spent.times
        assert spent.times.total <= now + 0.1
        assert spent.times.total == pytest.approx(spent.until - EPOCH, abs=0.1)
        before = spent.times


def test_the_coordinator_keeps_the_book() -> None:
    clock = {"now": 0.0}
    core = coordinator(2, unix=lambda: EPOCH + clock["now"])

    def at(now: float, *what: Any) -> None:
        clock["now"] = now
        if not what:
            core.tick(now)
        elif isinstance(what[0], int):
            core.received(now, *what)
        else:
            core.hello(now, len(core.members.by_node) + 1, what[0])

    def made(step: int, count: int, first: float, last: float) -> Pace:
        now = clock["now"]
        return Pace(step=step, made=count, first_seconds=now - first, last_seconds=now - last)

    at(0, hello(0))
    at(4, hello(1))
    at(5)
    clock["now"] = 10.0
    at(10, 1, Beat(generation=1, steps=(3,), pace=made(3, 3, 7, 9)))
    at(10, 2, Beat(generation=1, steps=(3,), pace=made(9, 9, 1, 10)))  # node 0 speaks for all
    at(12, 2, Failed(generation=1, exits=(worker_exit(1, step=4),)))
    at(12, 1, Stopped(generation=1, pace=made(4, 4, 7, 11)))
    at(12, 2, Stopped(generation=1))
    report = core.report()
    assert report.last_failure is not None and report.last_failure.reason is Reason.PROGRAM_FAILED
    at(13)
    clock["now"] = 20.0
    at(20, 1, Beat(generation=2, steps=(6,), pace=made(6, 6, 15, 20)))
    beat = core.beat()
    at(21, 1, Done(generation=2, pace=made(6, 6, 15, 20)))
    at(22, 2, Done(generation=2))
    assert core.final is not None and core.final.spent is not None
    assert core.final.spent.times == Times(
        queueing_seconds=4, start_seconds=3, useful_seconds=4 + 2, restart_seconds=4, repeated_seconds=3,
        other_seconds=2,
    )  # fmt: skip
    assert beat.spent is not None and beat.spent.until == EPOCH + 20 and beat.spent.reached == 6
    assert core.report().spent == core.final.spent
