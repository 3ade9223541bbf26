"""Where all ranks stop, Hugging Face's Trainer saves once, evaluates nothing, and each of its trainers knows of it."""

import gc
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.framework_doubles import hugging_face, shared

from ddpjob_trainer.instrumentation.frameworks import huggingface_trainer

STATE = SimpleNamespace(global_step=7, epoch=0.5)


@pytest.fixture(autouse=True)
def a_class_of_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(TrainerCallback=object)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", there)


def control(*, due: bool) -> Any:
    """What Hugging Face's own callbacks, which come first, have said of an evaluation and a save."""
    return SimpleNamespace(should_training_stop=False, should_save=due, should_evaluate=due)


def test_a_stop_saves_at_its_step_and_neither_evaluates_nor_saves_again(tmp_path: Path) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    ours = huggingface_trainer.callback(found)
    found.saving.clock.stop_requested = True
    step = ours.on_step_end(None, STATE, control(due=True))
    assert step == SimpleNamespace(should_training_stop=True, should_save=True, should_evaluate=False)
    # The loop breaks, and goes through the end of an epoch all the same.
    epoch = ours.on_epoch_end(None, STATE, control(due=True))
    assert (epoch.should_save, epoch.should_evaluate) == (False, False)


def test_the_end_of_an_epoch_is_hugging_faces_own_unless_a_step_was_the_last(tmp_path: Path) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    ours = huggingface_trainer.callback(found)
    ours.on_step_end(None, STATE, control(due=False))
    epoch = ours.on_epoch_end(None, STATE, control(due=True))
    assert (epoch.should_save, epoch.should_evaluate) == (True, True)


def test_each_trainer_is_followed_also_where_one_that_is_gone_was(tmp_path: Path) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    kind = type(hugging_face(found, tmp_path / "checkpoints" / "out"))
    for _ in range(20):
        made = kind()
        made.train()
        made.train()
        assert [type(each).__name__ for each in made.callbacks] == ["DDPJobCallback"]
        del made
        gc.collect()
