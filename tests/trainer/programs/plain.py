"""Plain DDP in the shapes that people write: one option each."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import probe  # noqa: F401
import torch
import torch.distributed as dist
from parts import Net, Points
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

STEPS = 6


class Branch(nn.Module):
    """A second head that only even ranks use."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.net, self.extra, self.rank = Net(512), nn.Linear(512, 2), rank
        self.head = nn.Linear(512, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        features = self.net(inputs)
        answer = self.head(features)
        return answer + self.extra(features) if self.rank % 2 == 0 else answer


class Stream(IterableDataset):
    """Each rank its own part of an endless stream."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        points = Points()
        index = self.rank
        while True:
            yield points[index % len(points)]
            index += self.ranks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=["no_sync", "branch", "compile", "iterable", "workers", "bare"])
    shape = parser.parse_args().shape
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Branch(rank) if shape == "branch" else Net(),
        bucket_cap_mb=50,
        find_unused_parameters=shape != "branch",
    )
    run = torch.compile(model, backend="aot_eager") if shape == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    accumulate = int(os.environ.get("DDPJOB_GRADIENT_ACCUMULATION_STEPS", "1")) if shape == "no_sync" else 1
    if shape == "iterable":
        loader = DataLoader(Stream(rank, ranks), batch_size=8)
    else:
        sampler = DistributedSampler(Points())
        loader = DataLoader(Points(), 8, sampler=sampler, num_workers=2 if shape == "workers" else 0)
    batches = iter(loader)
    for step in range(STEPS):
        for micro_batch in range(accumulate):
            try:
                points, answers = next(batches)
            except StopIteration:
                batches = iter(loader)
                points, answers = next(batches)
            last = micro_batch == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = nn.functional.cross_entropy(run(points), answers) / accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
