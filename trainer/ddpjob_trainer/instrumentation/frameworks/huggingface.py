"""Hugging Face's `TrainingArguments`: the settings of its guide to DDP, put where a user would have written them.

Why apart: one framework, one file. `Trainer` derives the length of the schedule and the scale of the loss from the
number of accumulated batches, and Accelerate's backend from `ddp_backend`, so it has to know them.

A value equal to the dataclass's default counts as not said by the program: the dataclass does not tell the two apart.
"""

import dataclasses
import functools
from datetime import timedelta
from typing import Any

from ddpjob_api.spec import GradientCheckpointing
from ddpjob_trainer.instrumentation import where
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.instrumentation.settings import ABSENT

FIELDS = {
    "gradientAccumulationSteps": "gradient_accumulation_steps",
    "backend": "ddp_backend",
    "timeoutSeconds": "ddp_timeout",
    "bucketCapMB": "ddp_bucket_cap_mb",
    "broadcastBuffers": "ddp_broadcast_buffers",
    "findUnusedParameters": "ddp_find_unused_parameters",
    "staticGraph": "ddp_static_graph",
}


def patch_arguments(module: Any, shared: Shared) -> None:
    """Patch `transformers.training_args`; subclasses call the same `__post_init__`."""
    arguments = module.TrainingArguments
    original = arguments.__post_init__

    @shared.guard.setting
    def before(made: Any) -> None:
        shared.learn_backend()  # first: it may bring the device
        shared.use_cpu(chosen=bool(getattr(made, "use_cpu", False) or getattr(made, "no_cuda", False)))
        put_settings(made, shared)
        put_checkpoint(made, shared)

    @shared.guard.setting
    def after(made: Any) -> None:
        put_accumulation(made, shared)
        if checkpoints_without_reentering(made):
            shared.verdicts.learn_checkpointing(GradientCheckpointing.NON_REENTRANT)

    @transparent
    @functools.wraps(original)
    def __post_init__(self: Any) -> None:  # noqa: N807
        before(self)
        original(self)
        after(self)

    arguments.__post_init__ = __post_init__


def put_accumulation(arguments: Any, shared: Shared) -> None:
    """The number again, where the program says it in another place, or later than the arguments are made."""
    config = getattr(arguments, "accelerator_config", None)
    options = getattr(config, "gradient_accumulation_kwargs", None)
    options = options if isinstance(options, dict) else {}
    given = options.get("num_steps") or arguments.gradient_accumulation_steps
    wanted = shared.settings.wish("gradientAccumulationSteps")
    if wanted is ABSENT or given == wanted:
        return
    value = shared.settings.over_framework("gradientAccumulationSteps", given)
    if value is not ABSENT:
        arguments.gradient_accumulation_steps = value
        options.pop("num_steps", None)


def put_checkpoint(arguments: Any, shared: Shared) -> None:
    """Folder and interval of the checkpoints, where the resource has `checkpoint`.

    The folder is the one of the script's name in the job's directory: a pod's own files go with the pod.
    """
    saving = shared.saving
    if saving.directory is None or saving.spec is None:
        return
    asked = arguments.output_dir or "trainer_output"
    folder = saving.redirected(asked)
    if folder != asked:
        shared.notices.override(
            setting="checkpoint", asked=asked, resource=folder, where=where.caller(), applied=True
        )
        arguments.output_dir = folder
    steps, strategy = (
        saving.spec.every_steps,
        getattr(arguments.save_strategy, "value", arguments.save_strategy),
    )
    if steps is None and saving.spec.every is None:
        return
    if arguments.load_best_model_at_end:
        shared.notices.warn(
            "spec.checkpoint: load_best_model_at_end ties saving to evaluation, so the script's own interval stays"
        )
        return
    if steps is not None and (strategy, arguments.save_steps) != ("steps", steps):
        default = {field.name: field.default for field in dataclasses.fields(arguments)}
        own = arguments.save_steps if strategy == "steps" else strategy
        if own != default["save_steps"]:
            shared.notices.override(
                setting="everySteps", asked=str(own), resource=str(steps), where=where.caller(), applied=True
            )
        arguments.save_strategy, arguments.save_steps = "steps", steps
    if arguments.save_total_limit is None:
        arguments.save_total_limit = saving.spec.keep


def checkpoints_without_reentering(arguments: Any) -> bool:
    """Whether activations are recomputed, and not in the reentrant way (which `recomputation.py` sees itself)."""
    on = getattr(arguments, "activation_checkpointing", None) or arguments.gradient_checkpointing
    options = (
        getattr(arguments, "activation_checkpointing_kwargs", None) or arguments.gradient_checkpointing_kwargs
    )
    return bool(on) and isinstance(options, dict) and options.get("use_reentrant") is False


def put_settings(arguments: Any, shared: Shared) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(arguments)}
    for setting, name in FIELDS.items():
        if name not in defaults:
            continue  # an older transformers: torch's level has it
        given = getattr(arguments, name)
        if setting == "timeoutSeconds":
            asked = ABSENT if given == defaults[name] else timedelta(seconds=given)
        else:
            asked = ABSENT if given == defaults[name] else given
        value = shared.settings.over_framework(setting, asked)
        if value is not ABSENT:
            setattr(arguments, name, int(value.total_seconds()) if setting == "timeoutSeconds" else value)
