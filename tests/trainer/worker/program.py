"""The plain torch DDP program that the tests run; it looks at itself from the inside and prints what it saw as JSON.

Twelve layers of exactly 1 MiB of parameters each, and buffers without parameters, so that bucket sizes can be read off.
"""

import argparse
import contextlib
import copy
import inspect
import io
import json
import os
import pickle
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BUILT_HERE = DDP


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batches", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--sync-all", action="store_true")
    parser.add_argument("--until-stopped", action="store_true")
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--arguments", type=json.loads, default={})
    return parser.parse_args()


def timeout_of(group: dist.ProcessGroup) -> float:
    return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()


class Sub(DDP):
    """A subclass, as users write them."""


def without_us(model: DDP) -> dict[str, bool]:
    """Whether copies, pickles and the class itself are as torch made them."""
    saved = io.BytesIO()
    torch.save(model, saved)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin(torch.zeros(2, 512))
    names = {*vars(model), *vars(type(model)), *model._forward_pre_hooks, *model._forward_hooks}
    return {
        "pickle": b"ddpjob" not in saved.getvalue() and b"ddpjob" not in pickle.dumps(DDP),
        "copy": type(twin) is DDP and not any("ddpjob" in str(name) for name in vars(twin)),
        "names": not any("ddpjob" in str(name) for name in names),
        "identity": BUILT_HERE is nn.parallel.DistributedDataParallel and type(model) is BUILT_HERE,
        "subclass": issubclass(Sub, DDP) and Sub.__init__ is DDP.__init__,
        "signature": "bucket_cap_mb" in inspect.signature(DDP).parameters,
    }


def main() -> None:
    chosen = options()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    rank = dist.get_rank()
    torch.manual_seed(0)
    layers = [nn.Linear(512, 512, bias=False) for _ in range(12)]
    model = DDP(
        nn.Sequential(*layers[:6], nn.BatchNorm1d(512, affine=False), *layers[6:]), **chosen.arguments
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    losses = []
    sequence = dist.group.WORLD._get_sequence_number_for_group()

    seen = {
        "backend": dist.get_backend(),
        "timeout": timeout_of(dist.group.WORLD),
        "new_group_timeout": timeout_of(dist.new_group()),
        "bucket_cap": model.bucket_bytes_cap,
        "broadcast_buffers": model.broadcast_buffers,
        "find_unused_parameters": model.find_unused_parameters,
        "static_graph": model.static_graph,
        "gradient_as_bucket_view": model.gradient_as_bucket_view,
        "accumulation_offered": os.environ.get("DDPJOB_GRADIENT_ACCUMULATION_STEPS"),
        "losses": losses,
    }

    if chosen.until_stopped:
        import ddpjob_trainer

        ddpjob_trainer.report(kind="stopped", share=torch.tensor(0.5))

        @ddpjob_trainer.on_stop
        def save() -> None:
            same = [torch.zeros(1), torch.zeros(1)]
            dist.all_gather(same, sum(p.detach().double().sum() for p in model.parameters()).float().view(1))
            print(json.dumps({**seen, "saved": True, "replicas_equal": bool(same[0] == same[1])}))

    done = 0
    while chosen.until_stopped or done < chosen.micro_batches:
        done += 1
        last = done % chosen.accumulate == 0
        if chosen.fail and rank == 1 and done == 9:
            raise ValueError("bad sample 17")
        with contextlib.nullcontext() if last or chosen.sync_all else model.no_sync():
            loss = model(torch.randn(4, 512, generator=data)).square().mean()
            loss.backward()
        losses.append(loss.item().hex())
        if last:
            optimizer.step()
            optimizer.zero_grad()
            if chosen.until_stopped:
                losses.clear()

    seen["collectives"] = dist.group.WORLD._get_sequence_number_for_group() - sequence
    seen["without_us"] = without_us(model)
    print(json.dumps(seen))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
