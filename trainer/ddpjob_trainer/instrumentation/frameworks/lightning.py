"""Lightning: `Trainer` learns the accumulation and how many nodes there are, `DDPStrategy` the rest.

Why apart: one framework, one file, for its two package names and for Fabric, whose DDPStrategy takes the same arguments
(and whose loop is the program's own, so its accumulation is observed and not set).
"""

import functools
import inspect
import weakref
from typing import Any

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

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if shared.worker.live and len(args) <= len(names):
            kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
            args = ()
            shared.learn_backend()
            put_arguments(kwargs, shared)
        original(self, *args, **kwargs)

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

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if not shared.worker.live:
            original_init(self, *args, **kwargs)
            return
        asked = kwargs.get("accumulate_grad_batches")
        value = shared.settings.over_framework(
            "gradientAccumulationSteps", ABSENT if asked is None else asked
        )
        if value is not ABSENT:
            kwargs["accumulate_grad_batches"] = value
        put_size(kwargs, shared)
        lightning_fit.put_root(kwargs, shared.saving)
        original_init(self, *args, **kwargs)
        if value is not ABSENT:
            asked_batches[self] = asked or 1

    fit_signature = inspect.signature(original_fit)

    @functools.wraps(original_fit)
    def fit(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        if not shared.worker.live:
            return original_fit(self, model, *args, **kwargs)
        own = asked_batches.pop(self, None)
        if own is not None and own != self.accumulate_grad_batches and not automatic(model):
            self.accumulate_grad_batches = own
            shared.notices.warn(
                "spec.ddp.gradientAccumulationSteps: the module optimises by hand (automatic_optimization=False), and "
                "Lightning accumulates only for automatic optimisation; accumulate in training_step"
            )
        call = fit_signature.bind(self, model, *args, **kwargs)
        lightning_fit.put_callbacks(self, package, shared)
        clock = shared.saving.clock
        clock.ends_itself = clock.loss_is_divided = True
        try:
            with lightning_fit.going_on(self, call.arguments.get("ckpt_path"), shared):
                return original_fit(*call.args, **call.kwargs)
        finally:
            clock.ends_itself = clock.loss_is_divided = False

    @functools.wraps(original_save)
    def save_checkpoint(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        return lightning_fit.save(original_save, self, filepath, args, kwargs, shared)

    trainer.save_checkpoint = save_checkpoint
    trainer.__init__ = __init__
    trainer.fit = fit


def automatic(model: Any) -> bool:
    return bool(getattr(model, "automatic_optimization", True))


def put_size(arguments: dict[str, Any], shared: Shared) -> None:
    """Nodes and processes where the program names none: Lightning refuses a product other than the world size."""
    import torch

    if arguments.get("num_nodes") is None:
        arguments["num_nodes"] = shared.worker.nodes
    if arguments.get("devices") is None and not sees_accelerator(torch):
        arguments["devices"] = shared.worker.processes_per_node
