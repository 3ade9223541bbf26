"""`torch.utils.checkpoint`: whether the program checkpoints activations in the reentrant way.

Why apart: one patched module, one file. The function of reentrant checkpointing runs in the first forward pass, so a
refusal comes before the first step; the patch takes itself away as soon as it has seen what it waits for.
"""

import functools
from typing import Any

from ddpjob_api.spec import GradientCheckpointing
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.verdicts import Verdicts


def patch(module: Any, verdicts: Verdicts, guard: Guard) -> None:
    """Patch `torch.utils.checkpoint`."""
    function = module.CheckpointFunction
    original, learn = function.forward, guard.setting(verdicts.learn_checkpointing)

    @transparent
    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        function.forward = staticmethod(original)
        learn(GradientCheckpointing.REENTRANT)
        return original(*args, **kwargs)

    function.forward = staticmethod(forward)
