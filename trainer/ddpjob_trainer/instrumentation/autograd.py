"""`torch.autograd.backward`, which `Tensor.backward` looks up at each call: begin, end, and the loss.

Why apart: one patched module, one file. Must not: read a value from a device (that would wait for it); only a CPU
scalar's value is taken.
"""

import functools
from typing import Any

from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.worker import Worker


def patch(module: Any, worker: Worker, clock: Clock) -> None:
    """Patch `torch.autograd`."""
    original = module.backward
    inside = False

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        # Reentrant checkpointing calls backward inside backward.
        if inside or not worker.live:
            return original(*args, **kwargs)
        inside = True
        clock.backward_begins()
        try:
            result = original(*args, **kwargs)
        finally:
            inside = False
            clock.backward_ends()
        root: Any = args[0] if args else kwargs.get("tensors")
        if getattr(root, "is_cpu", False) and root.numel() == 1 and root.is_floating_point():
            clock.put_loss(root.item())
        return result

    module.backward = backward
