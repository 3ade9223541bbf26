"""The training that is broken here. It runs in the pods, from a ConfigMap, as a task of the built-in loop.

It is small and random in every way a training is (dropout, shuffling, BatchNorm's statistics, a schedule), so that one
sample too many or too few shows in the final weights. It writes down what it does, on a volume that no fault touches:
`<term>-<generation>-r<rank>` has a line when this life of the rank begins, and one per optimizer step with the samples
that went into it. It reads files there: `pace` (seconds per step, so that a training lasts as long as its test
needs) and `fault-<rank>` (what this rank does to itself, once); `poison` is the number of a sample that fails always.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from ddpjob_trainer.task import Task

JOURNAL = Path("/journal")
SAMPLES = 960
RANK = "RANK"


def task(*, width: int = 64) -> Task:
    journal = Journal()
    model = nn.Sequential(
        nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4)
    )

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
        points, answers, numbers = batch
        journal.reads(numbers.tolist())
        misbehave()
        poison = JOURNAL / "poison"
        if poison.exists() and int(poison.read_text()) in numbers.tolist():
            raise ValueError(f"bad sample {poison.read_text()}")
        summed = nn.functional.cross_entropy(model(points), answers, reduction="sum")
        return summed, len(numbers)

    def optimizer(parameters: object) -> torch.optim.Optimizer:
        made = torch.optim.AdamW(parameters, lr=3e-3)  # type: ignore[arg-type]
        made.register_step_post_hook(lambda *_: journal.step())
        return made

    def schedule(optimizer: torch.optim.Optimizer, total: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=total)

    return Task(model=model, train_dataset=Points(), loss=loss, optimizer=optimizer, schedule=schedule)


class Points(Dataset[tuple[torch.Tensor, int, int]]):
    """Points in 16 dimensions, their quadrant, and their own number."""

    def __init__(self) -> None:
        self.points = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(5))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        point = self.points[index]
        return point, int(point[0] > 0) + 2 * int(point[1] > 0), index


class Journal:
    """One life of one rank, line by line; each line is one write, so that no death leaves half of it."""

    def __init__(self) -> None:
        env = os.environ
        name = f"{int(env['DDPJOB_TERM']):04d}-{int(env['DDPJOB_GENERATION']):06d}-r{env[RANK]}"
        self.file = os.open(JOURNAL / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.samples: list[int] = []
        resumed = env.get("DDPJOB_RESUME_STEP")
        self.write(resumed=int(resumed) if resumed else 0, at=time.time())

    def reads(self, numbers: list[int]) -> None:
        self.samples += numbers

    def step(self) -> None:
        self.write(samples=self.samples, at=time.time())
        self.samples = []
        time.sleep(float((JOURNAL / "pace").read_text() or 0))

    def write(self, **facts: object) -> None:
        os.write(self.file, json.dumps(facts).encode() + b"\n")


def misbehave() -> None:
    """Do to this rank what the test asks for, once."""
    order = JOURNAL / f"fault-{os.environ[RANK]}"
    if not order.exists():
        return
    what = order.read_text()
    order.unlink()
    match what:
        case "raise":
            raise ValueError("bad sample 17")
        case "exit":
            sys.exit(3)
        case "segv":
            ctypes.string_at(0)
        case "abort":
            ctypes.CDLL("libstdc++.so.6")._ZSt9terminatev()
        case "memory":
            hog = [bytearray(b"x" * (64 << 20)) for _ in range(4096)]
            print(len(hog))
        case "sleep":
            time.sleep(3600)
        case "skip":
            dist.barrier()  # the others go on to the all-reduce
