"""Who makes the others wait, in one window: a row for each case."""

import pytest

from ddpjob_api.metrics import LOCAL_PHASES
from ddpjob_api.straggler import Work, slowest


def rank(*, exposed: float = 0.0, **own: float) -> Work:
    """Milliseconds a step."""
    return Work(own={phase: own.get(phase, 0.0) / 1000 for phase in LOCAL_PHASES}, exposed=exposed / 1000)


def usual(exposed: float = 30.0) -> Work:
    return rank(data_wait=2, forward=4, backward_compute=8, optimizer=1, exposed=exposed)


CASES: list[tuple[str, list[Work], tuple[int, str] | None]] = [
    ("its data is late", [usual(), usual(), rank(data_wait=34, forward=4, backward_compute=8, optimizer=1), usual()], (2, "data_wait")),
    ("its forward is slow", [rank(data_wait=2, forward=36, backward_compute=8), usual(), usual(), usual()], (0, "forward")),
    ("its backward is slow", [usual(), usual(), usual(), rank(forward=4, backward_compute=50, exposed=1)], (3, "backward_compute")),
    ("its optimizer is slow", [usual(), rank(forward=4, backward_compute=8, optimizer=40), usual()], (1, "optimizer")),
    ("the larger of two excesses is the cause", [usual(), rank(data_wait=12, forward=24, backward_compute=8), usual()], (1, "forward")),
    ("two ranks: the other one is the measure", [usual(40), rank(data_wait=42, forward=4, backward_compute=8)], (1, "data_wait")),
    ("all equal", [usual(1)] * 4, None),
    ("one rank alone", [rank(data_wait=500)], None),
    ("nobody", [], None),
    ("a part, and less than five milliseconds", [rank(forward=1, exposed=3)] * 3 + [rank(forward=4)], None),
    ("ten milliseconds of two hundred", [rank(forward=200, exposed=10)] * 3 + [rank(forward=210)], None),
    ("slower, and nobody waits for it", [usual(0.5)] * 3 + [rank(data_wait=30, forward=4, backward_compute=8, exposed=0.2)], None),
    ("slower, and waits itself: for somebody else", [usual(20), usual(20), usual(1), rank(data_wait=30, forward=4, backward_compute=8, exposed=15)], None),
    ("a busy host: the others differ as much", [rank(forward=f, exposed=60 - f) for f in (20, 32, 21, 42)], None),
    ("all slow alike: no rank is to blame", [rank(data_wait=80, forward=4, exposed=1)] * 4, None),
]  # fmt: skip


@pytest.mark.parametrize(("works", "wanted"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_the_rank_and_the_cause(works: list[Work], wanted: tuple[int, str] | None) -> None:
    found = slowest(dict(enumerate(works)))
    assert (found and (found.rank, found.cause)) == wanted


def test_every_rank_is_found_in_its_turn_with_every_cause() -> None:
    for culprit in range(4):
        for cause in LOCAL_PHASES:
            own = {"data_wait": 2.0, "forward": 4.0, "backward_compute": 8.0}
            slow = rank(**{**own, cause: own.get(cause, 0.0) + 30})
            found = slowest({n: slow if n == culprit else rank(**own, exposed=31) for n in range(4)})
            assert found is not None
            assert (found.rank, found.cause) == (culprit, cause)
            assert found.excess == pytest.approx(0.03)
