"""What the patches of all frameworks need: the rank, the resource's wishes, the rules, and a voice.

Why apart: one value instead of five arguments, and the questions every framework has (is there an accelerator, is this
process one of several) stand here once.
"""

import os
import sys
from dataclasses import dataclass
from typing import Any

from ddpjob_trainer import plugins
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.instrumentation.settings import ABSENT, Settings
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.worker import Worker

USE_CPU = "ACCELERATE_USE_CPU"
ACCELERATORS = ("cuda", "xpu", "npu", "hpu", "mlu", "musa", "sdaa", "neuron")


@dataclass(frozen=True, kw_only=True)
class Shared:
    """The parts of the instrumentation that frameworks meet."""

    worker: Worker
    settings: Settings
    verdicts: Verdicts
    notices: Notices
    saving: Saving
    guard: Guard

    @property
    def world_size(self) -> int:
        return self.worker.nodes * self.worker.processes_per_node

    def learn_backend(self) -> None:
        """The framework is about to choose a backend.

        Raises:
            Refused: the resource names one that is not there, or whose device is not.
        """
        if self.settings.apply and self.settings.wish("backend") is not ABSENT:
            self.verdicts.learn_backend(sys.modules["torch"], self.settings.wanted.backend)

    def learn_accelerator(self, *, cpu_chosen: bool) -> None:
        """The framework is about to choose a device; `cpu_chosen`: its user names the CPU.

        Raises:
            Refused: the pod asks for an accelerator, and torch sees none of its kind.
        """
        if self.worker.accelerator is not None:
            self.verdicts.learn_accelerator(sys.modules["torch"], cpu_chosen=cpu_chosen)

    def use_cpu(self, *, chosen: bool) -> bool:
        """Have Accelerate (and Hugging Face's Trainer on it) train on the CPU together where there is nothing else.

        Without a word it makes no process group on a machine without an accelerator, and each rank would train alone;
        `accelerate launch --cpu` sets the same variable. `chosen`: the program names the CPU. Returns whether ranks
        meet on it though the program does not.

        Raises:
            Refused: as `learn_accelerator`.
        """
        self.learn_accelerator(cpu_chosen=chosen or says_yes(os.environ.get(USE_CPU)))
        if self.world_size == 1 or sees_accelerator(sys.modules["torch"]):
            return False
        return says_yes(os.environ.setdefault(USE_CPU, "true"))


def says_yes(flag: str | None) -> bool:
    """As Accelerate reads its variables."""
    return (flag or "").lower() in ("y", "yes", "t", "true", "on", "1")


def sees_accelerator(torch: Any) -> bool:
    """Whether torch sees a device of any kind but the CPU."""
    return any(plugins.sees(torch, name) for name in ACCELERATORS)
