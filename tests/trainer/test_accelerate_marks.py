"""A folder that `save_state` did not finish is known for it, with Accelerate's own code."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.framework_doubles import shared

from ddpjob_trainer.checkpoint_folders import WRITING
from ddpjob_trainer.instrumentation.frameworks import accelerate
from ddpjob_trainer.script_checkpoints import find, newest

real = pytest.importorskip("accelerate.accelerator")
torch = pytest.importorskip("torch")


class Counter:
    """Registered for checkpointing, and written last."""

    def __init__(self) -> None:
        self.dies = False
        self.seen: list[bool] = []
        self.folder = Path()

    def state_dict(self) -> dict[str, int]:
        self.seen.append((self.folder / WRITING).exists())
        if self.dies:
            raise KeyboardInterrupt
        return {"step": 1}

    def load_state_dict(self, state: dict[str, int]) -> None: ...


def made(folder: Path, **arguments: Any) -> Any:
    class Accelerator(real.Accelerator):  # type: ignore[misc, name-defined]
        pass

    names = (
        "DistributedDataParallelKwargs",
        "InitProcessGroupKwargs",
        "GradientAccumulationPlugin",
        "PartialState",
    )
    module = SimpleNamespace(Accelerator=Accelerator, **{name: getattr(real, name) for name in names})
    accelerate.patch(module, shared(folder, directory=folder / "checkpoints"))
    accelerator = module.Accelerator(cpu=True, **arguments)
    model = torch.nn.Linear(2, 2)
    accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    return accelerator


def test_a_save_that_is_killed_before_its_last_object_is_not_complete(tmp_path: Path) -> None:
    accelerator, counter = made(tmp_path), Counter()
    accelerator.register_for_checkpointing(counter)
    first, second = (tmp_path / "checkpoints" / f"epoch_{epoch}" for epoch in (1, 2))
    counter.folder = first
    accelerator.save_state(str(first))
    assert counter.seen == [True] and not (first / WRITING).exists()
    counter.folder, counter.dies = second, True
    with pytest.raises(KeyboardInterrupt):
        accelerator.save_state(second)
    assert newest(tmp_path / "checkpoints") == first
    assert find(tmp_path / "checkpoints")[-1].problem == "save_state did not come to its end"
    counter.dies = False
    accelerator.save_state(second)
    assert newest(tmp_path / "checkpoints") == second


def test_folders_that_accelerate_names_and_those_elsewhere(tmp_path: Path) -> None:
    from accelerate.utils import ProjectConfiguration

    naming = ProjectConfiguration(project_dir=str(tmp_path / "checkpoints"), automatic_checkpoint_naming=True)
    accelerator, counter = made(tmp_path, project_config=naming), Counter()
    accelerator.register_for_checkpointing(counter)
    counter.folder = tmp_path / "checkpoints" / "checkpoints" / "checkpoint_0"
    accelerator.save_state()
    naming.automatic_checkpoint_naming = False
    counter.folder = tmp_path / "elsewhere"
    accelerator.save_state(counter.folder)
    assert counter.seen == [True, False], "no file of ours where the job has no business"
    assert newest(tmp_path / "checkpoints") == tmp_path / "checkpoints" / "checkpoints" / "checkpoint_0"
