"""Programs that use DDP in every way that is not the usual one; what each saw, and what it did, as JSON.

Each is a function; `hostile.py` runs them one after another with the ranks it is started with.
"""

import copy
import inspect
import io
import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.parallel.distributed as distributed
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

DID = {"steps": 0, "forwards": 0, "synchronised": 0, "backwards": 0, "all_reduces": 0, "models": 0}
"""What the page must say: steps of each program's first optimizer, forward passes with gradients …"""
STEPS = 3
Losses = list[str]


def net(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, outputs))


def batches(count: int = STEPS) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    return (torch.randn(4, 8, generator=generator) for _ in range(count))


def made(model: DDP) -> DDP:
    DID["models"] += 1
    return model


def done(*models: DDP) -> None:
    """A model's training is over; torch itself says how often it reduced."""
    for model in models:
        model.reducer._set_ddp_runtime_logging_sample_rate(1)
        model.logger.set_runtime_stats_and_log()
        DID["all_reduces"] += model.logger._get_ddp_logging_data().ints_map.get("iteration", 0)


def forward(model: nn.Module, batch: torch.Tensor, *, synchronised: bool = True) -> torch.Tensor:
    DID["forwards"] += 1
    DID["synchronised"] += synchronised
    return model(batch)


def backward(loss: torch.Tensor, **options: Any) -> str:
    DID["backwards"] += 1
    loss.backward(**options)
    return loss.item().hex()


def step(optimizer: torch.optim.Optimizer, *, primary: bool = True) -> None:
    DID["steps"] += primary
    optimizer.step()
    optimizer.zero_grad()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def train(model: DDP, count: int = STEPS) -> Losses:
    optimizer, losses = sgd(model), []
    for batch in batches(count):
        losses.append(backward(forward(model, batch).square().sum()))
        step(optimizer)
    done(model)
    return losses


def two_models_against_each_other() -> Losses:
    generator, critic = made(DDP(net(8))), made(DDP(net(1), broadcast_buffers=False))
    first, second, losses = sgd(critic), sgd(generator), []
    for real in batches():
        fake = forward(generator, real)
        loss = forward(critic, torch.cat([real, fake.detach()])).square().sum()
        losses.append(backward(loss))
        step(first)
        critic.requires_grad_(False)
        losses.append(backward(critic.module(fake).sum()))
        critic.requires_grad_(True)
        step(second, primary=False)
    done(generator, critic)
    return losses


def wrapped_again() -> Losses:
    model = made(DDP(net()))
    losses = train(model)
    again = made(DDP(model.module, find_unused_parameters=True, gradient_as_bucket_view=True))
    del model
    return losses + train(again)


class Named(DDP):
    """A subclass with arguments and a forward pass of its own."""

    def __init__(self, name: str, module: nn.Module, **options: Any) -> None:
        super().__init__(module, find_unused_parameters=True, **options)
        self.name = name

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs) * 2


def subclass() -> Losses:
    model = made(Named("mine", net(), bucket_cap_mb=3))
    assert isinstance(model, DDP) and type(model) is Named
    return [*train(model), model.name, str(model.find_unused_parameters), str(model.bucket_bytes_cap)]


class Comparable(DDP):
    """It has an `__eq__` and so no hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Comparable)


def without_a_hash() -> Losses:
    model = made(Comparable(net()))
    optimizer, losses = sgd(model.module), list[str]()
    for batch in batches():
        losses.append(backward(forward(model, batch).square().sum()))
        step(optimizer)
    done(model)
    return losses


def alias() -> Losses:
    return [
        *train(made(distributed.DistributedDataParallel(net()))),
        str(distributed.DistributedDataParallel is DDP),
    ]


def in_a_thread() -> Losses:
    losses: Losses = []
    thread = threading.Thread(target=lambda: losses.extend(train(made(DDP(net())))))
    thread.start()
    thread.join()
    return losses


def communication_hook() -> Losses:
    model = made(DDP(net()))
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    losses = train(model)
    try:
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    except RuntimeError as error:
        losses.append(str(error).splitlines()[0])
    return losses


def hook_of_its_own() -> Losses:
    model, seen = made(DDP(net())), list[int]()

    def hook(state: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        state.append(bucket.buffer().numel())
        return default_hooks.allreduce_hook(dist.group.WORLD, bucket)

    model.register_comm_hook(seen, hook)
    return [*train(model), str(seen)]


def accumulation_under_nested_no_sync() -> Losses:
    model = made(DDP(net()))
    optimizer, losses = sgd(model), []
    for number, batch in enumerate(batches(6), 1):
        if number % 3:
            with model.no_sync(), model.no_sync():
                losses.append(backward(forward(model, batch, synchronised=False).sum()))
        else:
            losses.append(backward(forward(model, batch).sum()))
            step(optimizer)
    done(model)
    return losses


def uneven_inputs() -> Losses:
    model = made(DDP(net(), broadcast_buffers=False))
    optimizer, losses = sgd(model), []
    with model.join():
        for batch in batches(2 + dist.get_rank()):
            losses.append(backward(forward(model, batch).sum()))
            step(optimizer)
    done(model)
    return losses


def copies() -> Losses:
    model = made(DDP(net()))
    losses = train(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    twins = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ]
    del model
    while twins:
        losses += train(made(twins.pop()))
    return losses


def device_mesh() -> Losses:
    return train(made(DDP(net(), device_mesh=init_device_mesh("cpu", (dist.get_world_size(),)))))


def options_of_this_torch() -> Losses:
    found = {"bucket_cap_mb_list": [1, 2], "batched_grad_copy": True, "skip_all_reduce_unused_params": True}
    there = inspect.signature(DDP).parameters
    losses: Losses = []
    for name, value in found.items():
        if name in there:
            losses += train(made(DDP(net(), **{name: value})))
    return losses


def without_a_reducer() -> Losses:
    """Torch's `__init__` ends early, before all of its attributes are there; it reduces all gradients at once itself."""
    inner = net()
    inner[0].requires_grad_(False)
    delayed = [(name, each) for name, each in inner.named_parameters() if each.requires_grad]
    model = made(DDP(inner, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=inner[1].weight))
    # Its forward pass fails in torch for want of one of them, and a program trains the module.
    optimizer, losses = sgd(inner), [str(hasattr(model, "reducer"))]
    for batch in batches():
        losses.append(inner(batch).square().sum().item().hex())
        step(optimizer)
    return losses


