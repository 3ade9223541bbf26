"""A rank that goes on in a standby: its framework was imported ahead, and obeys the resource as in a fresh process."""

import json
from pathlib import Path

import pytest
from tests.cli.running import until
from tests.trainer.programs.matrix import HERE, OTHER, Row, compare
from tests.trainer.worker.ranks import Ranks, run

from ddpjob_api.codec import load
from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Slot
from ddpjob_api.spec import DDP
from ddpjob_trainer import learned
from ddpjob_trainer.script_checkpoints import newest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_trainer_in_a_standby_has_all_settings_in_effect_and_goes_on(tmp_path: Path) -> None:
    directory, imports = tmp_path / "checkpoints", tmp_path / "learned"
    args = [str(HERE / "hf_trainer.py"), "--steps", "9"]
    ddp = load(DDP, OTHER)
    extra = {
        WorkerEnv.CHECKPOINT: json.dumps({"everySteps": 3}),
        WorkerEnv.CHECKPOINT_DIR: str(directory),
        WorkerEnv.IMPORTS_FILE: str(imports),
        "PROBE": str(tmp_path),
        "PYTHONWARNINGS": "ignore",
    }
    (tmp_path / "first").mkdir()
    first = Ranks(tmp_path / "first", args, ddp=ddp, extra=extra)
    until(lambda: newest(directory), "a checkpoint")
    for process in first.processes:
        process.kill()
    first.wait()

    went_on_from = newest(directory)
    assert went_on_from is not None and went_on_from.name == "checkpoint-3"
    modules = learned.read(imports)
    assert "transformers.trainer" in modules and "accelerate" in modules
    second = run(
        tmp_path / "second", args, ddp=ddp, standby=modules, extra={**extra, WorkerEnv.GENERATION: "2"}
    )
    for rank, each in enumerate(second):
        assert (each.returncode, each[Slot.WARM], each[Slot.RESUMED_STEP], each[Slot.STEP]) == (0, 1, 3, 9), (
            each.stderr
        )
        seen = json.loads((tmp_path / f"{rank}.json").read_text())
        cells = compare(Row(name="in a standby", ddp=OTHER), seen, each.effect.warnings)
        assert {cell.verdict for cell in cells} == {"equal"}, cells
        assert each.effect.not_resuming is None
    assert f"Hugging Face's Trainer goes on from {went_on_from}" in second[0].stderr
