"""Which checkpoints of scripts are complete: half-written, cut and foreign ones are passed over."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ddpjob_trainer.checkpoint_folders import WRITING
from ddpjob_trainer.script_checkpoints import Layout, choose, find, newest, trainer_checkpoints


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


def written(path: Path, *, at: float, keys: bytes = b"", also: str = "", whole: bool = True) -> Path:
    """A file as `torch.save` writes it at that time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00(" + keys)
        archive.writestr("archive/data/0", bytes(64))
        if also:
            archive.writestr(f"archive/{also}", b"")
    if not whole:
        path.write_bytes(path.read_bytes()[:-30])
    os.utime(path, (at, at))
    return path


def key(name: bytes, value: bytes = b"") -> bytes:
    return b"X" + len(name).to_bytes(4, "little") + name + b"q\x01" + value


def of_lightning(step: bytes, *, weights_only: bool = False) -> bytes:
    front = key(b"global_step", step) + key(b"pytorch-lightning_version", b"X\x01\0\0\x002q\x04")
    return front + (b"" if weights_only else key(b"optimizer_states"))


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


@pytest.mark.parametrize(
    "place", ["policy/adapter_model.safetensors", "0_Transformer/model.safetensors", "lora.safetensors"]
)
def test_a_trainer_may_have_its_weights_elsewhere(tmp_path: Path, place: str) -> None:
    folder = trainer(tmp_path, 10)
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / "model.safetensors").rename(folder / place)
    torch_file(folder / "rng_state_0.pth")
    assert newest(tmp_path) == folder
    cut(folder / place)
    assert "bytes instead of" in str(trainer_checkpoints(tmp_path)[0].problem)
    (folder / place).unlink()
    assert "none of model.safetensors" in str(trainer_checkpoints(tmp_path)[0].problem)


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
    torch_file(saved / "random_states_0.pkl")
    found = {each.path.name: each.problem for each in find(tmp_path)}
    assert found["epoch=0-step=30.ckpt"] is None and found["step_40"] is None
    assert found["epoch=1-step=60.ckpt"] is not None


@pytest.mark.parametrize("step", [b"K\x1e", b"M\x70\x11", b"Jp\x11\1\0"])
def test_lightnings_files_have_their_step_in_them_whatever_their_names(tmp_path: Path, step: bytes) -> None:
    last = written(tmp_path / "version_0" / "last.ckpt", at=1, keys=of_lightning(step))
    written(tmp_path / "version_0" / "epoch=0-val_loss=0.50.ckpt", at=2, keys=of_lightning(b"K\x05"))
    written(tmp_path / "weights.ckpt", at=3, keys=of_lightning(b"K\xff", weights_only=True))
    written(tmp_path / "cut.ckpt", at=4, keys=of_lightning(b"J\xff\xff\1\0"), whole=False)
    written(tmp_path / "exported.pt", at=5)
    assert newest(tmp_path) == last
    found = {each.path.name: each for each in find(tmp_path)}
    assert set(found) == {"last.ckpt", "epoch=0-val_loss=0.50.ckpt", "weights.ckpt", "cut.ckpt"}
    assert {each.layout for each in found.values()} == {Layout.LIGHTNING}
    assert found["last.ckpt"].step == int.from_bytes(step[1:], "little")
    assert found["weights.ckpt"].problem == "weights.ckpt holds weights and no optimizer"


