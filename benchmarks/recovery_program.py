"""A plain DDP training that keeps its own checkpoint, as one would write it for torchrun; both sides run it unchanged.

It writes down when it begins, has imported, has its process group, has loaded, and has made each step: one file per
process in /journal, one line per mark (Unix time; the nodes of the benchmark share the machine's clock).
"""

import os
import time
from pathlib import Path

begun = time.time()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

imported = time.time()
FOLDER = Path("/journal")
CHECKPOINT = FOLDER / "checkpoint.pt"
EVERY_STEPS = 10
PACE_SECONDS = 0.05

rank = int(os.environ["RANK"])
journal = (FOLDER / f"{time.time_ns()}-r{rank}").open("w")


def mark(what: str, at: float | None = None) -> None:
    journal.write(f"{what} {at or time.time()}\n")
    journal.flush()


mark("begun", begun)
mark("imported", imported)
dist.init_process_group("gloo")
mark("group")
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
optimizer = torch.optim.AdamW(model.parameters())
step = 0
if CHECKPOINT.exists():
    saved = torch.load(CHECKPOINT)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
mark("loaded")
while True:
    optimizer.zero_grad()
    points = torch.randn(32, 64, generator=torch.Generator().manual_seed(step * 64 + rank))
    model(points).square().mean().backward()
    optimizer.step()
    step += 1
    mark("step")
    if step % EVERY_STEPS == 0 and rank == 0:
        beside = CHECKPOINT.with_suffix(".tmp")
        torch.save(
            {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, beside
        )
        beside.replace(CHECKPOINT)
    time.sleep(PACE_SECONDS)
