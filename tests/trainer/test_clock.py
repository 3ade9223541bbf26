"""Whose steps are the training's, and what is said of several models."""

from dataclasses import dataclass
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


@dataclass
class Ranks:
    """What this rank does with the others, and what it does alone."""

    clock: Clock
    collectives: int = 1

    def __post_init__(self) -> None:
        self.clock.collectives = lambda: self.collectives

    def together(self, optimizer: Optimizer) -> bool:
        self.collectives += 1
        return self.alone(optimizer)

    def alone(self, optimizer: Optimizer) -> bool:
        self.clock.backward_begins()
        self.clock.backward_ends()
        return self.clock.step_ends(optimizer)


def test_what_one_rank_fits_while_the_others_wait_is_no_training(clock: Clock, worker: Worker) -> None:
    """Counted there alone, its step would be ahead of theirs, and a stop would take it away from their collectives."""
    ranks = Ranks(clock)
    clock.model_made()
    calibration, trained, critic, probe = (Optimizer() for _ in range(4))
    assert not any(ranks.alone(calibration) for _ in range(200)), "nor before the first step"
    for step in range(1, 11):
        assert ranks.together(trained)
        assert not ranks.together(critic)
        assert not any(ranks.alone(probe) for _ in range(200))
        assert worker.page[Slot.STEP] == step
        assert step == 1 or worker.page[Slot.OBSERVED_ACCUMULATION] == 1, "its passes are none of the window"
    del trained
    assert not any(ranks.alone(probe) for _ in range(200)), "nor when the training is over"
    assert worker.page[Slot.STEP] == 10


def test_a_training_in_which_ranks_meet_follows_another(clock: Clock, worker: Worker) -> None:
    ranks = Ranks(clock)
    clock.model_made()
    first, second = Optimizer(), Optimizer()
    assert all(ranks.together(first) for _ in range(3))
    assert sum(ranks.together(second) for _ in range(40)) == 40 - SUCCEEDS_AFTER
    assert worker.page[Slot.STEP] == 43 - SUCCEEDS_AFTER


def test_steps_are_counted_where_no_collectives_are(clock: Clock, worker: Worker) -> None:
    ranks = Ranks(clock, collectives=0)
    clock.model_made()
    first, second = Optimizer(), Optimizer()
    assert ranks.alone(first)
    assert sum(ranks.alone(second) for _ in range(40)) == 40 - SUCCEEDS_AFTER


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


@pytest.mark.parametrize(("before", "inside", "shown"), [(0, 5, 0), (0, 1, 1), (3, 1, 4)])
def test_a_closure_that_is_evaluated_several_times_is_no_accumulation(
    clock: Clock, worker: Worker, before: int, inside: int, shown: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """LBFGS evaluates it again and again; Lightning makes the last micro-batch of a step in it."""
    clock.models = clock.training = 1
    optimizer = Optimizer()

    def passes(count: int) -> None:
        for _ in range(count):
            clock.forward(synced=True, share=0.0, on_device=None)
            clock.backward_begins()
            clock.backward_ends()

    for _ in range(3):
        passes(before)
        clock.step_begins()
        passes(inside)
        clock.step_ends(optimizer)
    assert worker.page[Slot.OBSERVED_ACCUMULATION] == shown
    assert clock.accumulation == (shown or None)
    said = capfd.readouterr().err
    assert ("accumulation without no_sync" in said) == (shown == 4)
    assert ("gradientAccumulationSteps" in said) == (shown == 1)