def test_the_real_torch_writes_what_is_looked_for(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    state = {"epoch": 1, "global_step": 70_000, "pytorch-lightning_version": "2", "optimizer_states": []}
    torch.save({**state, "state_dict": {"a": torch.zeros(1000)}}, tmp_path / "last.ckpt")
    [found] = find(tmp_path)
    assert (found.layout, found.step, found.problem) == (Layout.LIGHTNING, 70_000, None)
    torch.save({"model": torch.zeros(1000)}, tmp_path / "last.ckpt")
    [found] = find(tmp_path)
    assert (found.layout, found.step, found.problem) == (Layout.TORCH, None, None)
    torch.save({"model": torch.zeros(10)}, tmp_path / "last.ckpt", _use_new_zipfile_serialization=False)
    assert find(tmp_path) == ()


@pytest.mark.parametrize("name", ["last.pt", "model.pth", "state.ckpt", "checkpoint.pth.tar", "run/last.pt"])
def test_a_file_of_torch_alone_is_found(tmp_path: Path, name: str) -> None:
    assert newest(tmp_path) is None
    whole = written(tmp_path / name, at=5)
    assert newest(tmp_path) == whole


def test_the_newest_whole_file_of_torch_is_the_one(tmp_path: Path) -> None:
    written(tmp_path / "step-900.pt", at=1)  # a number of the script's, which may have begun at 0 again
    whole = written(tmp_path / "step-100.pt", at=2)
    cut = written(tmp_path / "step-200.pt", at=3, whole=False)
    (tmp_path / "step-300.pt").write_bytes(b"")
    written(tmp_path / "best.pt", at=9)
    written(tmp_path / "scripted.pt", at=9, also="constants.pkl")
    written(tmp_path / "a" / "b" / "deep.pt", at=9)
    written(tmp_path / "weights.bin", at=9)
    written(tmp_path / "half.pt.tmp", at=9)
    (tmp_path / "old.pt").write_bytes(b"\x80\x02\x8a legacy")
    chosen, passed_over = choose(find(tmp_path))
    assert chosen == whole
    assert [(each.path, each.layout) for each in passed_over] == [
        (cut, Layout.TORCH),
        (tmp_path / "step-300.pt", Layout.TORCH),
    ]


def test_the_best_is_better_than_nothing(tmp_path: Path) -> None:
    only = written(tmp_path / "best.pt", at=1)
    assert newest(tmp_path) == only


def test_of_several_files_that_are_one_checkpoint_the_folder_is_named(tmp_path: Path) -> None:
    for step in (1, 2):
        written(tmp_path / f"epoch-{step}" / "model.pt", at=step)
        written(tmp_path / f"epoch-{step}" / "optimizer.pt", at=step)
    written(tmp_path / "epoch-3" / "model.pt", at=3)  # killed before the other
    written(tmp_path / "optimal.pt", at=4)
    assert newest(tmp_path) == tmp_path / "epoch-2"
    cut(tmp_path / "epoch-2" / "model.pt")
    assert newest(tmp_path) == tmp_path / "epoch-1"
    top = tmp_path / "top"
    for rank in range(2):
        written(top / f"state_rank{rank}.pt", at=1)
    assert newest(top) == top


def test_a_folder_called_checkpoint_is_whose_files_it_has(tmp_path: Path) -> None:
    diffusers = tmp_path / "diffusers" / "checkpoint-500"
    diffusers.mkdir(parents=True)
    safetensors(diffusers / "model.safetensors")
    for name in ("optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
        written(diffusers / name, at=1)
    assert newest(tmp_path / "diffusers") == newest(diffusers) == diffusers
    assert find(diffusers)[0].layout is Layout.ACCELERATE
    own = written(tmp_path / "own" / "checkpoint-7" / "state.pt", at=1)
    assert newest(tmp_path / "own") == own
    # The Trainer's, killed before its state; and its weights alone.
    half = trainer(tmp_path / "hf", 20)
    (half / "trainer_state.json").unlink()
    (tmp_path / "hf" / "checkpoint-30").mkdir()
    torch_file(tmp_path / "hf" / "checkpoint-30" / "pytorch_model.bin")
    written(tmp_path / "hf" / "training.pt", at=1)
    assert newest(tmp_path / "hf") is None
    assert [each.layout for each in find(tmp_path / "hf")] == [Layout.TRAINER, Layout.TRAINER]


def saved_by_hand(folder: Path, *, at: float, state: bool = True) -> Path:
    """As `model.save_pretrained` and a `torch.save` of the rest leave it."""
    folder.mkdir(parents=True)
    safetensors(folder / "model.safetensors")
    os.utime(folder / "model.safetensors", (at, at))
    if state:
        written(folder / "training_state.pt", at=at)
    return folder


@pytest.mark.parametrize("name", ["checkpoint-{}", "step_{}"])
def test_weights_and_a_state_of_the_programs_own_are_one_checkpoint(tmp_path: Path, name: str) -> None:
    folders = [saved_by_hand(tmp_path / name.format(step), at=step) for step in (100, 200)]
    saved_by_hand(tmp_path / name.format(300), at=300, state=False)  # killed before the state
    assert newest(tmp_path) == folders[1]
    cut(folders[1] / "model.safetensors")
    chosen, passed_over = choose(find(tmp_path))
    assert (chosen, [each.path for each in passed_over]) == (folders[0], [folders[1]])


def test_a_file_beside_exported_weights_is_still_the_checkpoint(tmp_path: Path) -> None:
    folder = saved_by_hand(tmp_path / "run", at=1)
    assert newest(tmp_path) == folder / "training_state.pt"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_folders_of_torchs_distributed_checkpoint_are_offered(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    file = written(tmp_path / "last.pt", at=1)
    for name in ("checkpoint-100", "run/step_200"):
        dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / name)
        assert newest(tmp_path) == tmp_path / name
        (tmp_path / name / ".metadata").unlink()
        chosen, passed_over = choose(find(tmp_path))
        assert chosen == file
        assert passed_over[-1].problem == f"{(tmp_path / name).name} has no .metadata, which is written last"


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_shards_that_lie_on_a_lost_node_are_missed(tmp_path: Path) -> None:
    """Each node may have written its own: the one of rank 0 has `.metadata` and not the others'."""
    torch = pytest.importorskip("torch")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    older, newer = tmp_path / "step_100", tmp_path / "step_200"
    for folder in (older, newer):
        writer = dcp.FileSystemWriter(folder, single_file_per_rank=False)
        dcp.save({"a": torch.ones(2), "b": torch.zeros(2)}, storage_writer=writer)
    assert newest(tmp_path) == newer
    lost = max(newer.glob("*.distcp"))
    lost.unlink()
    chosen, passed_over = choose(find(tmp_path))
    assert chosen == older
    assert passed_over[-1].problem == f"step_200 has no {lost.name}, which its .metadata names"


@pytest.mark.parametrize("name", ["checkpoint-5", "step-5"])
def test_of_shards_in_parts_the_folder_around_them_is_named(tmp_path: Path, name: str) -> None:
    sharded(tmp_path / name, "model", "optim")
    written(tmp_path / name / "extra.pt", at=1)
    assert newest(tmp_path) == tmp_path / name
    (tmp_path / name / "optim" / ".metadata").unlink()
    assert newest(tmp_path) is None


def test_the_step_counts_where_each_framework_says_it_and_else_the_time(tmp_path: Path) -> None:
    latest = trainer(tmp_path / "a", 40, at=1)
    trainer(tmp_path / "b", 30, at=2)
    assert newest(tmp_path) == latest
    by_hand = tmp_path / "c"
    by_hand.mkdir()
    safetensors(by_hand / "model.safetensors")
    written(by_hand / "optimizer.bin", at=3)
    written(by_hand / "random_states_0.pkl", at=3)
    assert newest(tmp_path) == by_hand


def accelerate(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True)
    safetensors(folder / "model.safetensors")
    for name in ("optimizer.bin", *names):
        torch_file(folder / name)
    return folder


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / WRITING).touch(), "save_state did not come to its end"),
        (lambda folder: (folder / "random_states_0.pkl").unlink(), "no random_states_0.pkl"),
        (lambda folder: cut(folder / "random_states_0.pkl"), "random_states_0.pkl: File is not a zip"),
        (lambda folder: cut(folder / "optimizer_1.bin"), "optimizer_1.bin: File is not a zip"),
        (
            lambda folder: cut(folder / "custom_checkpoint_0.pkl"),
            "custom_checkpoint_0.pkl: File is not a zip",
        ),
        (lambda folder: cut(folder / "model.safetensors"), "bytes instead of"),
        (lambda folder: (folder / "pytorch_model_fsdp_0").mkdir(), "pytorch_model_fsdp_0 has no .metadata"),
        (lambda folder: (folder / "latest").write_text("pytorch_model"), "names pytorch_model, which is not"),
    ],
)
def test_half_a_save_state_is_passed_over_with_its_reason(tmp_path: Path, damage: Any, words: str) -> None:
    rest = ("optimizer_1.bin", "scheduler.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl")
    whole = accelerate(tmp_path / "step_1", *rest)
    for file in (*whole.iterdir(), whole):
        os.utime(file, (1, 1))
    half = accelerate(tmp_path / "step_2", *rest)
    assert newest(tmp_path) == half
    damage(half)
    chosen, passed_over = choose(find(tmp_path))
    assert chosen == whole
    [problem] = [each.problem for each in passed_over]
    assert problem is not None and words in problem


