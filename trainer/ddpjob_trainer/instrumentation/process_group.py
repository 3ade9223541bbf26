"""`init_process_group` with the resource's backend and time-out.

Why apart: one patched module, one file. The patch is made before `torch.distributed` copies the name, so every alias
is the patched function. Groups made later by `new_group` take the resource's time-out too where their creator names
none: torch would give them its default, whatever the job's is.
"""

import functools
import inspect
import os
from typing import Any

from ddpjob_api.accelerators import ACCELERATORS
from ddpjob_api.spec import Backend, Overrides
from ddpjob_trainer.instrumentation import meeting
from ddpjob_trainer.instrumentation.effect import Effect
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.imports import replace
from ddpjob_trainer.instrumentation.settings import ABSENT, Settings, given
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.worker import Worker


def patch(
    module: Any, worker: Worker, settings: Settings, verdicts: Verdicts, effect: Effect, guard: Guard
) -> None:
    """Patch `torch.distributed.distributed_c10d`."""
    original = module.init_process_group
    signature = inspect.signature(original)
    wanted = worker.settings
    made = guard.measuring(effect.group_made)

    @guard.setting
    def arrange(*args: Any, **kwargs: Any) -> inspect.BoundArguments | None:
        """The call to make instead; None where this one goes through as it is."""
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # torch's own words
        if wanted.backend is Backend.AUTO:
            verdicts.learn_accelerator(module.torch, cpu_chosen=for_cpu(given(call.arguments, "backend")))
        elif wanted.overrides is Overrides.APPLY:
            verdicts.learn_backend(module.torch, wanted.backend)
        settings.over_process_group(call)
        if comes_to_a_store(call.arguments):
            meeting.wait(os.environ)
        return call

    @transparent
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        call = arrange(*args, **kwargs)
        result = original(*args, **kwargs) if call is None else original(*call.args, **call.kwargs)
        made(module)
        return result

    replace(module, "init_process_group", init_process_group)

    default = getattr(module, "_get_default_timeout", None)
    if default is None:
        return

    @transparent
    @functools.wraps(default)
    def get_default_timeout(backend: Any) -> Any:
        seconds = settings.default_timeout if worker.live else None
        return default(backend) if seconds is None else seconds

    replace(module, "_get_default_timeout", get_default_timeout)


def comes_to_a_store(arguments: dict[str, Any]) -> bool:
    """Whether a rank other than 0 is about to look for rank 0's store at MASTER_ADDR: `rank=0` is one itself, MPI has none."""
    if arguments.get("store") is not None or arguments.get("init_method") not in (None, "env://"):
        return False
    return arguments.get("rank") != 0 and str(arguments.get("backend")).lower() != "mpi"


def for_cpu(asked: Any) -> bool:
    """Whether a script names a backend, and none of an accelerator (`gloo`; not `cpu:gloo,cuda:nccl`)."""
    if asked is ABSENT:
        return False
    named = {part.rpartition(":")[2] for part in str(asked).lower().split(",")}
    return named.isdisjoint(known.backend.torch_name for known in ACCELERATORS)
