"""`torch.utils.checkpoint`: whether the program checkpoints activations in the reentrant way.

Why apart: one patched module, one file. The function of reentrant checkpointing runs in the first forward pass, so a
refusal comes before the first step; the patch takes itself away as soon as it has seen what it waits for.
"""

import functools
from typing import Any

from ddpjob_api.spec import GradientCheckpointing
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.worker import Worker


def patch(module: Any, worker: Worker, verdicts: Verdicts) -> None:
    """Patch `torch.utils.checkpoint`."""
    function = module.CheckpointFunction
    original = function.forward

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        function.forward = staticmethod(original)
        if worker.live:
            verdicts.learn_checkpointing(GradientCheckpointing.REENTRANT)
        return original(*args, **kwargs)

    function.forward = staticmethod(forward)
