"""torch.compile around, inside and over a DDP training step: what dynamo made of each, as JSON."""

import json

import torch
import torch._dynamo as dynamo
import torch.distributed as dist
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch.nn.parallel import DistributedDataParallel as DDP


def train(mode: str) -> dict[str, object]:
    dynamo.reset()
    torch.manual_seed(0)
    dynamo.utils.counters.clear()
    counter = CompileCounter()
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    ddp = DDP(torch.compile(net, backend=counter) if mode == "inside" else net)
    model = torch.compile(ddp, backend=counter) if mode == "around" else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    made = torch.compile(step, backend=counter) if mode == "over" else step
    losses = [made(torch.randn(4, 8)).item().hex() for _ in range(5)]
    breaks = sum(dynamo.utils.counters["graph_break"].values())
    return {"losses": losses, "frames": counter.frame_count, "operators": counter.op_count, "breaks": breaks}


dist.init_process_group("gloo")
print(json.dumps({mode: train(mode) for mode in ("around", "inside", "over")}))
