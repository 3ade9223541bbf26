"""One process among the others: threads, device, backend, process group.

Why apart: it is the only place that looks at the machine. Must not: touch the model.
"""

import importlib
import importlib.util
import os
from pathlib import Path

import torch
import torch.distributed as dist

from ddpjob_api.accelerators import ACCELERATORS, Accelerator
from ddpjob_api.rules import Facts, judge
from ddpjob_api.spec import Backend
from ddpjob_trainer import plugins
from ddpjob_trainer.errors import refusal, without_device
from ddpjob_trainer.loop.told import Told

CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def join(told: Told) -> torch.device:
    """Make this process a rank: the process group is up, and the device is this rank's own.

    Raises:
        Refused: the backend is not there, or its device is not, or the one that the pod asks for.
        DeviceGone: a device is not, in a later generation.
    """
    set_threads(told.local_world_size)
    seen = accelerator_seen()
    backend = resolved(told.ddp.backend, seen)
    refuse_by_rules(told, backend, seen)
    device = own_device(told, backend, seen)
    if told.ddp.timeout is None:
        dist.init_process_group(backend.torch_name)
    else:
        dist.init_process_group(backend.torch_name, timeout=told.ddp.timeout)
    return device


def set_threads(local_world_size: int) -> None:
    """Share the cores among the ranks of this node, unless OMP_NUM_THREADS says otherwise."""
    if not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(max(1, cores() // local_world_size))


def cores() -> int:
    """Cores this process may use: affinity, and in a container its quota (cgroup v2)."""
    found = len(os.sched_getaffinity(0))
    try:
        quota, period = CGROUP_CPU_MAX.read_text().split()
        return found if quota == "max" else max(1, min(found, int(quota) // int(period)))
    except (OSError, ValueError):
        return found


def accelerator_seen() -> Accelerator | None:
    """The first kind of device that torch sees, vendors' plugins imported where they are installed."""
    for known in ACCELERATORS:
        if known.plugin is not None:
            if importlib.util.find_spec(known.plugin.partition(".")[0]) is None:
                continue
            importlib.import_module(known.plugin)
        if plugins.sees(torch, known.device):
            return known
    return None


def resolved(backend: Backend, seen: Accelerator | None) -> Backend:
    if backend is not Backend.AUTO:
        return backend
    return seen.backend if seen else Backend.GLOO


def refuse_by_rules(told: Told, backend: Backend, seen: Accelerator | None) -> None:
    """The rows of the rule table that need to know the machine; the others again, for who started without `ddpjob`."""
    asked = told.accelerator if told.ddp.backend is Backend.AUTO else None
    needs_device = backend not in (Backend.GLOO, Backend.MPI)
    facts = Facts(
        name=told.name,
        spec=told.spec,
        plan=told.plan(backend),
        accelerator_present=seen is not None and (seen.backend is backend or not needs_device),
        accelerator_missing=None if asked is None or plugins.sees(torch, asked.device) else asked,
        backend_available=dist.is_backend_available(backend.torch_name),
    )
    refused = refusal(judge(facts), told.generation)
    if refused is not None:
        raise refused


def own_device(told: Told, backend: Backend, seen: Accelerator | None) -> torch.device:
    """The device of this rank. Gloo and MPI take a GPU where there is one for each rank of the node."""
    if seen is None:
        return torch.device("cpu")
    module = getattr(torch, seen.device)
    count = module.device_count()
    if told.local_world_size > count:
        if backend in (Backend.GLOO, Backend.MPI):
            return torch.device("cpu")
        raise without_device(
            f"spec.processesPerNode is {told.local_world_size} and torch sees {count} {seen.device} "
            f"device{'s' if count != 1 else ''}; every rank needs one of its own: lower processesPerNode, or ask for "
            "more in resourcesPerNode",
            told.generation,
        )
    module.set_device(told.local_rank)
    return torch.device(seen.device, told.local_rank)


def leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
