"""What `spec.checkpoint` means to a script: the folder, what counts as going on, and the word when it begins anew."""

import builtins
import io
import json
import os
import pickle
import shutil
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.framework_doubles import hugging_face, said, shared

from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Phase, Slot
from ddpjob_trainer import worker
from ddpjob_trainer.instrumentation import reading
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.frameworks import lightning_fit
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker


class Setting:
    """A rank of a script's later generation."""

    def __init__(self, folder: Path, *, generation: int = 2, **settings: str) -> None:
        self.directory = folder / "checkpoints"
        environment = {
            WorkerEnv.CHECKPOINT.value: json.dumps({"everySteps": 5}),
            WorkerEnv.CHECKPOINT_DIR.value: str(self.directory),
            WorkerEnv.SETTINGS.value: json.dumps(settings),
        }
        self.worker = Worker(Page(folder / "page", create=True), environment)
        self.worker.generation = generation
        self.notices = Notices(self.worker)
        self.guard = Guard(self.worker, self.notices)
        self.saving = Saving(self.worker, self.notices, Clock(self.worker, self.notices), self.guard)


def test_a_folder_moves_into_the_jobs_directory_under_its_own_name(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    assert setting.saving.redirected("out/run-1") == str(setting.directory / "run-1")
    inside = str(setting.directory / "mine")
    assert setting.saving.redirected(inside) == inside


def test_report_leaves_the_folder_to_the_script(tmp_path: Path) -> None:
    assert Setting(tmp_path, overrides="Report").saving.redirected("out") == "out"


def test_a_later_generation_that_begins_anew_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(tmp_path)
    monkeypatch.setenv(WorkerEnv.RESUME, "/checkpoints/epoch-3.pt")
    setting.saving.first_step()
    said = setting.notices.begins_anew
    assert said is not None
    assert said.startswith("generation 2 began again at step 0: a complete checkpoint is there")
    assert "/checkpoints/epoch-3.pt" in said and WorkerEnv.RESUME in said
    assert setting.notices.warnings == [f"not resuming: {said}"]


def test_where_nothing_was_saved_the_advice_is_to_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(tmp_path)
    monkeypatch.setenv(WorkerEnv.RESUME, "")
    setting.saving.first_step()
    assert setting.notices.begins_anew is not None
    assert "no complete checkpoint is in" in setting.notices.begins_anew


def test_where_what_was_saved_is_not_whole_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(tmp_path)
    monkeypatch.setenv(WorkerEnv.RESUME, "")
    (setting.directory / "checkpoint-5").mkdir(parents=True)
    setting.saving.first_step()
    assert setting.notices.begins_anew is not None
    assert "(the newest, checkpoint-5: trainer_state.json" in setting.notices.begins_anew


def test_the_first_generation_and_one_that_went_on_are_not_warned(tmp_path: Path) -> None:
    first = Setting(tmp_path, generation=1)
    first.saving.first_step()
    loaded = Setting(tmp_path)
    (loaded.directory / "deep").mkdir(parents=True)
    (loaded.directory / "deep" / "last.pt").write_bytes(b"")
    loaded.saving.loaded(str(loaded.directory / "deep" / "last.pt"))
    loaded.saving.first_step()
    framework = Setting(tmp_path)
    framework.saving.went_on(40)
    framework.saving.first_step()
    assert framework.worker.page[Slot.STEP] == framework.worker.page[Slot.RESUMED_STEP] == 40
    assert not first.notices.warnings + loaded.notices.warnings + framework.notices.warnings


def test_a_file_from_elsewhere_is_not_going_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    setting.saving.loaded(str(tmp_path / "pretrained.pt"))
    setting.saving.first_step()
    assert setting.notices.begins_anew is not None


READS: dict[str, Callable[[Path], object]] = {
    "open": lambda file: open(file).close(),
    "a name in bytes": lambda file: open(os.fsencode(file), "rb").close(),
    "pathlib": lambda file: file.read_bytes(),
    "safetensors": lambda file: SAFETENSORS.safe_open(str(file), framework="np"),
}
NO_READS: dict[str, Callable[[Path], object]] = {
    "a log that goes on": lambda file: file.open("a").close(),
    "overwriting": lambda file: file.write_bytes(b""),
    "a look at what is there": lambda file: [each.stat() for each in file.parent.iterdir()],
    "cleaning up": lambda file: shutil.rmtree(file.parent),
    "elsewhere": lambda file: (file.parent.parent / "data").read_bytes(),
}
SAFETENSORS = types.SimpleNamespace(safe_open=lambda filename, framework: None)


@pytest.mark.parametrize(
    ("read", "counts"),
    [
        *(pytest.param(read, True, id=name) for name, read in READS.items()),
        *(pytest.param(read, False, id=name) for name, read in NO_READS.items()),
    ],
)
def test_any_reading_of_a_file_in_the_jobs_directory_is_going_on(
    read: Callable[[Path], object], counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SAFETENSORS, "safe_open", SAFETENSORS.safe_open)
    usual = builtins.open
    setting = Setting(tmp_path)
    setting.directory.mkdir()
    (setting.directory / "weights").write_bytes(b"0")
    (tmp_path / "data").write_bytes(b"0")
    reading.patch_safetensors(SAFETENSORS, setting.saving)
    reading.watch(setting.saving)
    try:
        assert pickle.loads(pickle.dumps(open)) is open and io.open is open
        read(setting.directory / "weights")
        # Read before the first step is what counts; `open` is the program's own as soon as that is known.
        assert (open is usual) is counts
    finally:
        setting.saving.first_step()
    assert builtins.open is io.open is usual
    assert (setting.notices.begins_anew is None) is counts


def test_a_first_generation_has_its_own_open(tmp_path: Path) -> None:
    usual = builtins.open
    reading.watch(Setting(tmp_path, generation=1).saving)
    assert builtins.open is usual


class Peers:
    """`torch.distributed` with another rank, which finds what it is given."""

    def __init__(self, theirs: list[str]) -> None:
        self.theirs = theirs

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def get_world_size(self) -> int:
        return 2

    def all_gather_object(self, lists: list[Any], mine: list[str]) -> None:
        lists[:] = [mine, self.theirs]


def test_what_is_offered_to_a_script_is_said_with_what_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "_current", None)
    monkeypatch.setenv(WorkerEnv.RESUME, "")
    setting = Setting(tmp_path)
    setting.directory.mkdir()
    for number, name in enumerate(("last.pt", "half.pt")):
        with zipfile.ZipFile(setting.directory / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"")
        os.utime(setting.directory / name, (number, number))
    (setting.directory / "half.pt").write_bytes(b"PK\x03\x04 half")
    setting.worker.begin({WorkerEnv.GENERATION.value: "2"})
    assert os.environ[WorkerEnv.RESUME] == str(setting.directory / "last.pt")
    said = f"checkpoint {setting.directory / 'half.pt'} is passed over: half.pt: File is not a zip file"
    assert capfd.readouterr().err.count(said) == 1


