"""Gradient checkpointing: blocks whose activations are computed again in backward instead of kept.

A block's `forward` is replaced on the instance, so names in the state dict stay. Two things differ from calling
`torch.utils.checkpoint` around a block: BatchNorm's running statistics are updated once per step, not a second time
by the recomputation; and a reentrant block whose input needs no gradient (the first one) still gives its parameters
theirs.
Must not: change what is computed.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from ddpjob_api.spec import GradientCheckpointing
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.task import Task


def recompute_blocks(task: Task, mode: GradientCheckpointing) -> int:
    """Put `mode` into effect in the task's model; returns the number of blocks.

    Raises:
        Refused: the model has nothing that could be recomputed.
    """
    if mode is GradientCheckpointing.NONE:
        return 0
    blocks = list((task.checkpoint_blocks or repeated_blocks)(task.model))
    if not blocks:
        raise Refused(
            f"spec.task.gradientCheckpointing is {mode.value}, and {type(task.model).__name__} has no blocks to "
            "recompute: no nn.ModuleList or nn.Sequential with parameters in it; name them in Task.checkpoint_blocks, "
            "or set gradientCheckpointing: None"
        )
    for block in blocks:
        block.forward = wrapped(block, reentrant=mode is GradientCheckpointing.REENTRANT)
    return len(blocks)


def repeated_blocks(model: nn.Module) -> Sequence[nn.Module]:
    """What the outermost ModuleLists and Sequentials in a model hold, as far as it has parameters."""
    found: list[nn.Module] = []
    for child in [model] if isinstance(model, nn.Sequential) else model.children():
        if isinstance(child, (nn.ModuleList, nn.Sequential)):
            found += [block for block in child if any(True for _ in block.parameters())]
        else:
            found += repeated_blocks(child)
    return found


def wrapped(block: nn.Module, *, reentrant: bool) -> Callable[..., Any]:
    """The block's forward, checkpointed while it trains."""
    plain = block.forward

    def reentrant_pass(_needs_gradient: torch.Tensor, call: Callable[..., Any], *args: Any) -> Any:
        # torch runs the first pass without gradients and the recomputation with them.
        with statistics_kept(block) if torch.is_grad_enabled() else nullcontext():
            return call(*args)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), statistics_kept(block)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not block.training or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        if reentrant:
            needs_gradient = torch.ones((), requires_grad=True)
            return checkpoint(
                reentrant_pass, needs_gradient, partial(plain, **kwargs), *args, use_reentrant=True
            )
        return checkpoint(plain, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    return forward


@contextmanager
def statistics_kept(block: nn.Module) -> Iterator[None]:
    """Within it, normalisation layers use the batch's statistics and leave their running ones alone."""
    layers = [
        layer for layer in block.modules() if isinstance(layer, _NormBase) and layer.track_running_stats
    ]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        # Not track_running_stats: torch compares the saved tensors of both passes, and without the running ones
        # there would be fewer.
        layer.momentum = 0.0
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked = layer.num_batches_tracked.clone()
    try:
        yield
    finally:
        for layer, (momentum, tracked) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, tracked
