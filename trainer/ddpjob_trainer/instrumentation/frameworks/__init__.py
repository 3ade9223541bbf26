"""Hugging Face's Trainer, Accelerate and Lightning: settings at their own level, so that they know them themselves.

Why apart from torch's patches: a framework derives more from a setting than it hands down to torch (the scale of the
loss, the length of the schedule, the choice of the backend), so the resource's value must reach it where its user would
have put it. What a framework drops on its way down (Accelerate: a value equal to its default; Hugging Face: the
time-out on a CPU) is put back at torch's level by `ddp.py` and `process_group.py`.
Must not: import a framework; each patch is made when the program imports it.
"""

from typing import Any

from ddpjob_trainer.instrumentation.frameworks import (
    accelerate,
    fabric,
    huggingface,
    huggingface_trainer,
    lightning,
)
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.instrumentation.imports import PostImport


def install(hooks: PostImport, shared: Shared) -> None:
    """Patch each framework when the program imports it (at once, where it is imported already)."""

    def on(name: str, patch: Any) -> None:
        hooks.add(name, lambda module: patch(module, shared))

    on("transformers.training_args", huggingface.patch_arguments)
    on("transformers.trainer", huggingface_trainer.patch)
    on("accelerate.accelerator", accelerate.patch)
    on("accelerate.state", accelerate.patch_state)
    for package in ("lightning.pytorch", "pytorch_lightning"):
        on(f"{package}.trainer.trainer", lightning.patch_trainer)
        on(f"{package}.strategies.ddp", lightning.patch_strategy)
    for package in ("lightning.fabric", "lightning_fabric"):
        on(f"{package}.fabric", fabric.patch)
        on(f"{package}.strategies.ddp", lightning.patch_strategy)
