"""`torch.load`: whether a script reads a checkpoint of the job.

Why apart: one patched module, one file. Patched only where the resource has `checkpoint`.
"""

import functools
import sys
from typing import Any

from ddpjob_trainer.instrumentation.frameworks.saving import Saving


def patch(module: Any, saving: Saving) -> None:
    """Patch `torch.serialization`, and the alias in `torch` where that is there already."""
    original = module.load

    @functools.wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        saving.loaded(args[0] if args else kwargs.get("f"))
        return original(*args, **kwargs)

    module.load = load
    torch = sys.modules.get("torch")
    if getattr(torch, "load", None) is original:
        torch.load = load  # type: ignore[union-attr]