def saved_by_lightning(directory: Path, *steps: int) -> list[Path]:
    """Files as Lightning leaves them; the newest is damaged."""
    directory.mkdir(parents=True)
    files = [directory / f"ddpjob-epoch=0-step={step}.ckpt" for step in steps]
    for number, file in enumerate(files):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("data.pkl", b"")
        os.utime(file, (number, number))
    files[-1].write_bytes(b"half")
    return files


def test_lightning_goes_on_from_the_newest_that_every_rank_finds_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(tmp_path)
    files = saved_by_lightning(setting.directory / "lightning", 10, 20, 30, 40)
    monkeypatch.setitem(sys.modules, "torch.distributed", Peers([str(files[0]), str(files[1])]))
    setting.saving.fits = 1
    assert setting.saving.newest_of_lightning() == files[1]
    passed_over = [f"checkpoint {file} is passed over: {reason}" for file, reason in
                   ((files[2], "another rank does not have it"), (files[3], f"{files[3].name}: File is not a zip file"))]  # fmt: skip
    assert setting.notices.warnings == passed_over
    assert setting.saving.newest_of_lightning() is None, "once for each fit"
    setting.saving.fits = 2
    assert setting.saving.newest_of_lightning() is None, "a second fit of the program is another training"


def test_a_rank_that_cannot_look_takes_part_and_nobody_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    setting = Setting(tmp_path)
    files = saved_by_lightning(setting.directory / "lightning", 10, 20)
    peers = Peers([str(files[0])])
    met: list[list[str]] = []
    monkeypatch.setitem(sys.modules, "torch.distributed", peers)
    monkeypatch.setattr(
        peers,
        "all_gather_object",
        lambda lists, mine: (met.append(mine), Peers.all_gather_object(peers, lists, mine)),
    )
    monkeypatch.setattr("ddpjob_trainer.instrumentation.frameworks.saving.find", lambda _directory: {}["no"])
    setting.saving.fits = 1
    assert setting.guard.setting(setting.saving.newest_of_lightning)() is None
    assert met == [[]]
    assert capfd.readouterr().err.count("the instrumentation failed with KeyError") == 1


