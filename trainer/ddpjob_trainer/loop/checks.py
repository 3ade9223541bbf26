"""What the loop asks of a task once it is on its device, in sentences.

Why apart: the loop stays a page. Must not: change anything it looks at.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ddpjob_api.rules import rule
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.loop.agreement import from_all, ranks_that_differ
from ddpjob_trainer.loop.told import Told
from ddpjob_trainer.task import Task


def dataset_size(task: Task, global_batch_size: int) -> int:
    """The number of training samples, equal on all ranks and at least one global batch.

    Raises:
        Refused: it is not.
    """
    sizes = from_all(len(task.train_dataset))  # type: ignore[arg-type]
    odd = ranks_that_differ(sizes)
    if odd:
        raise Refused(
            f"Task.train_dataset has {sizes[odd[0]]} samples on rank {odd[0]} and {sizes[0]} on rank 0; every rank must "
            "see the same dataset (the loop decides who reads what)"
        )
    size = int(sizes[0])
    if size < global_batch_size:
        raise Refused(
            f"spec.task.globalBatchSize is {global_batch_size} and Task.train_dataset has {size} samples; "
            f"use at most {size}"
        )
    return size


def model(module: nn.Module, told: Told, device: torch.device) -> None:
    """Refuse what torch cannot do with this model here.

    Raises:
        Refused: SyncBatchNorm on a CPU, or parameters that differ in shape between ranks.
    """
    if device.type == "cpu" and any(isinstance(layer, nn.SyncBatchNorm) for layer in module.modules()):
        raise Refused(rule("sync-batch-norm-cpu").sentence)
    shapes = [
        (name, tuple(value.shape)) for name, value in module.state_dict().items() if isinstance(value, Tensor)
    ]
    odd = ranks_that_differ(from_all(shapes))
    if odd:
        raise Refused(
            f"Task.model on rank {', '.join(map(str, odd))} has other parameters than on the rest; {told.task.entrypoint} "
            "must build the same model on every rank"
        )


def optimizer_and_schedule(optimizer: object, schedule: object) -> None:
    """Refuse factories that return something else.

    Raises:
        Refused: with what was returned.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise Refused(
            f"Task.optimizer returned a {type(optimizer).__name__}; expected a torch.optim.Optimizer over the parameters"
        )
    if not isinstance(schedule, torch.optim.lr_scheduler.LRScheduler):
        raise Refused(
            f"Task.schedule returned a {type(schedule).__name__}; expected an LRScheduler (stepped once per optimizer "
            "step)"
        )


def loss(returned: Any) -> tuple[Tensor, Tensor | float]:
    """The loss's two values.

    Raises:
        Refused: it returned something else.
    """
    expected = "expected (loss_sum, count): a scalar tensor with gradients and the number it is the sum over"
    if not isinstance(returned, tuple) or len(returned) != 2:
        what = (
            f"a tuple of {len(returned)}" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        )
        raise Refused(f"Task.loss returned {what}; {expected}")
    loss_sum, count = returned
    if not isinstance(loss_sum, Tensor) or loss_sum.numel() != 1:
        shape = (
            f"of shape {tuple(loss_sum.shape)}" if isinstance(loss_sum, Tensor) else type(loss_sum).__name__
        )
        raise Refused(f"Task.loss returned a loss_sum {shape}; {expected}")
    if not loss_sum.requires_grad:
        raise Refused(f"Task.loss returned a loss_sum that no parameter has a part in; {expected}")
    if isinstance(count, bool) or not isinstance(count, (int, float, Tensor)):
        raise Refused(f"Task.loss returned a count that is a {type(count).__name__}; {expected}")
    if isinstance(count, Tensor) and count.numel() != 1:
        raise Refused(f"Task.loss returned a count of shape {tuple(count.shape)}; {expected}")
    return loss_sum.reshape(()), count
