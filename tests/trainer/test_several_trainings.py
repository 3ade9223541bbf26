"""A program that trains several times: in a later generation, each of its trainings finds its own checkpoints."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.framework_doubles import HuggingFaceTrainer, hugging_face, shared
from tests.trainer.test_script_checkpoints import trainer as saved_by_trainer

from ddpjob_api.page import Slot
from ddpjob_trainer.instrumentation.frameworks import huggingface_trainer, lightning
from ddpjob_trainer.instrumentation.frameworks.shared import Shared


class Killed(Exception):
    """The generation ends."""


class Generation:
    """A program on Hugging Face's Trainer: what each training was given, and where it saved."""

    def __init__(self, folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
        there = SimpleNamespace(TrainerCallback=object)
        monkeypatch.setitem(sys.modules, "transformers.trainer_callback", there)
        self.directory = folder / "checkpoints"
        (folder / str(number)).mkdir()
        self.found = shared(folder / str(number), directory=self.directory)
        self.given: list[str | None] = []
        generation = self

        class Trainer(HuggingFaceTrainer):
            def train(self, resume_from_checkpoint: Any = None, *, steps: int = 0) -> str:
                given = resume_from_checkpoint
                generation.given.append(
                    str(Path(given).relative_to(generation.directory)) if isinstance(given, str) else given
                )
                if steps:
                    saved_by_trainer(Path(str(self.args.output_dir)), steps)
                return "trained"

        huggingface_trainer.patch(SimpleNamespace(Trainer=Trainer), self.found)
        self.kind = Trainer

    def train(self, output: str, *, steps: int = 0, asked: Any = None) -> Any:
        made = self.kind()
        made.args.output_dir = self.found.saving.redirected(output)
        before = made.args.output_dir
        made.train(asked, steps=steps)
        assert made.args.output_dir == before, "what follows in the program has its own folder"
        return made


def test_folds_that_share_an_output_directory_go_on_from_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = Generation(tmp_path, 1, monkeypatch)
    for steps in (40, 40, 15):
        first.train("out", steps=steps)
    assert first.given == [None, None, None]
    second_folder = first.directory / "out-2"
    assert f"training 2 with {first.directory / 'out'} has its checkpoints in {second_folder}" in (
        capfd.readouterr().err
    )
    later = Generation(tmp_path, 2, monkeypatch)
    for _ in range(4):
        later.train("out")
    assert later.given == ["out/checkpoint-40", "out-2/checkpoint-40", "out-3/checkpoint-15", None]


def test_one_trainer_that_trains_twice_goes_on_from_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Generation(tmp_path, 1, monkeypatch)
    first.train("out", steps=40).train(steps=10)
    later = Generation(tmp_path, 2, monkeypatch)
    later.train("out").train()
    assert later.given == ["out/checkpoint-40", "out-2/checkpoint-10"]


def test_two_directories_of_one_name_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Generation(tmp_path, 1, monkeypatch)
    first.train("teacher/out", steps=40)
    first.train("student/out", steps=10)
    first.train("teacher/out", steps=5)
    later = Generation(tmp_path, 2, monkeypatch)
    for output in ("teacher/out", "student/out", "teacher/out"):
        later.train(output)
    assert later.given == ["out/checkpoint-40", "out-2/checkpoint-10", "out-3/checkpoint-5"]


def test_a_second_training_that_is_to_go_on_from_the_first_does_until_it_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Generation(tmp_path, 1, monkeypatch)
    first.train("out", steps=40).train(True, steps=60)
    assert first.given == [None, "out/checkpoint-40"]
    later = Generation(tmp_path, 2, monkeypatch)
    later.train("out").train(True)
    assert later.given == ["out/checkpoint-40", "out-2/checkpoint-60"]


def test_what_is_put_in_the_arguments_after_they_are_made_is_the_jobs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = SimpleNamespace(TrainerCallback=object)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", there)
    directory = tmp_path / "checkpoints"
    found = shared(tmp_path, directory=directory, checkpoint={"everySteps": 3})
    made = hugging_face(found, directory / "out")
    for fold in (0, 1):
        made.args.output_dir, made.args.save_steps = f"fold{fold}", 2
        for _ in range(2):
            made.train(None)
            assert (made.args.output_dir, made.args.save_steps) == (str(directory / f"fold{fold}"), 3)
    assert [each.asked for each in found.notices.overrides] == ["fold0", "2", "fold1"]


def test_the_jobs_own_directory_is_not_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Generation(tmp_path, 1, monkeypatch)
    for steps in (40, 10):
        first.train(str(first.directory), steps=steps)
    later = Generation(tmp_path, 2, monkeypatch)
    for _ in range(2):
        later.train(str(first.directory))
    assert later.given == ["checkpoint-40", "training/checkpoint-10"]


def test_trials_of_a_search_stay_where_hugging_face_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Generation(tmp_path, 1, monkeypatch)
    made = first.train("out", steps=40)
    made.hp_search_backend = "optuna"
    made.train(steps=50)
    assert (first.directory / "out" / "checkpoint-50").is_dir() and first.given == [None, None]


def two_trainers(make: Callable[[], Any], fit: Callable[[Any], None]) -> None:
    for _ in range(2):
        fit(make())


def one_trainer(make: Callable[[], Any], fit: Callable[[Any], None]) -> None:
    trainer = make()
    fit(trainer)
    trainer.fit_loop.max_epochs = 2
    fit(trainer)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("everySteps", [2, None], ids=["the job's files", "the script's files"])
@pytest.mark.parametrize(
    ("program", "begins"),
    [(two_trainers, [4, 2]), (one_trainer, [4, 6])],
    ids=["two trainers", "one trainer"],
)
def test_each_fit_goes_on_from_its_own(
    program: Any, begins: list[int], everySteps: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip("lightning.pytorch")
    torch = pytest.importorskip("torch")
    own = everySteps is None
    began: list[int] = []
    fits: list[int] = []

    class Module(package.LightningModule):  # type: ignore[misc, name-defined]
        dies = False

        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def on_train_start(self) -> None:
            began.append(self.trainer.global_step)
            fits.append(0)

        def training_step(self, batch: Any, index: int) -> Any:
            fits[-1] += 1
            if self.dies and len(fits) == 2 and fits[-1] == 4:
                raise Killed
            return self.net(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def generation(number: int, *, dies: bool) -> Shared:
        (tmp_path / str(number)).mkdir()
        checkpoint = {"everySteps": everySteps} if everySteps else {}
        found = shared(tmp_path / str(number), directory=tmp_path / "checkpoints", checkpoint=checkpoint)
        found.worker.nodes = 1

        def make() -> Any:
            callbacks = (
                [package.callbacks.ModelCheckpoint(every_n_train_steps=2, save_top_k=-1)] if own else []
            )
            return package.Trainer(
                accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=own,
                callbacks=callbacks, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip

        def fit(trainer: Any) -> None:
            module = Module()
            module.dies = dies
            trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(4, 2), batch_size=1))

        with monkeypatch.context() as patched:
            place = sys.modules["lightning.pytorch.trainer.trainer"]
            for name in ("__init__", "fit", "save_checkpoint"):
                patched.setattr(place.Trainer, name, getattr(place.Trainer, name))  # to be put back
            lightning.patch_trainer(place, found)
            if dies:
                with pytest.raises(Killed):
                    program(make, fit)
            else:
                program(make, fit)
        return found

    generation(1, dies=True)
    began.clear()
    fits.clear()
    found = generation(2, dies=False)
    assert began == begins
    assert fits == [0, 2], "the first was at its end, the second goes on"
    assert found.worker.page[Slot.RESUMED_STEP] == 6, "of the four steps of the first and two of the second"
