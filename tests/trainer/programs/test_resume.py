"""Scripts on a framework go on from their own checkpoints, and save where all ranks stop, without a change to them."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.jobs import ddpjob, last_json, write
from tests.cli.running import Running, processes_with
from tests.trainer.programs.matrix import HERE

from ddpjob_trainer.script_checkpoints import find, newest

TRAINER = HERE.parents[2] / "examples" / "scripts" / "hf_trainer.py"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def job(folder: Path, *args: str) -> Path:
    spec: dict[str, Any] = {
        "nodes": 2,
        "script": {"args": list(args)},
        "ddp": {"backend": "Gloo", "bucketCapMB": 1},
        "checkpoint": {"persistentVolumeClaim": "checkpoints", "everySteps": 3},
        "env": [{"name": "PYTHONWARNINGS", "value": "ignore"}],
        "recovery": {"gracePeriodSeconds": 100},
    }
    return write(folder, spec)


def steps(directory: Path) -> list[int]:
    return sorted(found.step or 0 for found in find(directory) if found.problem is None)


def follow(run: Running, folder: Path, steps_in_all: int, goes_on: str) -> tuple[int, dict[str, Any]]:
    """Kill a rank when something is saved, damage the newest, stop the next generation; returns how it ended."""
    directory = folder / ".ddpjob/job/checkpoints"
    run.until(lambda: max(steps(directory), default=0) >= 6, "two checkpoints")
    for pid in processes_with(DDPJOB_CHECKPOINT_DIR=str(directory), RANK="1"):
        os.kill(pid, signal.SIGKILL)
    went_on = run.wait_for(goes_on)
    step = int(went_on.rpartition("-" if "checkpoint-" in went_on else "=")[2].removesuffix(".ckpt"))
    run.until(lambda: max(steps(directory)) > step, "the next checkpoint")
    run.signal(signal.SIGINT)
    code, ending = run.end()
    assert (code, ending["outcome"], ending["restarts"]) == (85, "Stopped", 1), run.lines
    assert step < ending["steps"] < steps_in_all
    assert ending["allReduces"] == ending["steps"] - step, "no step was made twice, and none was left out"
    assert max(steps(directory)) == ending["steps"], "it saved at the step where all ranks stopped"
    return code, ending


def test_a_trainer_script_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    file = job(tmp_path, str(TRAINER), "--steps", "60")
    directory = tmp_path / ".ddpjob/job/checkpoints"
    output = directory / "trainer_output"
    with Running(file, cwd=tmp_path, seconds=480) as run:
        said = run.wait_for("override: checkpoint")
        assert str(output) in said and "hf_trainer.py:" in said
        _, ending = follow(run, tmp_path, 60, "Hugging Face's Trainer goes on from")
    assert newest(directory) == output / f"checkpoint-{ending['steps']}"
    assert len(steps(directory)) <= 4, "checkpoint.keep holds for the script too"
    assert not (tmp_path / "trainer_output").exists()

    # Half of the newest is gone; the one before it is used.
    weights = output / f"checkpoint-{ending['steps']}" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4096])
    before = steps(directory)[-1]
    again = ddpjob("run", file, "--json", cwd=tmp_path)
    last = last_json(again)
    assert (again.returncode, last["steps"], last["allReduces"]) == (0, 60, 60 - before), again.stderr
    assert f"checkpoint-{ending['steps']} is passed over: model.safetensors has" in again.stderr


def test_a_lightning_script_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    file = job(tmp_path, str(HERE / "lightning_fit.py"), "--epochs", "40", "--checkpoints")
    with Running(file, cwd=tmp_path, seconds=480) as run:
        follow(run, tmp_path, 320, "Lightning goes on from")
