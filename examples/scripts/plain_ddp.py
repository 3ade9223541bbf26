"""A plain PyTorch DDP training, as one would start it with torchrun. It knows nothing of DDPJob.

It trains a small network with BatchNorm on data that it makes itself, with settings of its own, and runs on a GPU where
there is one. `examples/script.yaml` and `examples/hf-guide.yaml` run it with other settings, without a change here.
"""

import argparse
import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--batch", type=int, default=32, help="samples per micro-batch and rank")
    parser.add_argument("--width", type=int, default=768)
    return parser.parse_args()


def batch(size: int, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in 32 dimensions, and whether more of their coordinates are positive than negative."""
    points = torch.randn(size, 32, generator=generator)
    return points.to(device), (points.sign().sum(dim=1) > 0).long().to(device)


def main() -> None:
    options = parse()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=timedelta(minutes=5))
    rank = dist.get_rank()

    torch.manual_seed(0)
    width = options.width
    model = nn.Sequential(
        nn.Linear(32, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 2),
    ).to(device)
    model = DistributedDataParallel(
        model,
        bucket_cap_mb=50,
        broadcast_buffers=True,
        find_unused_parameters=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.Generator().manual_seed(1 + rank)

    for step in range(1, options.steps + 1):
        total = 0.0
        for micro_batch in range(options.accumulate):
            last = micro_batch == options.accumulate - 1
            points, answers = batch(options.batch, data, device)
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(model(points), answers) / options.accumulate
                loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 10 == 0 or step == options.steps):
            print(f"step {step}: loss {total:.4f}")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
