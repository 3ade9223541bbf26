"""Small parts of the loop: the DDP wrapper as the settings say, defaults, and buffers that can be put back.

Must not: know of steps or ranks.
"""

import inspect
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ddpjob_api.spec import DDP


def wrap(model: nn.Module, settings: DDP, device: torch.device) -> DistributedDataParallel:
    """DDP with the settings that are given; the others stay torch's, but for gradientAsBucketView, which is on here.

    In our loop nothing holds on to gradients between steps, so the view is free: it saves a copy of all gradients.
    """
    wanted: dict[str, Any] = {
        "bucket_cap_mb": settings.bucket_cap_mb,
        buffers_keyword(): settings.broadcast_buffers,
        "find_unused_parameters": settings.find_unused_parameters,
        "static_graph": settings.static_graph,
        "gradient_as_bucket_view": settings.gradient_as_bucket_view is not False,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device], **given)


def buffers_keyword() -> str:
    """The name of broadcastBuffers in DDP: torch 2.13 renamed it, and warns of the old one."""
    known = inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


def default_optimizer(parameters: Iterable[nn.Parameter]) -> Optimizer:
    return AdamW(parameters)


def default_schedule(optimizer: Optimizer, _total_steps: int) -> LRScheduler:
    return LambdaLR(optimizer, unchanged)


def unchanged(_step: int) -> float:
    return 1.0


def advance(schedule: LRScheduler) -> None:
    """One step of the schedule, also after a skipped optimizer step: the rate is a function of the step.

    torch warns where the very first optimizer step was skipped, as FP16's often is.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        schedule.step()


@contextmanager
def running_statistics_used(model: nn.Module) -> Iterator[None]:
    """Within it, BatchNorm layers take and leave their running statistics, as in evaluation.

    For a single sample: it has no variance of its own, and torch refuses to norm it. Not for SyncBatchNorm, whose
    statistics are those of all ranks together.
    """
    layers = [
        layer
        for layer in model.modules()
        if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm) and layer.training
    ]
    for layer in layers:
        layer.training = False
    try:
        yield
    finally:
        for layer in layers:
            layer.training = True


class Kept:
    """A copy of buffers as they are now."""

    def __init__(self, buffers: Iterable[Tensor]) -> None:
        self.pairs = [(buffer, buffer.clone()) for buffer in buffers]

    def restore(self) -> None:
        with torch.no_grad():
            for buffer, before in self.pairs:
                buffer.copy_(before)


def running_statistics(model: nn.Module) -> list[Tensor]:
    """The buffers of normalisation layers: what one forward pass over a NaN would spoil for good."""
    layers = [layer for layer in model.modules() if isinstance(layer, _NormBase)]
    return [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
