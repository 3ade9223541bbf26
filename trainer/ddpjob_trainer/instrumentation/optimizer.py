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
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.worker import Worker

PUBLISHED_STEPS = (1, 3)
"""After the first step; and after the third, when the buckets are rebuilt and the accumulation is known."""

SEQUENCE, UNMEASURED = int(Slot.COLLECTIVE_SEQUENCE), int(Slot.UNMEASURED)


def patch(module: Any, worker: Worker, clock: Clock, effect: Effect, saving: Saving, guard: Guard) -> None:
    """Register with `torch.optim.optimizer`."""
    slots = worker.page.slots
    torch = module.torch

    def begins() -> None:
        try:
            clock.step_begins()
        except Exception as error:
            if not guard.ours(error):
                raise

    @transparent
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_dynamo_compiling():
            if clock.unseen_step is not None:
                clock.catch_up()
            if clock.stop_due and clock.is_primary(optimizer):
                clock.end()  # no pass of this step was seen
            if worker.measured:
                begins()

    def count(optimizer: Any) -> bool:
        """Whether a step of the training is done."""
        if not clock.step_ends(optimizer):
            return False
        slots[SEQUENCE] = effect.collective_sequence()
        if clock.steps <= PUBLISHED_STEPS[-1]:
            learn(optimizer)
        return True

    def learn(optimizer: Any) -> None:
        """What the first steps show."""
        if clock.steps == 1:
            slots[UNMEASURED] = 0
            saving.first_step()
            effect.first_step(optimizer)
        if clock.steps == PUBLISHED_STEPS[-1]:
            effect.alone()
        if clock.steps in PUBLISHED_STEPS:
            effect.publish()
        if clock.steps == 1 and worker.imports_file is not None:
            learn_imports(worker.imports_file)

    def finished(optimizer: Any) -> bool:
        """Count a step; whether all ranks end after it."""
        try:
            return count(optimizer) and clock.asked_to_stop()
        except Exception as error:
            if not guard.ours(error):
                raise
            return False

    @transparent
    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            clock.unseen_step = optimizer  # each time that the compiled code has run
        elif worker.measured and finished(optimizer):
            clock.last_step_done()

    def stepped(optimizer: Any) -> None:
        if worker.measured and finished(optimizer):
            clock.last_step_done()

    @guard.measuring
    def end() -> None:
        optimizer, clock.unseen_step = clock.unseen_step, None
        if optimizer is not None:
            count(optimizer)

    clock.stepped = stepped
    worker.exit_callbacks.insert(0, end)
    module.register_optimizer_step_pre_hook(before)
    module.register_optimizer_step_post_hook(after)


def learn_imports(path: Path) -> None:
    """For the next generation's standby, which can do without: it then imports less."""
    with contextlib.suppress(OSError):
        learned.write(path)