def test_a_file_of_lightnings_whose_pickle_is_damaged_is_passed_over(tmp_path: Path) -> None:
    """Its index at the end is whole, so that only reading shows it."""
    whole = written(tmp_path / "epoch=0-step=5.ckpt", at=1, keys=of_lightning(b"K\x05"))
    damaged = written(tmp_path / "epoch=1-step=9.ckpt", at=2, keys=of_lightning(b"K\x09"))
    text = damaged.read_bytes()
    assert b"optimizer_states" in text
    damaged.write_bytes(text.replace(b"optimizer_states", b"Optimizer_states", 1))
    chosen, passed_over = choose(find(tmp_path))
    assert chosen == whole
    assert [each.problem for each in passed_over] == [
        f"{damaged.name}: Bad CRC-32 for file 'archive/data.pkl'"
    ]


def test_a_folder_is_as_new_as_its_files_whatever_was_exchanged_since(tmp_path: Path) -> None:
    """Nodes without a shared volume give each other files, in the order of names; that dates the folder itself."""
    for number in (900, 1000):
        folder = accelerate(tmp_path / f"step_{number}", "random_states_0.pkl")
        for file in folder.iterdir():
            os.utime(file, (number, number))
    for at, number in enumerate((1000, 900)):
        os.utime(tmp_path / f"step_{number}", (5000 + at, 5000 + at))
    assert newest(tmp_path) == tmp_path / "step_1000"


