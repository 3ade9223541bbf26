"""Windows in a row: who is named, for how long, and what restarts and lost messages do to it."""

from pathlib import Path

import pytest

from ddpjob_api.messages import SUMS, Beat, encode
from ddpjob_api.metrics import LOCAL_PHASES
from ddpjob_api.page import Slot
from ddpjob_trainer.launcher.exposition import sums_of
from ddpjob_trainer.launcher.job import percent
from ddpjob_trainer.launcher.timing import STRAGGLER_SECONDS
from ddpjob_trainer.launcher.windows import BLIND_SECONDS, LASTING, Change, Shares, Windows, median_shares
from ddpjob_trainer.page import Page

STEPS = 100
"""A window, at 50 ms a step."""


class Job:
    """Four ranks on two nodes; time passes window by window."""

    def __init__(self) -> None:
        self.windows = Windows(4)
        self.now = 100.0
        self.sums = [dict.fromkeys(SUMS, 0.0) for _ in range(4)]
        self.hear()

    def restart(self, steps: int = 5) -> None:
        self.windows.begin()
        self.sums = [dict.fromkeys(SUMS, 0.0) for _ in range(4)]
        self.window(steps=steps)

    def window(
        self,
        slow: int | None = None,
        cause: str = "data_wait",
        *,
        steps: int = STEPS,
        lost: bool = False,
        unmeasured: int | None = None,
    ) -> Change | None:
        """Every rank makes steps of 20 ms of its own; one takes 30 ms more, for which the others wait."""
        for rank, sums in enumerate(self.sums):
            if rank == unmeasured:
                continue
            sums["steps"] += steps
            sums["seconds"] += 0.05 * steps
            for phase, seconds in (("data_wait", 0.005), ("forward", 0.005), ("backward_compute", 0.01)):
                sums[phase] += seconds * steps
            if slow is not None:
                sums[cause if rank == slow else "comm_exposed"] += 0.03 * steps
        self.now += STRAGGLER_SECONDS
        return None if lost else self.hear()

    def hear(self) -> Change | None:
        changes = [
            self.windows.hear(
                self.now, first, [sums[name] for sums in self.sums[first : first + 2] for name in SUMS]
            )
            for first in (0, 2)
        ]
        return next((change for change in changes if change is not None), None)

    @property
    def named(self) -> tuple[int, str] | None:
        found = self.windows.named
        return (found.rank, found.cause) if found else None


@pytest.fixture
def job() -> Job:
    made = Job()
    made.window(steps=5)
    return made


def test_a_rank_is_named_after_four_windows_and_until_four_without_it(job: Job) -> None:
    assert [job.window(slow=2) for _ in range(LASTING - 1)] == [None] * 3
    assert job.named is None
    change = job.window(slow=2)
    assert change is not None and change.after is not None
    assert job.named == (2, "data_wait")
    assert [job.window(), job.window(slow=2), *(job.window() for _ in range(LASTING - 1))] == [None] * 5
    assert job.named == (2, "data_wait")
    change = job.window()
    assert change == Change(before=change.before if change else None, after=None)
    assert job.named is None


def test_ranks_that_take_turns_are_not_named(job: Job) -> None:
    for culprit in (0, 1, 2, 3) * 3:
        assert job.window(slow=culprit) is None
    assert job.named is None


def test_another_rank_and_another_cause_are_told(job: Job) -> None:
    for _ in range(LASTING):
        job.window(slow=1)
    job.window(slow=1, cause="forward")
    assert job.named == (1, "forward")
    for _ in range(LASTING):
        job.window(slow=3, cause="backward_compute")
    assert job.named == (3, "backward_compute")


def test_a_named_rank_outlives_a_restart_until_it_is_judged_anew(job: Job) -> None:
    for _ in range(LASTING):
        job.window(slow=1)
    job.restart()
    assert job.named == (1, "data_wait")
    assert [job.window() for _ in range(LASTING - 1)] == [None] * 3
    assert job.window() is not None
    assert job.named is None


def test_a_lost_message_loses_no_step(job: Job) -> None:
    job.window(slow=2, lost=True)
    for _ in range(LASTING - 1):
        job.window(slow=2)
    assert job.named is None
    job.window(slow=2)
    assert job.named == (2, "data_wait")


def test_a_window_waits_for_enough_steps_of_every_rank(job: Job) -> None:
    for _ in range(5 * LASTING - 1):
        job.window(slow=2, steps=4)
    assert job.named is None
    job.window(slow=2, steps=4)
    assert job.named == (2, "data_wait")


