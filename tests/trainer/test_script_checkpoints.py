"""Which checkpoints of scripts are complete: half-written, cut and foreign ones are passed over."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from ddpjob_trainer.script_checkpoints import find, newest, trainer_checkpoints


def safetensors(path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))


def torch_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"x" * 500)


def trainer(output: Path, step: int, *, at: float = 0) -> Path:
    folder = output / f"checkpoint-{step}"
    folder.mkdir(parents=True)
    safetensors(folder / "model.safetensors")
    torch_file(folder / "optimizer.pt")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    for file in folder.iterdir():
        os.utime(file, (at or step, at or step))
    os.utime(folder, (at or step, at or step))
    return folder


def test_the_newest_of_the_trainer_is_found_below_the_directory(tmp_path: Path) -> None:
    trainer(tmp_path / "out", 10)
    latest = trainer(tmp_path / "out", 20)
    assert newest(tmp_path) == latest
    assert [found.step for found in trainer_checkpoints(tmp_path / "out")] == [10, 20]
    assert newest(tmp_path / "nowhere") is None


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json"),
        (lambda folder: (folder / "trainer_state.json").write_text('{"global_step": 7}'), "not of step 20"),
        (lambda folder: (folder / "trainer_state.json").write_text('{"global'), "trainer_state.json"),
        (lambda folder: cut(folder / "model.safetensors"), "bytes instead of"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "no safetensors header"),
        (lambda folder: (folder / "model.safetensors").unlink(), "none of model.safetensors"),
        (lambda folder: cut(folder / "optimizer.pt"), "optimizer.pt"),
        (lambda folder: (folder / "optimizer.pt").unlink(), "none of optimizer.pt"),
    ],
)
def test_a_damaged_one_is_passed_over_with_its_reason(tmp_path: Path, damage: object, words: str) -> None:
    whole = trainer(tmp_path, 10)
    damage(trainer(tmp_path, 20))  # type: ignore[operator]
    assert newest(tmp_path) == whole
    problem = trainer_checkpoints(tmp_path)[-1].problem
    assert problem is not None and words in problem


def test_shards_are_all_needed(tmp_path: Path) -> None:
    folder = trainer(tmp_path, 10)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert newest(tmp_path) is None
    safetensors(folder / "model-2.safetensors")
    assert newest(tmp_path) == folder


def test_lightning_and_accelerate_are_known_too(tmp_path: Path) -> None:
    deep = tmp_path / "lightning_logs" / "version_0" / "checkpoints"
    deep.mkdir(parents=True)
    torch_file(deep / "epoch=0-step=30.ckpt")
    (deep / "epoch=1-step=60.ckpt").write_bytes(b"PK\x03\x04 half")
    saved = tmp_path / "states" / "step_40"
    saved.mkdir(parents=True)
    safetensors(saved / "model.safetensors")
    torch_file(saved / "optimizer.bin")
    found = {each.step: each.problem for each in find(tmp_path)}
    assert found[30] is None and found[40] is None and found[60] is not None