def group_of_its_own() -> Losses:
    group = dist.new_group(list(range(dist.get_world_size())))
    losses = train(made(DDP(net(), process_group=group)))
    dist.destroy_process_group(group)
    return losses


def patched_by_the_program() -> Losses:
    original_init, original_forward = DDP.__init__, DDP.forward

    def __init__(self: DDP, module: nn.Module, **options: Any) -> None:
        original_init(self, module, **{**options, "gradient_as_bucket_view": True})

    DDP.__init__ = __init__
    DDP.forward = lambda self, inputs: original_forward(self, inputs) + 1
    try:
        model = made(DDP(net()))
        return [*train(model), str(model.gradient_as_bucket_view)]
    finally:
        DDP.__init__, DDP.forward = original_init, original_forward


def passes_that_fail() -> Losses:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.fails = net(), False

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            if self.fails:
                raise ValueError("bad sample")
            return self.net(inputs)

    model = made(DDP(Fragile()))
    optimizer, losses = sgd(model), []
    for batch in batches():
        model.module.fails = True
        try:
            forward(model, batch)
        except ValueError as error:
            losses.append(str(error))
        model.module.fails = False
        loss = forward(model, batch)
        try:
            backward(loss)  # not a scalar
        except RuntimeError as error:
            losses.append(str(error))
        losses.append(backward(loss.sum()))
        step(optimizer)
    done(model)
    return losses


def passes_of_other_kinds() -> Losses:
    """Two backward passes of one graph, gradients by hand, recomputation, evaluation."""

    class Recomputing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.net, inputs, use_reentrant=True)

    torch.manual_seed(0)
    model = made(DDP(Recomputing()))
    optimizer, losses = sgd(model), []
    for batch in batches():
        loss = forward(model, batch.requires_grad_()).square().sum()
        losses.append(backward(loss))
        step(optimizer)
        with torch.no_grad():
            losses.append(model.eval()(batch).sum().item().hex())
        model.train()
        inner = model.module.net(batch)
        [gradient] = torch.autograd.grad(inner.sum(), batch, create_graph=True)
        losses.append(gradient.norm().item().hex())
    done(model)
    return losses


def closure() -> Losses:
    model, losses = made(DDP(net(), broadcast_buffers=False)), list[str]()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for batch in batches():

        def again(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = forward(model, batch).square().sum()
            losses.append(backward(loss))
            return loss

        DID["steps"] += 1
        optimizer.step(again)
    done(model)
    return losses


def never_trained() -> Losses:
    model = made(DDP(net()))
    del model
    return []


def group_made_twice_and_again() -> Losses:
    """Last: the default group is another one afterwards."""
    rank, ranks, losses = dist.get_rank(), dist.get_world_size(), list[str]()
    try:
        dist.init_process_group("gloo")
    except ValueError as error:
        losses.append(str(error))
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = [listener.getsockname()[1]]
        dist.broadcast_object_list(port)
        dist.barrier()
        dist.destroy_process_group()
        losses.append(str(dist.is_initialized()))
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port[0]}", rank=rank, world_size=ranks)
        losses += train(made(DDP(net())))
    return losses


PROGRAMS: tuple[Callable[[], Losses], ...] = (
    two_models_against_each_other, wrapped_again, subclass, without_a_hash, alias, in_a_thread, communication_hook, hook_of_its_own,
    accumulation_under_nested_no_sync, uneven_inputs, copies, device_mesh, options_of_this_torch, without_a_reducer, group_of_its_own,
    patched_by_the_program, passes_that_fail, passes_of_other_kinds, closure, never_trained,
    group_made_twice_and_again,
)  # fmt: skip

if __name__ == "__main__":
    dist.init_process_group("gloo")
    seen: dict[str, Any] = {}
    for program in PROGRAMS:
        seen[program.__name__] = program()
    dist.destroy_process_group()
    print(json.dumps({"losses": seen, "did": DID}))
