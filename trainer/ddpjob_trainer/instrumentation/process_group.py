"""`init_process_group` with the resource's backend and time-out.

Why apart: one patched module, one file. The patch is made before `torch.distributed` copies the name, so every alias
is the patched function. Groups made later by `new_group` take the resource's time-out too where their creator names
none: torch would give them its default, whatever the job's is.
"""

import functools
import inspect
import os
from typing import Any

from ddpjob_api.spec import Backend, Overrides
from ddpjob_trainer.instrumentation import meeting
from ddpjob_trainer.instrumentation.effect import Effect
from ddpjob_trainer.instrumentation.settings import Settings
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.worker import Worker


def patch(module: Any, worker: Worker, settings: Settings, verdicts: Verdicts, effect: Effect) -> None:
    """Patch `torch.distributed.distributed_c10d`."""
    original = module.init_process_group
    signature = inspect.signature(original)
    wanted = worker.settings

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if not worker.live:
            return original(*args, **kwargs)
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # torch's own words
        if wanted.backend is not Backend.AUTO and wanted.overrides is Overrides.APPLY:
            verdicts.learn_backend(module.torch, wanted.backend)
        settings.over_process_group(call)
        if call.arguments.get("store") is None and call.arguments.get("init_method") in (None, "env://"):
            meeting.wait(os.environ)
        result = original(*call.args, **call.kwargs)
        effect.group_made(module)
        return result

    module.init_process_group = init_process_group

    default = getattr(module, "_get_default_timeout", None)
    if default is None:
        return

    @functools.wraps(default)
    def get_default_timeout(backend: Any) -> Any:
        seconds = settings.default_timeout if worker.live else None
        return default(backend) if seconds is None else seconds

    module._get_default_timeout = get_default_timeout