@pytest.mark.parametrize("since_a_restart", [False, True])
def test_a_named_rank_is_forgotten_where_some_rank_is_not_measured_any_more(
    job: Job, since_a_restart: bool
) -> None:
    for _ in range(LASTING):
        job.window(slow=2)
    if since_a_restart:
        job.restart(steps=3)
    windows = int(BLIND_SECONDS / STRAGGLER_SECONDS)
    assert [job.window(slow=2, unmeasured=0) for _ in range(windows - 1)] == [None] * (windows - 1)
    changes = [job.window(slow=2, unmeasured=0) for _ in range(2)]
    [change] = [change for change in changes if change is not None]
    assert (change.before is not None, change.after, change.blind) == (True, None, True)
    assert job.named is None


def test_a_named_rank_is_forgotten_where_no_launcher_says_how_far_its_ranks_are(job: Job) -> None:
    for _ in range(LASTING):
        job.window(slow=2)
    assert job.windows.wait(job.now + BLIND_SECONDS - 1) is None
    change = job.windows.wait(job.now + BLIND_SECONDS)
    assert change is not None
    assert (change.before is not None, change.after, change.blind) == (True, None, True)
    assert job.named is None
    assert job.windows.wait(job.now + 2 * BLIND_SECONDS) is None, "it is told once"


def test_a_named_rank_stays_named_while_the_ranks_start_again(job: Job) -> None:
    for _ in range(LASTING):
        job.window(slow=2)
    job.windows.begin()
    assert job.windows.wait(job.now + 10 * BLIND_SECONDS) is None
    assert job.named == (2, "data_wait")


def test_a_launcher_without_a_rank_that_is_measured_sends_no_sums(tmp_path: Path) -> None:
    pages = [Page(tmp_path / f"page-{rank}", create=True) for rank in range(2)]
    pages[1][Slot.UNMEASURED] = 1
    assert len(sums_of(pages)) == 2 * len(SUMS), "the others of its job are compared with rank 0"
    pages[0][Slot.UNMEASURED] = 1
    assert sums_of(pages) == ()


def test_a_named_rank_stays_named_while_no_rank_makes_a_step(job: Job) -> None:
    for _ in range(LASTING):
        job.window(slow=2)
    assert [job.window(steps=0) for _ in range(20)] == [None] * 20
    assert job.named == (2, "data_wait")


def test_shares_are_of_the_wall_time(job: Job) -> None:
    assert Windows(4).shares() is None
    for _ in range(20):
        job.window(slow=2)
    found = job.windows.shares()
    assert found is not None
    assert (found.exposed, found.data) == pytest.approx((0.6, 0.1))


def test_a_rank_that_makes_the_others_wait_costs_the_efficiency_of_the_median_rank(job: Job) -> None:
    for _ in range(20):
        job.window()
    well = job.windows.shares()
    assert well is not None
    assert well.efficiency is None, "no rank has waited: nothing was measured"
    for _ in range(20):
        job.window(slow=2)
    found = job.windows.shares()
    assert found is not None
    assert found.efficiency == pytest.approx(0.02 / 0.05)


SPENT: list[tuple[str, list[dict[str, float]], float | None]] = [
    # what is met, seconds of each rank of 100 s, and the DDP efficiency
    ("the all-reduce is not hidden", [{"forward": 30, "backward_compute": 60, "comm_exposed": 10}] * 2, 0.9),
    ("all are work", [{**dict.fromkeys(("h2d", "forward", "optimizer", "other"), 20), "comm_exposed": 20}], 0.8),
    ("a single process waits for data, too", [{"data_wait": 50, "forward": 40, "comm_exposed": 10}] * 2, 0.9),
    ("saving and evaluating are no part of a step", [{"forward": 20, "comm_exposed": 20}] * 2, 0.5),
    ("the median of three", [{"forward": 100 - n, "comm_exposed": n} for n in (0, 10, 70)], 0.9),
    ("nobody was seen to wait", [{"forward": 100}] * 2, None),
    ("nothing but waiting", [{"comm_exposed": 100}] * 2, 0.0),
    ("nothing at all", [{}] * 2, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spent", "efficiency"), [case[1:] for case in SPENT], ids=[case[0] for case in SPENT]
)
def test_ddp_efficiency_is_own_work_by_own_work_and_waiting(
    spent: list[dict[str, float]], efficiency: float | None
) -> None:
    found = median_shares([{**dict.fromkeys(SUMS, 0.0), "seconds": 100.0, **one} for one in spent])
    assert isinstance(found, Shares)
    assert found.efficiency == (None if efficiency is None else pytest.approx(efficiency))
    assert median_shares([]) is None


@pytest.mark.parametrize(("part", "whole"), [(None, None), (-0.01, 0), (0.875, 88), (1.004, 100), (7.0, 100)])
def test_a_percentage_is_within_its_bounds(part: float | None, whole: int | None) -> None:
    assert percent(part) == whole


def test_what_256_ranks_say_fits_into_a_line() -> None:
    sums = tuple(123456.7891 for _ in range(256 * len(SUMS)))
    assert len(encode(Beat(generation=9, steps=(10**9,) * 256, sums=sums))) < 65536
    assert set(LOCAL_PHASES) < set(SUMS)
