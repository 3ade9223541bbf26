"""Evaluation: every sample once, by one rank, sums over all.

Why apart: it uses the plain model (no DDP, so ranks may make different numbers of passes) and no gradients. Must not:
change the model.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from ddpjob_api.spec import Precision
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.loop.agreement import from_all
from ddpjob_trainer.loop.loading import Batches, Collate, batches, to_device
from ddpjob_trainer.loop.numerics import arithmetic
from ddpjob_trainer.loop.order import Layout, Share
from ddpjob_trainer.task import Evaluation


def evaluate(
    model: nn.Module,
    evaluation: Evaluation,
    *,
    collate: Collate | None,
    workers: int,
    layout: Layout,
    seed: int,
    precision: Precision,
    device: torch.device,
    stop: Callable[[], bool],
) -> dict[str, float] | None:
    """The means of what the task measures, equal on all ranks; values that are not finite are left out.

    `stop` is asked after every batch; where any rank's says so, all end here with None.
    """
    source = Batches(evaluation.dataset, collate, seed, "evaluation")
    size = len(evaluation.dataset)  # type: ignore[arg-type]
    shares = shares_of(size, evaluation.batch_size or layout.micro_batch, layout)
    sums: dict[str, float] = {}
    count = 0.0
    stopped = False
    was_training = model.training
    model.eval()
    # Not inference_mode: what a model caches in its first forward pass may be needed in training later.
    with torch.no_grad():
        for loaded in batches(source, shares, workers, pinned=device.type == "cuda"):
            batch = to_device(loaded, device)
            with arithmetic(precision, device):
                measured, counted = checked(evaluation.measure(model, batch))
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            count += float(counted)
            if stop():
                stopped = True
                break
    model.train(was_training)
    means = over_ranks(sums, count, stopped=stopped)
    if means is None:
        return None
    if evaluation.summarize is not None:
        means = evaluation.summarize(means)
    return {name: value for name, value in means.items() if math.isfinite(value)}


def shares_of(size: int, batch_size: int, layout: Layout) -> Iterator[Share]:
    """The rank's part of a dataset: one contiguous piece, sizes differing by one at most."""
    begin, end = (size * (layout.rank + each) // layout.world_size for each in (0, 1))
    for start in range(begin, end, batch_size):
        positions = range(start, min(start + batch_size, end))
        yield Share(epoch=0, positions=positions, samples=tuple(positions))


def over_ranks(sums: dict[str, float], count: float, *, stopped: bool) -> dict[str, float] | None:
    """Means over all ranks' sums, added in rank order; None where a rank has stopped before its end."""
    everywhere = from_all((sums, count, stopped))
    if any(each_stopped for _, _, each_stopped in everywhere):
        return None
    total = sum(each_count for _, each_count, _ in everywhere)
    names = sorted({name for each, _, _ in everywhere for name in each})
    return {
        name: sum(each.get(name, 0.0) for each, _, _ in everywhere) / total if total else math.nan
        for name in names
    }


def checked(measured: object) -> tuple[dict[str, float], float]:
    match measured:
        case (dict() as sums, count):
            return sums, count  # type: ignore[return-value]
        case _:
            raise Refused(
                f"Task.evaluate.measure returned a {type(measured).__name__}; expected ({{name: sum}}, count)"
            )
