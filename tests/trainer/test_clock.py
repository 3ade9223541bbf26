"""Whose steps are the training's, and what is said of several models."""

from pathlib import Path
from typing import Any

import pytest

from ddpjob_api.page import Slot
from ddpjob_trainer.instrumentation.clock import SUCCEEDS_AFTER, Clock
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    environment = {"DDPJOB_SETTINGS": '{"gradientAccumulationSteps": 4}'}
    return Worker(Page(tmp_path / "page", create=True), environment)


@pytest.fixture
def clock(worker: Worker) -> Clock:
    return Clock(worker, Notices(worker))


def test_a_framework_has_its_whole_batch_to_save_and_end(clock: Clock, worker: Worker) -> None:
    """A critic beside the generator, or a second step of the same optimizer, comes before it is done with the batch."""
    clock.ends_itself = True
    worker.page[Slot.STOP_AT] = 2
    optimizer, asked = Optimizer(), list[bool]()
    for _ in range(SUCCEEDS_AFTER + 4):
        clock.step_ends(optimizer)
        asked.append(clock.asked_to_stop())
    assert clock.stop_requested
    assert asked == [False] * (SUCCEEDS_AFTER + 2) + [True] * 2, "one that does not end is ended"


class Optimizer:
    param_groups: tuple[dict[str, Any], ...] = ({"lr": 0.1},)


def test_a_second_training_in_the_same_process_is_counted_while_the_first_lives(
    clock: Clock, worker: Worker
) -> None:
    head, whole = Optimizer(), Optimizer()
    assert all(clock.step_ends(head) for _ in range(10))
    counted = [clock.step_ends(whole) for _ in range(100)]
    assert counted == [False] * SUCCEEDS_AFTER + [True] * (100 - SUCCEEDS_AFTER)
    assert worker.page[Slot.STEP] == 110 - SUCCEEDS_AFTER
    assert not clock.step_ends(head)


def test_a_critic_that_steps_more_often_does_not_take_the_training_over(clock: Clock, worker: Worker) -> None:
    generator, critic = Optimizer(), Optimizer()
    for _ in range(10):
        assert clock.step_ends(generator)
        assert not any(clock.step_ends(critic) for _ in range(SUCCEEDS_AFTER))
    assert worker.page[Slot.STEP] == 10


@pytest.mark.parametrize(("models", "said"), [(1, 1), (2, 0)])
def test_accumulation_is_judged_for_one_model_in_training(
    clock: Clock, models: int, said: int, capfd: pytest.CaptureFixture[str]
) -> None:
    clock.models, clock.training = 3, models  # some were made before, and are gone
    optimizer = Optimizer()
    for _ in range(3):
        for _ in range(models):
            clock.forward(synced=True, share=0.0, on_device=None)
            clock.backward_begins()
            clock.backward_ends()
        clock.step_ends(optimizer)
    assert capfd.readouterr().err.count("the resource says 4 and the program makes 1 backward pass") == said
    assert clock.accumulation == (1 if said else None), "of several models it is not known"