@pytest.mark.parametrize(
    ("asked", "selected", "begins"),
    [
        pytest.param(None, None, "newest", id="nothing"),
        pytest.param("last", None, "newest", id="last, which Lightning does not find"),
        pytest.param("last", "own/last.ckpt", "newest", id="last, an older file of the script's"),
        pytest.param(None, "own/on_exception.ckpt", "newest", id="OnExceptionCheckpoint chooses last"),
        pytest.param("own.ckpt", "own.ckpt", "own.ckpt", id="a path"),
        pytest.param("best", "own/best.ckpt", "own/best.ckpt", id="best"),
        pytest.param(
            None, "own/.lr_find_1.ckpt", "own/.lr_find_1.ckpt", id="back from trying learning rates"
        ),
    ],
)
def test_a_fit_goes_on_when_the_process_group_is_there_unless_the_program_says_from_where(
    asked: str | None, selected: str | None, begins: str, tmp_path: Path
) -> None:
    setting = Setting(tmp_path)
    files = saved_by_lightning(setting.directory, 10, 20)
    assert begun(setting, asked, selected) == (files[0] if begins == "newest" else begins)


def test_last_is_lightnings_own_where_the_job_has_nothing(tmp_path: Path) -> None:
    assert begun(Setting(tmp_path), "last", "own/last.ckpt") == "own/last.ckpt"


def test_a_path_that_the_program_gave_the_trainer_is_its_own(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    saved_by_lightning(setting.directory, 10, 20)
    assert begun(setting, None, "own.ckpt", by_trainer=True) == "own.ckpt"


def begun(setting: Setting, asked: str | None, selected: str | None, *, by_trainer: bool = False) -> object:
    """Where a `fit` begins for which Lightning selects that path."""
    began: list[object] = []

    class Connector:
        _user_managed = by_trainer

        def resume_start(self, checkpoint_path: object = None, weights_only: bool | None = None) -> None:
            began.append(checkpoint_path)

    trainer = types.SimpleNamespace(_checkpoint_connector=Connector())
    shared: Any = types.SimpleNamespace(saving=setting.saving, worker=setting.worker, guard=setting.guard)
    setting.saving.fits = 1
    with lightning_fit.going_on(trainer, asked, shared):
        trainer._checkpoint_connector.resume_start(selected, weights_only=None)
    assert "resume_start" not in vars(trainer._checkpoint_connector)
    return began[0]


def half_of_the_trainer(output: Path, step: int) -> Path:
    """Killed before its state was written."""
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"")
    return folder


