"""An error of the instrumentation ends what it does, said once, and the training is the one it would have been."""

from pathlib import Path

import pytest
from tests.trainer.worker.ranks import Rank

from ddpjob_api.page import Slot
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.launcher.watchdog import Watchdog
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(Page(tmp_path / "page", create=True), {})


@pytest.fixture
def guard(worker: Worker) -> Guard:
    return Guard(worker, Notices(worker))


def test_a_training_with_a_fault_of_ours_in_one_rank_is_the_one_without_us(
    bare: list[Rank], faulty: list[Rank]
) -> None:
    for without, broken in zip(bare, faulty, strict=True):
        assert broken.returncode == 0, broken.stderr
        assert broken.printed == without.printed, "settings, every loss to the last bit, and collectives"
    healthy, culprit = faulty
    assert (healthy[Slot.UNMEASURED], culprit[Slot.UNMEASURED]) == (0, 1)
    assert (healthy[Slot.STEP], culprit[Slot.STEP]) == (40, 5)
    assert healthy.stderr == bare[0].stderr
    said = (
        "rank 1 is not measured any more, and its training goes on: the instrumentation failed with TypeError"
    )
    assert culprit.stderr.count(said) == 1
    assert "a fault of ours (faulty.py:" in culprit.stderr


def test_after_a_fault_nothing_is_measured_and_settings_are_still_applied(
    guard: Guard, worker: Worker, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []

    def measure() -> str:
        calls.append("measured")
        return "counted"

    def broken() -> None:
        raise ZeroDivisionError("division by zero")

    count, fail, apply = guard.measuring(measure), guard.measuring(broken), guard.setting(measure)
    assert count() == "counted"
    assert fail() is None and fail() is None
    assert count() is None
    assert apply() == "counted"
    assert guard.setting(broken)() is None
    assert calls == ["measured", "measured"]
    assert worker.page[Slot.UNMEASURED] == 1
    assert capfd.readouterr().err.count("is not measured any more") == 1


def test_a_refusal_and_the_end_of_the_program_are_no_faults(guard: Guard, worker: Worker) -> None:
    for error in (Refused("spec.ddp: cannot be"), SystemExit(85), KeyboardInterrupt()):

        def leave(error: BaseException = error) -> None:
            raise error

        for wrapped in (guard.measuring(leave), guard.setting(leave)):
            with pytest.raises(type(error)):
                wrapped()
    assert worker.measured


def test_a_rank_that_is_not_measured_is_not_taken_for_a_hung_one(tmp_path: Path) -> None:
    watchdog = Watchdog(limit_seconds=10)
    pages = {rank: Page(tmp_path / str(rank), create=True) for rank in (0, 1)}
    for page in pages.values():
        page[Slot.GENERATION_STEPS] = 3
    pages[1][Slot.UNMEASURED] = 1
    assert watchdog.overdue(pages, now=0) is None
    pages[0][Slot.GENERATION_STEPS] = 9
    assert watchdog.overdue(pages, now=20) is None
    assert watchdog.overdue(pages, now=40) == 20, "its peers are still looked at"
