"""A training whose ranks take turns in being slow, in turn with their data, forward and backward.

Each window of steps is injected as the schedule says; each rank keeps its own sums at the window's ends, so that a
window's verdict is of exactly its steps. A window in which a rank had to wait for a core for long is made again: a busy
machine makes stragglers of its own. Arguments: folder for the sums, milliseconds, steps of a window, and the
windows as `rank:phase`, or `-`; the last one, after `+`, lasts until the folder has a file `end`.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddpjob_trainer.launcher.exposition import sums
from ddpjob_trainer.worker import current

SETTLING = 4
"""Steps before a window: torch's clock is sampled, and a change is seen by the next samples."""


class Slow(torch.autograd.Function):
    """Sleeps on the way back."""

    @staticmethod
    def forward(ctx, x, sleep):
        ctx.sleep = sleep
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *grads):
        ctx.sleep("backward_compute")
        return grads[0], None


class Model(nn.Module):
    def __init__(self, sleep) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 1)
        self.norm = nn.BatchNorm1d(64)
        self.sleep = sleep

    def forward(self, x):
        self.sleep("forward")
        return self.last(Slow.apply(self.norm(self.first(x)), self.sleep)).square().mean()


folder, seconds, count = Path(sys.argv[1]), float(sys.argv[2]) / 1000, int(sys.argv[3])
windows, _, lasting = " ".join(sys.argv[4:]).partition("+")
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, now = dist.get_rank(), "-"


def sleep(phase: str) -> None:
    if now == f"{rank}:{phase}":
        time.sleep(seconds)


model = DistributedDataParallel(Model(sleep))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worker = current()
assert worker is not None


def step() -> None:
    sleep("data_wait")
    optimizer.zero_grad()
    model(torch.randn(8, 32)).backward()
    optimizer.step()


def steps(count: int) -> list[float]:
    for _ in range(count):
        step()
    return list(sums(worker.page))


def waited_for_a_core() -> float:
    """Seconds so far."""
    return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9


def window(injected: str) -> tuple[str, list[float], list[float]]:
    """What it was told, and the sums at the begin and the end of a window that nothing else disturbed."""
    global now
    now = injected
    while True:
        waited = waited_for_a_core()
        before, after = steps(SETTLING), steps(count)
        longest = torch.tensor(waited_for_a_core() - waited)
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        if longest < count * seconds / 2:
            return injected, before, after


steps(20)
kept = [window(injected) for injected in windows.split()]
(folder / f"sums-{rank}.tmp").write_text(json.dumps(kept))
os.rename(folder / f"sums-{rank}.tmp", folder / f"sums-{rank}.json")
if lasting:
    now = lasting.strip()
    ended = torch.zeros(1)
    while not ended:
        step()
        ended[0] = float((folder / "end").exists())
        dist.all_reduce(ended)
dist.destroy_process_group()
