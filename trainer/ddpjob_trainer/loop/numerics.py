"""Arithmetic of a step: precision, loss scale, gradient norm.

Why apart: these are the places where a number may stop being finite, and all of them feed the one flag that the
ranks agree on. Must not: talk to other ranks.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddpjob_api.spec import Precision

AUTOCAST = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def arithmetic(precision: Precision, device: torch.device) -> AbstractContextManager[None]:
    """Autocast for forward passes; parameters, gradients and optimizer stay as the model has them."""
    if precision is Precision.FP32:
        return nullcontext()
    return torch.autocast(device.type, dtype=AUTOCAST[precision])


@dataclass
class LossScale:
    """Dynamic loss scaling for FP16 (torch's GradScaler: same constants, same rule).

    Not GradScaler itself: it decides by what this rank sees, and it would pass over the gradients once more; here the
    ranks decide together and the scale is part of the one factor that gradients are multiplied by.
    """

    enabled: bool = False
    scale: float = 1.0
    good_steps: int = 0

    GROWTH_STEPS = 2000
    START = 65536.0

    @classmethod
    def of(cls, precision: Precision) -> "LossScale":
        return cls(enabled=True, scale=cls.START) if precision is Precision.FP16 else cls()

    def update(self, *, finite: bool) -> None:
        """Halve after a step that was skipped; double after 2000 good ones in a row."""
        if not self.enabled:
            return
        if not finite:
            self.scale, self.good_steps = self.scale * 0.5, 0
            return
        self.good_steps += 1
        if self.good_steps == self.GROWTH_STEPS:
            self.scale, self.good_steps = self.scale * 2.0, 0

    def state_dict(self) -> dict[str, float]:
        return {"enabled": self.enabled, "scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        if self.enabled and state["enabled"]:
            self.scale, self.good_steps = float(state["scale"]), int(state["good_steps"])


def gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def norm(grads: list[Tensor]) -> float:
    """The 2-norm of all gradients together; infinity or NaN if any value in them is."""
    if not grads:
        return 0.0
    return float(
        torch.linalg.vector_norm(torch.stack([each.to(grads[0]) for each in torch._foreach_norm(grads)]))
    )
