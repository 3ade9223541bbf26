"""`torch.save` into a file: a phase of its own, so that a script's saving is neither data_wait nor a hang.

Why apart: one patched module, one file. A save into memory (`io.BytesIO`) is how programs copy and send, and stays part
of what they do there. Threads are not seen either: the training goes on beside them, and the clock has one hand.
Must not: know which of a script's files are checkpoints; only frameworks say that (`frameworks/saving.py`).
"""

import functools
import io
import threading
from typing import Any

from ddpjob_api.page import Phase, Slot
from ddpjob_trainer.instrumentation.clock import monotonic
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.imports import replace
from ddpjob_trainer.worker import Worker


def patch(module: Any, worker: Worker, saving: Saving) -> None:
    """Patch `torch.serialization`, and `torch`, which has the name from there."""
    original, torch, clock = module.save, module.torch, saving.clock
    slots, main = worker.page.slots, threading.main_thread().ident
    newest = (-1, 0.0)
    """Optimizer steps when the newest checkpoint began, and when that was: its files are saved one after the other."""

    @saving.guard.measuring
    def began(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Phase, float] | None:
        """The phase that is left for a while, and since when; None where this call is no phase."""
        file = args[1] if len(args) > 1 else kwargs.get("f")
        before = Phase(int(slots[Slot.PHASE]))
        if isinstance(file, io.BytesIO) or before is Phase.CHECKPOINT or threading.get_ident() != main:
            return None
        clock.enter(Phase.CHECKPOINT)
        return before, monotonic()

    @saving.guard.measuring
    def ended(before: Phase) -> None:
        clock.enter(before)

    @transparent
    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        nonlocal newest
        if torch.compiler.is_dynamo_compiling() or worker.steps_owned:
            return original(*args, **kwargs)
        begun = began(args, kwargs)
        if begun is None:
            return original(*args, **kwargs)
        before, since = begun
        try:
            result = original(*args, **kwargs)
        finally:
            ended(before)
        if newest[0] != clock.all_steps:
            newest = (clock.all_steps, since)
        saving.wrote(monotonic() - newest[1])
        return result

    replace(module, "save", save)
