"""Host time while a device is busy belongs to what the device does."""

from pathlib import Path
from typing import Any

import pytest

from ddpjob_api.page import Phase, Slot
from ddpjob_trainer.device_time import AHEAD, DeviceTime, Measured
from ddpjob_trainer.instrumentation import clock as clocks
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.loop import board as boards
from ddpjob_trainer.loop.board import Board
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker

STEP = Measured(forward_seconds=0.3, backward_seconds=0.5, exposed_seconds=0.1)
PHASES = (
    Slot.DATA_SECONDS, Slot.FORWARD_SECONDS, Slot.BACKWARD_SECONDS, Slot.COMM_EXPOSED_SECONDS, Slot.OPTIMIZER_SECONDS,
    Slot.OTHER_SECONDS,
)  # fmt: skip


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return Page(tmp_path / "page", create=True)


class Time:
    """A clock that stands."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_time_is_the_devices_in_the_order_of_its_work_and_then_the_hosts(page: Page) -> None:
    device = DeviceTime(page.slots)
    assert (device.left, device.passed(5.0)) == (0.0, 5.0), "nothing is launched"
    device.launched(STEP, synced=True)
    assert device.passed(0.4) == 0.0
    assert device.passed(1.0) == pytest.approx(0.5)
    assert [page[slot] for slot in PHASES[1:4]] == pytest.approx([0.3, 0.5, 0.1])
    device.launched(STEP, synced=False)
    assert device.left == pytest.approx(0.8), "where nothing is synchronised nobody is waited for"


def test_a_sample_that_was_too_long_does_not_eat_all_that_follows(page: Page) -> None:
    device = DeviceTime(page.slots)
    for _ in range(100):
        device.launched(STEP, synced=True)
    assert device.left == pytest.approx(AHEAD * 0.9)


def train(page: Page, time: Time, monkeypatch: pytest.MonkeyPatch, *, data: float) -> dict[Slot, float]:
    """Ten steps of a script whose device takes 0.9 s each and is asked for the loss after the optimizer."""
    monkeypatch.setattr(clocks, "monotonic", time)
    worker = Worker(page, {})
    clock, optimizer = Clock(worker, Notices(worker)), Group()
    for _ in range(10):
        clock.forward(synced=True, share=0.0, on_device=STEP)
        time.now += 0.01
        clock.backward_begins()
        time.now += 0.02
        clock.backward_ends()
        clock.step_begins()
        time.now += 0.01
        clock.step_ends(optimizer)
        time.now += 0.88  # loss.item()
        time.now += data
    clock.forward(synced=True, share=0.0, on_device=STEP)
    return {slot: page[slot] for slot in PHASES}


class Group:
    param_groups: tuple[dict[str, Any], ...] = ({"lr": 0.1},)


def test_a_script_that_asks_for_its_loss_does_not_wait_for_data(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = train(page, Time(), monkeypatch, data=0.0)
    assert sum(found.values()) == pytest.approx(9.2), "no second is counted twice"
    assert found[Slot.BACKWARD_SECONDS] == pytest.approx(5.0, rel=0.05)
    assert found[Slot.FORWARD_SECONDS] == pytest.approx(3.0, rel=0.05)
    assert found[Slot.COMM_EXPOSED_SECONDS] == pytest.approx(1.0, rel=0.05)
    assert found[Slot.DATA_SECONDS] < 0.2


def test_a_backward_pass_of_another_model_is_no_micro_batch(page: Page) -> None:
    worker = Worker(page, {})
    clock = Clock(worker, Notices(worker))
    clock.forward(synced=True, share=0.0, on_device=STEP)
    for _ in range(3):
        clock.backward_begins()
        clock.backward_ends()
    assert worker.device_time.left == pytest.approx(0.9, abs=0.1)


def test_data_that_a_device_waits_for_is_seen(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    found = train(page, Time(), monkeypatch, data=0.5)
    assert found[Slot.DATA_SECONDS] == pytest.approx(5.0, rel=0.05)
    assert found[Slot.BACKWARD_SECONDS] == pytest.approx(5.0, rel=0.05)


def test_the_built_in_loop_counts_a_device_in_the_same_way(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = Time()
    monkeypatch.setattr(boards.time, "monotonic", time)
    device = DeviceTime(page.slots)
    board = Board(page=page, device_time=device)
    device.launched(STEP, synced=True)
    with board.phase(Phase.OPTIMIZER):
        time.now += 0.05
    time.now += 0.7  # the norm of the gradients
    with board.phase(Phase.DATA):
        time.now += 0.4
    assert page[Slot.OPTIMIZER_SECONDS] == pytest.approx(0.05), "launching it is the host's own"
    assert page[Slot.OTHER_SECONDS] == 0.0
    assert page[Slot.DATA_SECONDS] == pytest.approx(0.2)
    assert [page[slot] for slot in PHASES[1:4]] == pytest.approx([0.3, 0.5, 0.1])
