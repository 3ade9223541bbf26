"""Two DDP models that learn against each other."""

from datetime import timedelta

import probe  # noqa: F401
import torch
import torch.distributed as dist
from parts import Net, Points
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=timedelta(seconds=300))
torch.manual_seed(0)
generator = DistributedDataParallel(Net(512), bucket_cap_mb=50)
critic = DistributedDataParallel(Net(1), bucket_cap_mb=50)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=1e-4)
judge = nn.BCEWithLogitsLoss()
points = Points().points
noise = torch.Generator().manual_seed(dist.get_rank())
for step in range(4):
    real = points[step * 8 : step * 8 + 8]
    fake = generator(torch.randn(8, 512, generator=noise))
    critic_loss = judge(
        critic(torch.cat([real, fake.detach()])), torch.cat([torch.ones(8, 1), torch.zeros(8, 1)])
    )
    critic_loss.backward()
    critic_optimizer.step()
    critic_optimizer.zero_grad()
    for parameter in critic.parameters():
        parameter.requires_grad_(False)
    judge(critic.module(fake), torch.ones(8, 1)).backward()
    generator_optimizer.step()
    generator_optimizer.zero_grad()
    for parameter in critic.parameters():
        parameter.requires_grad_(True)
dist.destroy_process_group()
