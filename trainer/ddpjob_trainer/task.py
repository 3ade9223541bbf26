"""What a user writes for `task` mode: one `Task`, made of plain torch parts.

Why apart: it is the public face of the loop (`from ddpjob_trainer.task import Task`) and has no behaviour; everything
that is done with it stands in `loop/`. Must not: know of ranks, devices or files.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import Dataset

Number = Tensor | float | int

Loss = Callable[[nn.Module, Any], tuple[Tensor, Number]]
"""`loss(model, batch) -> (loss_sum, count)`: a scalar tensor with gradients, and what it is the sum over (samples,
tokens that are not masked …). The loop divides by the count of all ranks and micro-batches, so the result is the same
for every number of ranks and every accumulation."""

Measure = Callable[[nn.Module, Any], tuple[Mapping[str, Number], Number]]
"""`measure(model, batch) -> ({name: sum}, count)`: the same for evaluation, without gradients."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good the model is on samples it was not trained on; after every epoch and at the end."""

    dataset: Dataset[Any]
    """Map-style. Each sample is measured once, by one rank, whatever the number of ranks."""

    measure: Measure

    summarize: Callable[[dict[str, float]], dict[str, float]] | None = None
    """The means by name to what is reported (perplexity from a mean loss); default: the means themselves."""

    batch_size: int | None = None
    """Samples per forward pass; default: the micro-batch of training."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A training, without a word about how it is distributed.

    The callable that `spec.task.entrypoint` names returns one; `spec.task.params` are its keyword arguments. Every
    rank calls it, after torch was seeded with `spec.task.seed`.
    """

    model: nn.Module
    """On the CPU; the loop moves it to the rank's device and wraps it."""

    train_dataset: Dataset[Any]
    """Map-style: `len(dataset)`, `dataset[index]`. The same on every rank; the loop decides who reads what."""

    loss: Loss

    collate: Callable[[list[Any]], Any] | None = None
    """Samples to batch, for training and evaluation; default: torch's `default_collate`."""

    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None
    """Default: `torch.optim.AdamW(parameters)`."""

    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    """`schedule(optimizer, total_steps)`, stepped once per optimizer step; default: a constant rate."""

    evaluate: Evaluation | None = None

    clip_norm: float | None = None
    """Largest norm of all gradients together; None does not clip."""

    workers: int = 0
    """Processes per rank that load data. What they load does not depend on their number."""

    checkpoint_blocks: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """The parts of the model whose activations `gradientCheckpointing` recomputes; default: what the outermost
    `nn.ModuleList`s and `nn.Sequential`s in the model hold."""
