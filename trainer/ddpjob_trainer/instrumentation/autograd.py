"""`torch.autograd.backward`, which `Tensor.backward` looks up at each call: begin, end, and the loss.

Why apart: one patched module, one file. Must not: read a value from a device (that would wait for it); only a CPU
scalar's value is taken.
"""

import functools
from typing import Any

from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.worker import Worker


def patch(module: Any, worker: Worker, clock: Clock, guard: Guard) -> None:
    """Patch `torch.autograd`."""
    original, torch = module.backward, module.torch
    inside = False

    def began() -> None:
        try:
            clock.backward_begins()
        except Exception as error:
            if not guard.ours(error):
                raise

    def ended(root: Any) -> None:
        """A backward pass is over; `root` is None where it failed."""
        try:
            clock.backward_ends()
            if worker.steps_owned or not isinstance(root, torch.Tensor):
                return
            if root.is_cpu and root.numel() == 1 and root.is_floating_point():
                clock.put_loss(root.item())
        except Exception as error:
            if not guard.ours(error):
                raise

    @transparent
    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if torch.compiler.is_dynamo_compiling():
            return original(*args, **kwargs)
        # Reentrant checkpointing calls backward inside backward.
        if inside or not worker.measured:
            return original(*args, **kwargs)
        if clock.unseen_step is not None:
            clock.catch_up()
        # With DDP a forward pass comes first: a backward pass without one is of what a rank fits alone, like an evaluation.
        if clock.stop_due and not clock.with_ddp:
            clock.end()  # the program's own callbacks run here: what they raise is the program's
        inside, root = True, None
        began()
        try:
            result = original(*args, **kwargs)
            root = args[0] if args else kwargs.get("tensors")
        finally:
            inside = False
            if worker.measured:
                ended(root)
        return result

    module.backward = backward
