"""Steps, micro-batches, phases and samples, counted on the page.

Why apart: this is the hot path, which a training step passes several times, so slot numbers are constants of this
module and seconds are added to the page directly (what a step costs: `benchmarks/metrics_overhead.py`).
Must not: touch torch, wait for a device, or do more than look at two words when nobody asks to stop.

Time between two events belongs to a phase: forward to backward is forward; step to forward is data (whatever the
program does there); backward to step is other. What a rank waits for others inside a phase is taken out of it
(`waited`), so that a slow rank shows its own excess, and the others that they wait. On a device all of this is host
time, and the device's own time comes before it (`device_time`).
"""

import time
import weakref
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, NoReturn

from ddpjob_api.exits import Exit
from ddpjob_api.page import STEP_BOUNDS, Phase, Slot
from ddpjob_trainer import boundary
from ddpjob_trainer.device_time import Measured
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.worker import Worker

monotonic = time.monotonic

BETWEEN, FORWARD, BACKWARD, OPTIMIZER = (
    int(phase) for phase in (Phase.BETWEEN, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
)
EVALUATION = int(Phase.EVALUATION)
PHASE, PHASE_SINCE = int(Slot.PHASE), int(Slot.PHASE_SINCE)
EXIT_CODE = int(Slot.EXIT_CODE)
STEP, GENERATION_STEPS, LAST_STEP_AT = int(Slot.STEP), int(Slot.GENERATION_STEPS), int(Slot.LAST_STEP_AT)
STEP_SECONDS, FIRST_STEP_AT = int(Slot.STEP_SECONDS), int(Slot.FIRST_STEP_AT)
MICRO_BATCHES, MICRO_BATCHES_SYNCED = int(Slot.MICRO_BATCHES), int(Slot.MICRO_BATCHES_SYNCED)
BACKWARDS, ACCUMULATION = int(Slot.BACKWARDS), int(Slot.OBSERVED_ACCUMULATION)
LOSS, LEARNING_RATE = int(Slot.LOSS), int(Slot.LEARNING_RATE)
UNMEASURED = int(Slot.UNMEASURED)
DATA_SECONDS, OTHER_SECONDS = int(Slot.DATA_SECONDS), int(Slot.OTHER_SECONDS)
COMM_EXPOSED_SECONDS, STEP_DURATIONS = int(Slot.COMM_EXPOSED_SECONDS), int(Slot.STEP_DURATIONS)

SECONDS = [0] * len(Phase)
"""Slot of a phase's seconds; 0 (BETWEEN) where the next event decides."""
SECONDS[FORWARD] = int(Slot.FORWARD_SECONDS)
SECONDS[BACKWARD] = int(Slot.BACKWARD_SECONDS)
SECONDS[OPTIMIZER] = int(Slot.OPTIMIZER_SECONDS)
SECONDS[EVALUATION] = int(Slot.EVALUATION_SECONDS)
SECONDS[int(Phase.CHECKPOINT)] = int(Slot.CHECKPOINT_SECONDS)

NOT_SYNCED = -1.0
"""Instead of a share: the backward pass meets nobody."""
SUCCEEDS_AFTER = 32
"""Steps of others without one of the primary optimizer, after which it is not the training's any more: more than a GAN's
critic makes for one of its generator."""
OBSERVED_STEPS = 10
"""Steps in which accumulation is compared with what the resource asks for."""


class Stopped(SystemExit):
    """All ranks end after this step, as asked."""


class Clock:
    """The counts of this process.

    One optimizer is primary, the first that steps; its steps are the training's, until another training follows in the
    same process. All ranks change over at the same step: steps of one rank alone (rank 0 fits a probe while the others
    wait at a barrier) are none of a training.
    """

    def __init__(self, worker: Worker, notices: Notices) -> None:
        self._worker = worker
        self._notices = notices
        self._slots = worker.page.slots
        self._device = worker.device_time
        self._mark = 0.0
        self._phase = BETWEEN
        self._share = 0.0
        """Part of the backward pass to come that is waiting for other ranks, as last sampled."""
        self._on_device: Measured | None = None
        """What the micro-batch takes on a device, where it trains on one."""
        self._backward_began = 0.0
        self.backward_seconds = 0.0
        """Of the newest synchronised backward pass."""
        self._primary: weakref.ref[Any] | None = None
        self._of_others = 0
        """Steps of other optimizers since the primary's newest."""
        self.collectives: Callable[[], int] = lambda: 0
        """How many this rank has begun; 0 where that tells nothing of a step."""
        self._begun = 0
        """Those before the newest step, of whatever optimizer."""
        self._alone = False
        """The newest step was of this rank alone, and is not counted."""
        self.with_ddp = False
        """The newest step that counts had a forward pass of a DDP model."""
        self._micro_batches = 0.0
        self.trains_a_model: Callable[[Any], bool] = lambda _optimizer: False
        """Whether an optimizer changes parameters of a DDP model."""
        self.steps = 0
        """Optimizer steps of the training in this process."""
        self.all_steps = 0
        """Those of other optimizers too."""
        self.models = 0
        """DDP objects that were made."""
        self.training = 0
        """Those that live and have made a forward pass with gradients."""
        self.loss_is_divided = False
        """A framework divides the loss by the micro-batches of a step, so a step's loss is their sum."""
        self.ends_itself = False
        """A framework owns the loop: where all ranks stop, it saves and ends when it is done with the step."""
        self.stop_requested = False
        self._requested_at = 0
        """Steps that had been made by then."""
        self.stop_due = False
        """The step after which all ranks end is done, and what the program does after its step may not be."""
        self.unseen_step: Any = None
        """The optimizer of a step that compiled code has made, and that is not counted yet."""
        self.stepped: Callable[[Any], None] = lambda _optimizer: None
        """Counts a step and does what follows from it."""
        self._loss = 0.0
        # The window: since the last optimizer step.
        self._backwards = 0
        self._synced = 0
        self._before_step = float("inf")
        """Backward passes when the newest optimizer step that was seen to begin began."""
        self._before = (0, 0)
        """(backward passes, synchronised ones) of the window before."""

    @property
    def accumulation(self) -> int | None:
        """Backward passes of the newest complete window; None where several models share it, and where there is none."""
        return (self._before[0] or None) if self.training <= 1 else None

    def _enter(self, phase: int, idle: int) -> float:
        """Close the phase that ends now (`idle`: whose seconds it is, if nobody's so far) and begin another."""
        now = monotonic()
        if self._worker.steps_owned:
            return now
        slots = self._slots
        if self._mark:
            seconds = now - self._mark
            if self._device.left and self._phase != OPTIMIZER:
                seconds = self._device.passed(seconds)
            slots[SECONDS[self._phase] or idle] += seconds
        self._mark = now
        self._phase = phase
        slots[PHASE_SINCE] = now
        slots[PHASE] = phase
        return now

    def catch_up(self) -> None:
        """Count the step that compiled code has made since the last event, where there is one (`unseen_step`)."""
        optimizer, self.unseen_step = self.unseen_step, None
        if self._worker.measured:
            self._slots[UNMEASURED] = 0
        self.stepped(optimizer)

    def step_compiled(self) -> None:
        """A step is compiled, maybe with all that could be seen of it: no steps are no hang until one is counted."""
        self._slots[UNMEASURED] = 1

    def forward(self, *, synced: bool, share: float, on_device: Measured | None) -> None:
        """A forward pass with gradients begins; in its backward pass `share` of the time will be waiting."""
        self._on_device = on_device
        self._enter(FORWARD, DATA_SECONDS)
        slots = self._slots
        slots[MICRO_BATCHES] += 1
        if synced:
            slots[MICRO_BATCHES_SYNCED] += 1
            self._synced += 1
            self._share = share
        else:
            self._share = NOT_SYNCED

    def waited(self, seconds: float) -> None:
        """The phase has waited this long for other ranks."""
        self._slots[COMM_EXPOSED_SECONDS] += seconds
        self._mark += seconds

    def evaluate(self) -> None:
        """A forward pass without gradients begins."""
        if self._phase != EVALUATION:
            self._enter(EVALUATION, DATA_SECONDS)
        elif not self._worker.steps_owned:
            self._slots[PHASE_SINCE] = monotonic()

    def backward_begins(self) -> None:
        self._backward_began = self._enter(BACKWARD, OTHER_SECONDS)

    def backward_ends(self) -> None:
        share = self._share
        if self._on_device is not None:
            self._device.launched(self._on_device, synced=share >= 0.0)
            # A backward pass without a forward pass of a DDP model is not of this kind.
            self._on_device = None
        if share >= 0.0:
            self.backward_seconds = seconds = monotonic() - self._backward_began
            if share:
                self.waited(seconds * share)
        self._enter(BETWEEN, OTHER_SECONDS)
        self._backwards += 1
        self._slots[BACKWARDS] += 1

    def put_loss(self, loss: float) -> None:
        if self.loss_is_divided:
            self._loss += loss
        else:
            self._slots[LOSS] = loss

    def enter(self, phase: Phase) -> None:
        """Something begins that is no part of a step: saving, loading, evaluating."""
        self._enter(int(phase), OTHER_SECONDS)

    def leave(self) -> None:
        self._enter(BETWEEN, OTHER_SECONDS)

    def step_begins(self) -> None:
        self._before_step = self._backwards
        self._enter(OPTIMIZER, OTHER_SECONDS)

    def step_ends(self, optimizer: Any) -> bool:
        """One optimizer step is done; True where it was the primary optimizer's."""
        now = self._enter(BETWEEN, OTHER_SECONDS)
        self.all_steps += 1
        begun, self._begun = self._begun, self.collectives()
        primary = self._primary() if self._primary is not None else None
        if primary is not optimizer:
            if 0 < begun == self._begun and not self.trains_a_model(optimizer):
                self._backwards = 0  # a fit of its own is no part of the window
                self._alone, self._slots[UNMEASURED] = True, 1  # and no hang, however long it takes
                return False
            self._of_others += 1
            if primary is not None and self._of_others <= SUCCEEDS_AFTER:
                return False
            self._primary = weakref.ref(optimizer)
        self._of_others = 0
        self.steps += 1
        slots = self._slots
        if self._alone:
            self._alone, slots[UNMEASURED] = False, 0
        self.with_ddp, self._micro_batches = slots[MICRO_BATCHES] > self._micro_batches, slots[MICRO_BATCHES]
        if self._backwards > self._before_step + 1:
            self._backwards = self._synced = (
                0  # a closure is evaluated several times (LBFGS): no accumulation
            )
        slots[ACCUMULATION] = self._backwards
        if self.steps <= OBSERVED_STEPS:
            self._compare_windows()
        self._before = (self._backwards, self._synced)
        self._backwards = self._synced = 0
        if not self._worker.steps_owned:
            rate = optimizer.param_groups[0].get("lr")
            if type(rate) is float:
                slots[LEARNING_RATE] = rate
            last = slots[LAST_STEP_AT]
            if last:
                seconds = now - last
                slots[STEP_SECONDS] += seconds
                slots[STEP_DURATIONS + bisect_left(STEP_BOUNDS, seconds)] += 1
            else:
                slots[FIRST_STEP_AT] = now
            slots[LAST_STEP_AT] = now
            slots[GENERATION_STEPS] = self.steps
            if self.loss_is_divided:
                slots[LOSS], self._loss = self._loss, 0.0
            slots[STEP] += 1
        return True

    def model_made(self) -> None:
        """A DDP object is there; that its ranks met in making it makes no later step one of them all."""
        self.models += 1
        self._begun = self.collectives()

    def asked_to_stop(self) -> bool:
        """Hold here, if the launcher says so; True where every rank ends after this step."""
        slots = self._slots
        if self._worker.steps_owned or not boundary.reach(self._worker.page, int(slots[STEP])):
            return False
        if not self.ends_itself:
            return True
        if not self.stop_requested:
            self.stop_requested, self._requested_at = True, self.steps
        # Its batch may hold several optimizer steps, and it saves when it is done with the batch.
        return self.steps - self._requested_at > SUCCEEDS_AFTER

    def last_step_done(self) -> None:
        """All ranks end after the step that was just made, each where its next pass begins.

        What belongs to a step comes after it in most loops: the scheduler, the scaler's update, averaged weights, the
        counter, and what an optimizer that is wrapped in another one has to tell the other ranks. It is the same place
        for a rank without callbacks: one that were gone already would leave the others alone in the collectives between.

        Raises:
            Stopped: a framework owns the loop, and did not end it.
        """
        if self.ends_itself:
            self.end()
        self.stop_due = True

    def is_primary(self, optimizer: Any) -> bool:
        return self._primary is not None and self._primary() is optimizer

    def end(self) -> None:
        """End after the newest step, if this is a rank; a process that it forked goes on.

        Raises:
            Stopped: all ranks stop here.
        """
        self.stop_due = False  # a callback may well make a forward pass
        if not self._worker.live:
            return
        if not self._worker.stop_callbacks:
            self._worker.say(
                f"stopped on request after step {self._slots[STEP]:.0f}; the program registered no on_stop callback, so "
                "it goes on from its own last checkpoint"
            )
        self.stop()

    def stop(self) -> NoReturn:
        """Call what the program registered for this moment, and end.

        Raises:
            Stopped: always.
        """
        self._slots[PHASE] = Phase.CHECKPOINT
        for callback in self._worker.stop_callbacks:
            callback()
        self._slots[EXIT_CODE] = Exit.STOPPED
        raise Stopped(self._worker.stop_code)

    def _compare_windows(self) -> None:
        """Say where accumulation is not what the resource asks for, or costs more than it should.

        Two equal windows in a row, because a skipped step (a gradient scaler's first ones) joins two. With several
        DDP models in training the counts are sums over them and say nothing.
        """
        passes = self._backwards
        if (
            self.steps < 2
            or self.models == 0
            or self.training > 1
            or passes == 0
            or (passes, self._synced) != self._before
        ):
            return
        wanted = self._worker.settings.gradient_accumulation_steps
        if wanted is not None and wanted != passes:
            self._notices.warn(
                f"spec.ddp.gradientAccumulationSteps: the resource says {wanted} and the program makes {passes} "
                f"backward pass{'es' if passes > 1 else ''} per optimizer step; a program owns its loop, so let it "
                "read the environment variable DDPJOB_GRADIENT_ACCUMULATION_STEPS, or give the resource the same number"
            )
        if passes > 1 and self._synced == passes:
            self._notices.warn(
                f"accumulation without no_sync: {passes} all-reduces per optimizer step where 1 is enough; run all but "
                "the last micro-batch, forward and backward, under `with model.no_sync():`"
            )