@pytest.mark.parametrize(
    ("asked", "begins"),
    [
        (lambda output: True, None),
        (lambda output: str(output / "checkpoint-20"), None),
        (lambda output: output / "checkpoint-20", None),
        (lambda output: str(output.parent / "elsewhere" / "checkpoint-5"), "own"),
        (lambda output: None, "own"),
        (lambda output: False, "own"),
    ],
    ids=["True", "get_last_checkpoint", "a path", "elsewhere", "None", "False"],
)
def test_a_trainers_own_damaged_checkpoint_is_passed_over_whatever_the_script_asks_for(
    asked: Callable[[Path], Any], begins: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    output = tmp_path / "checkpoints" / "out"
    half = half_of_the_trainer(output, 20)
    made = hugging_face(found, output)
    made.train(asked(output))
    assert made.called == [("train", asked(output) if begins else None)]
    assert found.notices.warnings[0].startswith(f"checkpoint {half} is passed over: trainer_state.json")
    said = f"Hugging Face's Trainer begins at step 0: no checkpoint in {output} is complete"
    assert capfd.readouterr().err.count(said) == (0 if begins else 1)
    made.train(True)  # a second training of the program is its own business
    assert made.called[1] == ("train", True)


@pytest.mark.parametrize("place", ["policy/adapter_model.bin", "head/own.pt"])
@pytest.mark.parametrize("loads", [True, False], ids=["loads them", "does not load them"])
@pytest.mark.parametrize("asks", [True, False], ids=["asks", "does not ask"])
def test_weights_elsewhere_are_gone_on_from_where_they_can_be_loaded(
    place: str, loads: bool, asks: bool, tmp_path: Path
) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    output = tmp_path / "checkpoints" / "out"
    folder = output / "checkpoint-20"
    (folder / place).parent.mkdir(parents=True)
    for file in (folder / place, folder / "optimizer.pt"):
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("archive/data.pkl", b"")
    (folder / "trainer_state.json").write_text('{"global_step": 20}')
    made: Any = hugging_face(found, output)
    if loads:
        made.__class__ = type("Own", (type(made),), {"_load_from_checkpoint": lambda self, path: None})
    made.train(str(folder) if asks else None)
    goes_on = asks or loads or place.startswith("policy")
    assert made.called == [("train", str(folder) if goes_on else None)]
    assert len(found.notices.warnings) == (0 if goes_on else 1)


def test_a_trainer_without_any_checkpoint_gets_what_the_script_asks_for(tmp_path: Path) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    made = hugging_face(found, tmp_path / "checkpoints" / "out")
    made.train(True)
    assert made.called == [("train", True)], "Hugging Face's own words: there is nothing to resume from"


def saved_without_optimizer(output: Path, step: int) -> Path:
    """As the Trainer saves with `save_only_model`."""
    folder = half_of_the_trainer(output, step)
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


@pytest.mark.parametrize("asked", [None, True])
def test_a_script_that_saves_its_model_only_goes_on_and_saves_the_optimizer_from_then_on(
    asked: bool | None, tmp_path: Path
) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    output = tmp_path / "checkpoints" / "out"
    folder = saved_without_optimizer(output, 20)
    half_of_the_trainer(output, 30)
    made = hugging_face(found, output)
    made.args.save_only_model = True
    made.train(asked)
    assert made.called == [("train", str(folder))]
    assert made.args.save_only_model is False
    assert said(found) == {"checkpoint": ("save_only_model=True", "save_only_model=False", True)}
    assert found.notices.warnings[1:] == [
        f"checkpoint {folder} has no optimizer (save_only_model=True), so optimizer and schedule begin anew at its step"
    ]


def test_a_script_that_saves_the_optimizer_does_not_go_on_without_it(tmp_path: Path) -> None:
    found = shared(tmp_path, directory=tmp_path / "checkpoints")
    output = tmp_path / "checkpoints" / "out"
    folder = saved_without_optimizer(output, 20)
    made = hugging_face(found, output)
    made.train()
    assert made.called == [("train", None)]
    assert found.notices.warnings == [
        f"checkpoint {folder} is passed over: none of optimizer.pt, optimizer.bin"
    ]


@pytest.mark.parametrize("why", ["Report", "a model sharded while it is loaded"])
def test_who_must_save_the_model_only_is_told_what_it_costs(why: str, tmp_path: Path) -> None:
    settings = {"overrides": "Report"} if why == "Report" else {}
    found = shared(tmp_path, directory=tmp_path / "checkpoints", **settings)
    made = hugging_face(found, tmp_path / "checkpoints" / "out")
    made.args.save_only_model = True
    made.is_distributed_loading_by_transformers = why != "Report"  # type: ignore[attr-defined]
    made.train()
    assert made.args.save_only_model is True and not said(found)
    assert [each[:60] for each in found.notices.warnings] == [
        "spec.checkpoint: save_only_model=True leaves the optimizer o"
    ]


@pytest.fixture(autouse=True)
def a_class_of_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    there = types.SimpleNamespace(TrainerCallback=object)
    monkeypatch.setitem(sys.modules, "transformers.trainer_callback", there)


def test_saving_is_a_phase_with_seconds_of_its_own(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    page = setting.worker.page
    with setting.saving.phase(Phase.CHECKPOINT):
        assert page[Slot.PHASE] == Phase.CHECKPOINT
    assert page[Slot.PHASE] == Phase.BETWEEN and page[Slot.CHECKPOINT_SECONDS] > 0
    assert page[Slot.CHECKPOINT_DURATION_SECONDS] == pytest.approx(page[Slot.CHECKPOINT_SECONDS], abs=0.01)


def test_the_newest_checkpoint_is_one_that_was_written(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    page = setting.worker.page
    with setting.saving.phase(Phase.LOADING):
        pass
    with pytest.raises(OSError), setting.saving.phase(Phase.CHECKPOINT):
        raise OSError(28, "No space left on device")
    assert page[Slot.CHECKPOINT_DURATION_SECONDS] == 0
