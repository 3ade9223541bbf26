"""The end of each optimizer step, by torch's global hooks: counts, boundary, and the first reading of the settings.

Why apart: one patched module, one file.
"""

import contextlib
from pathlib import Path
from typing import Any

from ddpjob_api.page import Slot
from ddpjob_trainer import learned
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.effect import Effect
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.worker import Worker

PUBLISHED_STEPS = (1, 3)
"""After the first step; and after the third, when the buckets are rebuilt and the accumulation is known."""

SEQUENCE = int(Slot.COLLECTIVE_SEQUENCE)


def patch(module: Any, worker: Worker, clock: Clock, effect: Effect, saving: Saving, guard: Guard) -> None:
    """Register with `torch.optim.optimizer`."""
    slots = worker.page.slots

    @guard.measuring
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        clock.step_begins()

    @guard.measuring
    def count(optimizer: Any) -> bool:
        """Whether a step of the training is done, and what follows from it."""
        if not clock.step_ends(optimizer):
            return False
        slots[SEQUENCE] = effect.collective_sequence()
        if clock.steps == 1:
            saving.first_step()
            effect.first_step(optimizer)
        if clock.steps in PUBLISHED_STEPS:
            effect.publish()
        if clock.steps == 1 and worker.imports_file is not None:
            learn_imports(worker.imports_file)
        return clock.asked_to_stop()

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if count(optimizer):
            clock.stop()  # the program's own callbacks run here: what they raise is the program's

    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def learn_imports(path: Path) -> None:
    """For the next generation's standby, which can do without: it then imports less."""
    with contextlib.suppress(OSError):
        learned.write(path)
