"""FSDP2: the parameters are sharded, and no DDP object exists."""

import probe  # noqa: F401
import torch
import torch.distributed as dist
from parts import Points
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)], nn.Linear(512, 2))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
data = Points()
for step in range(4):
    where = slice(step * 8, step * 8 + 8)
    nn.functional.cross_entropy(model(data.points[where]), data.answers[where]).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
