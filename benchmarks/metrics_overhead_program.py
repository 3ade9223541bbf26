"""The training that `metrics_overhead.py` measures: blocks with and without the hooks in turn, in one process.

Without: torch's own functions are put back and the global optimizer hooks taken out. Under plain python there is
nothing to take out, so that both runs make the same training and their losses can be compared to the last bit.
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

TORCHS_RATE, OUR_RATE = 100, 20
"""Iterations between two samples of DDP's logger: torch's default, and what our reading of it sets."""


class Hooks:
    """What the instrumentation put into torch."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._places = [(DistributedDataParallel, "_pre_forward"), (torch.autograd, "backward")]
        self._ours = [getattr(owner, name) for owner, name in self._places]
        self.there = all(hasattr(each, "__wrapped__") for each in self._ours)
        self._registries = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
        self._hooks = [dict(registry) for registry in self._registries]

    def switch(self, on: bool) -> None:
        if not self.there:
            return
        for (owner, name), ours in zip(self._places, self._ours, strict=True):
            setattr(owner, name, ours if on else ours.__wrapped__)
        for registry, hooks in zip(self._registries, self._hooks, strict=True):
            registry.clear()
            registry.update(hooks if on else {})
        self._model.reducer._set_ddp_runtime_logging_sample_rate(OUR_RATE if on else TORCHS_RATE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    chosen = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = chosen.width
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    batches = torch.randn(16, 32, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    hooks = Hooks(model)
    losses: list[torch.Tensor] = []

    def block() -> float:
        """Seconds per step, the median of a block."""
        times = []
        for step in range(chosen.steps):
            began = time.perf_counter()
            loss = model(batches[step % 16]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter() - began)
            losses.append(loss.detach())
        return sorted(times)[len(times) // 2]

    for _ in range(4):
        block()
    pairs = []
    for pair in range(chosen.pairs):
        found = {}
        for on in (True, False) if pair % 2 else (False, True):
            hooks.switch(on)
            found[on] = block()
        pairs.append((found[False], found[True]))
    hooks.switch(True)
    print(
        json.dumps({"there": hooks.there, "pairs": pairs, "losses": [loss.item().hex() for loss in losses]})
    )
    dist.destroy_process_group()


main()