def test_a_save_state_with_weights_in_the_programs_own_way_is_complete(tmp_path: Path) -> None:
    folder = accelerate(tmp_path / "checkpoint-500", "random_states_0.pkl")
    (folder / "model.safetensors").rename(folder / "pytorch_lora_weights.safetensors")
    (folder / "stats.pkl").write_bytes(b"a pickle of the program's own")
    assert newest(tmp_path) == folder


def sharded(folder: Path, *names: str, metadata: bool = True) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "__0_0.distcp").write_bytes(b"0")
        if metadata:
            (folder / name / ".metadata").write_bytes(b"0")


def test_shards_of_fsdp_and_of_deepspeed_are_complete_too(tmp_path: Path) -> None:
    def bare(name: str, step: int) -> Path:
        folder = tmp_path / name / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        torch_file(folder / "rng_state_0.pth")
        return folder

    fsdp = bare("fsdp", 10)
    sharded(fsdp, "pytorch_model_fsdp_0", "optimizer_0")
    sharded(bare("fsdp", 20), "pytorch_model_fsdp_0", "optimizer_0", metadata=False)
    sharded(bare("fsdp", 30), "pytorch_model_fsdp_0")
    assert newest(tmp_path / "fsdp") == fsdp
    assert [each.problem for each in find(tmp_path / "fsdp")] == [
        None,
        "optimizer_0 has no .metadata, which is written last",
        "none of optimizer.pt, optimizer.bin",
    ]

    deepspeed = bare("deepspeed", 10)
    (deepspeed / "global_step10").mkdir()
    assert newest(tmp_path / "deepspeed") is None
    (deepspeed / "latest").write_text("global_step10")
    assert newest(tmp_path / "deepspeed") is None
    torch_file(deepspeed / "global_step10" / "mp_rank_00_model_states.pt")
    assert newest(tmp_path / "deepspeed") == deepspeed
    cut(deepspeed / "rng_state_0.pth")
    assert newest(tmp_path / "deepspeed") is None

    by_hand = tmp_path / "accelerate" / "step_5"
    sharded(by_hand, "pytorch_model_fsdp_0", "optimizer_0")
    assert newest(tmp_path / "accelerate") is None
    torch_file(by_hand / "random_states_0.pkl")
    assert newest(tmp_path / "accelerate") == by_hand
