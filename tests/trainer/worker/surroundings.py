"""A program that leaves nothing of its process as it was, and then trains."""

import contextlib
import io
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

store = os.path.abspath("store")
os.environ.clear()
os.chdir("/")
sys.argv[:] = []

dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
torch.manual_seed(0)
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for _ in range(3):
    loss = model(torch.ones(2, 4)).square().sum()
    loss.backward()
    losses.append(loss.item().hex())
    optimizer.step()
    optimizer.zero_grad()
print(losses)
sys.stdout.close()
sys.excepthook = lambda kind, error, trace: print("the program's own hook:", error, file=sys.stderr)
model(torch.ones(2, 3))
