"""The training that `metrics_overhead.py` measures: blocks with and without the hooks in turn, in one process.

Without: torch's own functions are put back and the global optimizer hooks taken out. Under plain python there is
nothing to take out, so that both runs make the same training and their losses can be compared to the last bit.
"""

import argparse
import gc
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as optimizers

from ddpjob_trainer.instrumentation.reducer import Reducer

TORCHS_RATE = 100
"""Iterations between two samples of DDP's logger, unless our reading of it sets another one."""


class Hooks:
    """What the instrumentation put into torch."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._places = [(DistributedDataParallel, "_pre_forward"), (torch.autograd, "backward")]
        self._ours = [getattr(owner, name) for owner, name in self._places]
        self.there = all(hasattr(each, "__wrapped__") for each in self._ours)
        self._registries = [optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks]
        self._hooks = [dict(registry) for registry in self._registries]
        self._on = True
        self._reading = [each for each in gc.get_objects() if isinstance(each, Reducer)]
        """What samples the model's logger, at a rate of its own choice."""
        assert len(self._reading) == self.there

    def switch(self, on: bool) -> None:
        if not self.there or on == self._on:
            return
        self._on = on
        for (owner, name), ours in zip(self._places, self._ours, strict=True):
            setattr(owner, name, ours if on else ours.__wrapped__)
        for registry, hooks in zip(self._registries, self._hooks, strict=True):
            registry.clear()
            registry.update(hooks if on else {})
        reading = self._reading[0]
        if on:
            # It has counted no step of the block without hooks, and must not count its seconds.
            reading._sampled_at = 0.0
        self._model.reducer._set_ddp_runtime_logging_sample_rate(reading._rate if on else TORCHS_RATE)


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

    def block() -> dict[str, float]:
        """Seconds per step, the mean of a block."""
        wall, cpu = time.perf_counter(), time.thread_time()
        for step in range(chosen.steps):
            loss = model(batches[step % 16]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        return {"wall": wall / chosen.steps, "cpu": cpu / chosen.steps}

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
