"""What torch itself says inside a running program: DDP objects, their reducers' logs, process group, backward passes.

A program imports it first; what was seen last stands in `$PROBE/<rank>.json` when the program ends. It asks torch and
nobody else: nothing here knows of DDPJob.
"""

import atexit
import gc
import json
import os
import weakref
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

SEEN: dict[str, Any] = {"models": [], "steps": 0, "passes": [], "backend": None}
MODELS: list[weakref.ref[Any]] = []
PASSES = [0]
FIRST: list[weakref.ref[Any]] = []


def timeout_of(group: Any) -> float | None:
    for device in group._device_types:
        backend = group._get_backend(device)
        options = getattr(getattr(backend, "wrapped_pg", backend), "options", None)
        if options is not None:
            return float(options._timeout.total_seconds())
    return None


def look_for_models() -> None:
    for each in gc.get_objects():
        if issubclass(type(each), DistributedDataParallel):  # a weak proxy has a class of its own
            MODELS.append(weakref.ref(each))
            trained = [parameter for parameter in each.parameters() if parameter.requires_grad]
            if len(MODELS) == 1:
                # The newest layer takes part in every backward pass; torch calls this once for each.
                trained[-1].register_post_accumulate_grad_hook(count)
    SEEN["sharded"] = any(issubclass(type(each), FSDPModule) for each in gc.get_objects())


def count(parameter: Any) -> None:
    PASSES[0] += 1


def sizes_of(model: Any) -> list[int]:
    return [each.numel() * each.element_size() for each in model.parameters() if each.requires_grad]


def describe(model: Any) -> dict[str, Any]:
    model.reducer._set_ddp_runtime_logging_sample_rate(1)
    model.logger.set_runtime_stats_and_log()
    data = model.logger._get_ddp_logging_data()
    sizes = data.strs_map.get("rebuilt_bucket_sizes") or data.strs_map["bucket_sizes"]
    return {
        "bucketCapMB": model.bucket_bytes_cap / 2**20,
        "defaultCap": bool(getattr(model, "bucket_bytes_cap_default", False)),
        "broadcastBuffers": bool(model.broadcast_buffers),
        "findUnusedParameters": bool(model.find_unused_parameters),
        "staticGraph": bool(model.static_graph),
        "gradientAsBucketView": bool(model.gradient_as_bucket_view),
        "synchronised": data.ints_map.get("iteration", 0),
        "buckets": [int(size) for size in sizes.split(",")],
        "bytes": sum(sizes_of(model)),
        "largest": max(sizes_of(model)),
    }


def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not FIRST:
        FIRST.append(weakref.ref(optimizer))
        look_for_models()
        if dist.is_initialized():
            SEEN["backend"] = dist.get_backend()
            SEEN["timeoutSeconds"] = timeout_of(dist.group.WORLD)
            SEEN["subgroup"] = timeout_of(dist.new_group())
            SEEN["worldSize"] = dist.get_world_size()
    if FIRST[0]() is not optimizer:
        return
    SEEN["steps"] += 1
    SEEN["passes"].append(PASSES[0])
    PASSES[0] = 0
    SEEN["models"] = [describe(model) for each in MODELS if (model := each()) is not None]


def write() -> None:
    Path(os.environ["PROBE"], f"{os.environ['RANK']}.json").write_text(json.dumps(SEEN))


if "PROBE" in os.environ:
    register_optimizer_step_post_hook(stepped)
    atexit.register(write)
