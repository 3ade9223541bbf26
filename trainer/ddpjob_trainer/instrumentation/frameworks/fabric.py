"""`Fabric`: where it would train on the CPU for want of the accelerator that the pod asks for, it is refused.

Why apart: its DDPStrategy is patched in `lightning.py`, and does not know which device was asked for; by the time the
process group is made, Fabric has named Gloo, as a script does that wants the CPU.
"""

import functools
from typing import Any

from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.lightning import names_cpu
from ddpjob_trainer.instrumentation.frameworks.shared import Shared


def patch(module: Any, shared: Shared) -> None:
    """Patch `lightning.fabric.fabric`."""
    fabric = module.Fabric
    original = fabric.__init__

    @shared.guard.setting
    def look(accelerator: Any) -> None:
        shared.learn_accelerator(cpu_chosen=names_cpu(accelerator))

    @transparent
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        look(kwargs.get("accelerator"))
        original(self, *args, **kwargs)

    fabric.__init__ = __init__
