"""A program that starts ranks of its own, as many tutorials do."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank: int, ranks: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", rank=rank, world_size=ranks
    )
    torch.manual_seed(0)
    model = DDP(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.full((2, 4), rank + 1.0)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(loss.item().hex(), model.bucket_bytes_cap, flush=True)
    dist.destroy_process_group()
    if sys.argv[1:] and rank == 1:
        raise ValueError("bad sample 17")


if __name__ == "__main__":
    mp.spawn(train, args=(2,), nprocs=2)
    print("joined")
