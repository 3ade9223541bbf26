"""A loop on Accelerate that accumulates with `accumulate`, and wants settings of its own."""

from datetime import timedelta

import probe  # noqa: F401
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs
from parts import Net, Points
from torch import nn

accelerator = Accelerator(
    gradient_accumulation_steps=3,
    kwargs_handlers=[
        DistributedDataParallelKwargs(bucket_cap_mb=10, find_unused_parameters=True),
        InitProcessGroupKwargs(timeout=timedelta(seconds=300)),
    ],
)
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
loader = torch.utils.data.DataLoader(Points(), batch_size=8, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for points, answers in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(points), answers)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
accelerator.end_training()
