"""torch.compile around, inside and over a DDP training step, and over an optimizer's: what dynamo made of each, as JSON.

`compiled.py GROUP…`: each group is a way to configure dynamo; its variants are shapes of a program.
"""

import gc
import json
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo as dynamo
import torch.distributed as dist
from torch import nn
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import CompileCounter
from torch.nn.parallel import DistributedDataParallel as DDP

STEPS = 5
Facts = dict[str, Any]


class Plain(torch.optim.Optimizer):
    """An optimizer of the program's own; torch's break the graph by themselves at the beginning of a step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.1)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def batches() -> list[torch.Tensor]:
    return [torch.randn(4, 8) for _ in range(STEPS)]


def train(
    where: str, compiled: Callable[..., Any], optimizer: Any, *, wrap: bool = True, **full: bool
) -> list[str]:
    """The losses of a training in which the named part is compiled."""
    inner = net()
    model = inner if not wrap else DDP(compiled(inner) if where == "inside" else inner)
    run = compiled(model) if where == "around" else model
    descent = optimizer(model.parameters())

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = run(batch).sum()
        loss.backward()
        descent.step()
        for parameter in model.parameters():
            parameter.grad = None
        return loss.detach()

    if where == "over":
        step = compiled(step, **full)
    update = descent.step
    if where == "optimizer":
        descent.step = compiled(lambda: update(), **full)
    return [step(batch).item().hex() for batch in batches()]


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=torch.tensor(0.1))


def counted(variant: Callable[[Callable[..., Any]], list[str]], backend: str = "") -> Facts:
    """What a variant trained, and what dynamo counted meanwhile."""
    # Something that runs by itself, and then the optimizer of the variant before goes.
    torch.ones(1, requires_grad=True).sum().backward()
    dynamo.reset()
    gc.collect()
    counters = dynamo.utils.counters
    counters.clear()
    counter = CompileCounter()

    def compiled(target: Any, **options: Any) -> Any:
        return torch.compile(target, backend=backend or counter, **options)

    try:
        found: Facts = {"losses": variant(compiled)}
    except Exception as error:  # what torch cannot do is a fact too
        found = {"error": type(error).__name__, "words": str(error).splitlines()[0]}
    return {
        **found,
        "frames": counter.frame_count,
        "operators": counter.op_count,
        "stats": dict(counters["stats"]),
        "breaks": {reason.splitlines()[0]: count for reason, count in counters["graph_break"].items()},
        "recompiles": dict(counters["recompiles"]),
    }


def default() -> dict[str, Facts]:
    return {
        "around": counted(lambda compiled: train("around", compiled, sgd)),
        "inside": counted(lambda compiled: train("inside", compiled, sgd)),
        "over": counted(lambda compiled: train("over", compiled, sgd)),
        "optimizer": counted(lambda compiled: train("optimizer", compiled, adam)),
        "optimizer without breaks": counted(
            lambda compiled: train("optimizer", compiled, Plain, fullgraph=True)
        ),
        "optimizer that breaks, without breaks": counted(
            lambda compiled: train("optimizer", compiled, sgd, fullgraph=True)
        ),
        "over, without breaks": counted(lambda compiled: train("over", compiled, Plain, fullgraph=True)),
    }


def whole() -> dict[str, Facts]:
    """Backward passes in the graph too, where this torch can."""
    if not hasattr(dynamo.config, "trace_autograd_ops"):
        return {}
    with dynamo.config.patch(trace_autograd_ops=True):
        return {
            "whole step": counted(
                lambda compiled: train("over", compiled, Plain, wrap=False, fullgraph=True)
            ),
            "whole step with DDP": counted(lambda compiled: train("over", compiled, Plain, fullgraph=True)),
        }


def inductor() -> dict[str, Facts]:
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        return {}
    return {
        "around": counted(lambda compiled: train("around", compiled, sgd), "inductor"),
        "over": counted(lambda compiled: train("over", compiled, sgd), "inductor"),
        "optimizer": counted(
            lambda compiled: train("optimizer", compiled, Plain, fullgraph=True), "inductor"
        ),
    }


def python_reducer() -> dict[str, Facts]:
    """The reducer that dynamo can look into, with compiled autograd, as torch wants it."""

    def autograd(
        variant: Callable[[Callable[..., Any]], list[str]],
    ) -> Callable[[Callable[..., Any]], list[str]]:
        def inside(compiled: Callable[..., Any]) -> list[str]:
            with compiled_autograd._enable(compiled):
                return variant(compiled)

        return inside

    found = {"compiled autograd": counted(autograd(lambda compiled: train("around", compiled, sgd)))}
    with dynamo.config.patch(optimize_ddp="python_reducer"):
        found["python reducer"] = counted(lambda compiled: train("around", compiled, sgd))
        found["both"] = counted(autograd(lambda compiled: train("around", compiled, sgd)))
        found["both, over"] = counted(autograd(lambda compiled: train("over", compiled, Plain)))
    found["again without"] = counted(lambda compiled: train("around", compiled, sgd))
    return found


GROUPS = {"default": default, "whole": whole, "inductor": inductor, "python_reducer": python_reducer}

if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(json.dumps({name: GROUPS[name]() for name in sys.argv[1:]}))
