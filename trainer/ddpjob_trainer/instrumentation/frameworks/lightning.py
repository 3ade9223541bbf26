"""Lightning: `Trainer` learns the accumulation and how many nodes there are, `DDPStrategy` the rest.

Why apart: one framework, one file, for its two package names and for Fabric, whose DDPStrategy takes the same arguments
(and whose loop is the program's own, so its accumulation is observed and not set).
"""

import functools
import inspect
import weakref
from typing import Any

from ddpjob_api.page import Phase
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks import lightning_fit
from ddpjob_trainer.instrumentation.frameworks.shared import Shared, sees_accelerator
from ddpjob_trainer.instrumentation.settings import ABSENT

FIELDS = {
    "backend": "process_group_backend",
    "timeoutSeconds": "timeout",
    "bucketCapMB": "bucket_cap_mb",
    "findUnusedParameters": "find_unused_parameters",
    "staticGraph": "static_graph",
    "gradientAsBucketView": "gradient_as_bucket_view",
}
"""The resource's names, and arguments of DDPStrategy; those it does not name itself it hands to torch."""


def patch_strategy(module: Any, shared: Shared) -> None:
    """Patch `lightning.pytorch.strategies.ddp`, and Fabric's."""
    strategy = module.DDPStrategy
    original = strategy.__init__
    names = list(inspect.signature(original).parameters)[1:]

    @shared.guard.setting
    def arrange(*args: Any, **kwargs: Any) -> dict[str, Any] | None:
        """The arguments to give instead; None where they go through as they are."""
        if len(args) > len(names):
            return None  # Lightning's own words
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        shared.learn_backend()
        put_arguments(arguments, shared)
        return arguments

    @transparent
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        arguments = arrange(*args, **kwargs)
        if arguments is None:
            original(self, *args, **kwargs)
        else:
            original(self, **arguments)

    strategy.__init__ = __init__


def put_arguments(arguments: dict[str, Any], shared: Shared) -> None:
    for setting, name in FIELDS.items():
        asked = arguments.get(name)
        value = shared.settings.over_framework(setting, ABSENT if asked is None else asked)
        if value is not ABSENT:
            arguments[name] = value
    old, new = arguments.get("broadcast_buffers"), arguments.get("forward_sync_buffers")
    asked = old if new is None else new
    value = shared.settings.over_framework("broadcastBuffers", ABSENT if asked is None else asked)
    if value is not ABSENT and value != asked:
        arguments.pop("forward_sync_buffers", None)
        arguments["broadcast_buffers"] = value  # torch's level knows the newer name


def patch_trainer(module: Any, shared: Shared) -> None:
    """Patch `lightning.pytorch.trainer.trainer`."""
    trainer = module.Trainer
    original_init, original_fit, original_save = trainer.__init__, trainer.fit, trainer.save_checkpoint
    package = module.__name__.removesuffix(".trainer.trainer")
    asked_batches: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    """The program's own number, of trainers that have the resource's."""

    fit_signature = inspect.signature(original_fit)
    clock = shared.saving.clock
    saved = shared.guard.measuring(functools.partial(lightning_fit.saved, saving=shared.saving))

    @shared.guard.setting
    def arrange(**kwargs: Any) -> dict[str, Any]:
        asked = kwargs.get("accumulate_grad_batches")
        value = shared.settings.over_framework(
            "gradientAccumulationSteps", ABSENT if asked is None else asked
        )
        if value is not ABSENT:
            kwargs["accumulate_grad_batches"] = value
        shared.learn_accelerator(cpu_chosen=names_cpu(kwargs.get("accelerator")))
        put_size(kwargs, shared)
        lightning_fit.put_root(kwargs, shared.saving)
        return kwargs

    @transparent
    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        arguments = arrange(**kwargs)
        original_init(self, *args, **(kwargs if arguments is None else arguments))
        own, name = kwargs.get("accumulate_grad_batches"), "accumulate_grad_batches"
        if arguments is not None and arguments.get(name) != own:
            asked_batches[self] = own or 1

    @shared.guard.setting
    def prepare(made: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Where this `fit` begins by the program's own wish; None where it names nothing."""
        try:
            asked = fit_signature.bind(made, model, *args, **kwargs).arguments.get("ckpt_path")
        except TypeError:
            return None  # Lightning's own words
        own = asked_batches.pop(made, None)
        if own is not None and own != made.accumulate_grad_batches and not automatic(model):
            made.accumulate_grad_batches = own
            shared.notices.warn(
                "spec.ddp.gradientAccumulationSteps: the module optimises by hand (automatic_optimization=False), and "
                "Lightning accumulates only for automatic optimisation; accumulate in training_step"
            )
        shared.saving.fits += 1
        shared.saving.begins(int(made.global_step))
        lightning_fit.put_callbacks(made, package, shared)
        clock.ends_itself = clock.loss_is_divided = True
        return asked

    @transparent
    @functools.wraps(original_fit)
    def fit(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        asked = prepare(self, model, *args, **kwargs)
        try:
            with lightning_fit.going_on(self, asked, shared):
                return original_fit(self, model, *args, **kwargs)
        finally:
            clock.ends_itself = clock.loss_is_divided = False

    @transparent
    @functools.wraps(original_save)
    def save_checkpoint(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        with shared.saving.phase(Phase.CHECKPOINT):
            result = original_save(self, filepath, *args, **kwargs)
        saved(self, filepath)
        return result

    trainer.save_checkpoint = save_checkpoint
    trainer.__init__ = __init__
    trainer.fit = fit


def names_cpu(accelerator: Any) -> bool:
    return accelerator == "cpu" or type(accelerator).__name__ == "CPUAccelerator"


def automatic(model: Any) -> bool:
    return bool(getattr(model, "automatic_optimization", True))


def put_size(arguments: dict[str, Any], shared: Shared) -> None:
    """Nodes and processes where the program names none: Lightning refuses a product other than the world size."""
    import torch

    if arguments.get("num_nodes") is None:
        arguments["num_nodes"] = shared.worker.nodes
    if arguments.get("devices") is None and not sees_accelerator(torch):
        arguments["devices"] = shared.worker.processes_per_node
