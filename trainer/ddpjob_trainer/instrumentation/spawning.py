"""`torch.multiprocessing.spawn`: a program that starts its ranks itself is told that they are none of the job's.

Why apart: one patched module, one file. A child has no page and gets no settings: DataLoader workers and helpers are
started in the same ways, and the job has as many ranks as the resource says. Must not: change how a child starts.
"""

import functools
from typing import Any

from ddpjob_api.page import Slot
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.worker import Worker


def patch(module: Any, worker: Worker, notices: Notices, guard: Guard) -> None:
    """Patch `torch.multiprocessing.spawn`, before its package takes the names from there."""
    original = module.start_processes

    @guard.setting
    def say() -> None:
        if not worker.page[Slot.GENERATION_STEPS]:
            worker.page[Slot.UNMEASURED] = (
                1  # they may be the training: until this rank makes a step, it is not hung
            )
        notices.warn(
            "the program starts processes of its own (torch.multiprocessing): they are no ranks of this job, so "
            "spec.ddp has no effect in them and they are not measured; if they train, let each process that DDPJob "
            "starts be a rank (spec.processesPerNode), and call what they would run directly"
        )

    @transparent
    @functools.wraps(original)
    def start_processes(*args: Any, **kwargs: Any) -> Any:
        say()
        return original(*args, **kwargs)

    module.start_processes = start_processes
