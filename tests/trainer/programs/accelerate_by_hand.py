"""A loop on Accelerate that steps after every batch and has never heard of `accumulate`."""

import probe  # noqa: F401
import torch
from accelerate import Accelerator
from parts import Net, Points
from torch import nn

accelerator = Accelerator()
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Points(96), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for points, answers in loader:
    loss = nn.functional.cross_entropy(model(points), answers)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
accelerator.end_training()
