"""The training loop, on one page.

Every optimizer step: load this rank's micro-batches, forward and backward each (gradients meet in the last), agree
with the other ranks on loss, count and what comes next, scale, clip, step. Exact by construction: the loss is a sum
over all ranks and micro-batches divided by what it counted, and the order of samples is a function of seed and epoch.
Must not: read the environment, or know how anything below is done.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ddpjob_api.page import Phase, Slot
from ddpjob_api.plan import micro_batch
from ddpjob_api.rules import message_of, rule
from ddpjob_trainer.checkpoints import Position
from ddpjob_trainer.errors import Diverged, ReplicasDiffer
from ddpjob_trainer.loop import checks
from ddpjob_trainer.loop.agreement import Words, agree
from ddpjob_trainer.loop.board import Board
from ddpjob_trainer.loop.evaluating import evaluate
from ddpjob_trainer.loop.loading import Batches, batches, to_device
from ddpjob_trainer.loop.numerics import LossScale, arithmetic, gradients, norm
from ddpjob_trainer.loop.order import Layout, Share, Window, steps_left, windows
from ddpjob_trainer.loop.parts import (
    Kept,
    advance,
    default_optimizer,
    default_schedule,
    running_statistics,
    running_statistics_used,
    wrap,
)
from ddpjob_trainer.loop.recompute import recompute_blocks
from ddpjob_trainer.loop.replicas import check_replicas, parameter_hash, share_buffers
from ddpjob_trainer.loop.saving import Saver, Stateful
from ddpjob_trainer.loop.seeds import derive, seed_device
from ddpjob_trainer.loop.told import Told
from ddpjob_trainer.task import Task

CHECK_EVERY_STEPS = 100
"""Compare the replicas this often, and before every checkpoint and at the end."""
MAX_SKIPPED_IN_A_ROW = 100
"""FP16's scale needs 40 skipped steps to get from its start to the smallest number; more is divergence."""


def never() -> bool:
    return False


class Trainer:
    """One rank's training of a task."""

    # what was asked for
    told: Told
    # what the task brings, on this rank's device
    task: Task
    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    # what is fixed by where and how it runs
    device: torch.device
    layout: Layout
    total_steps: int
    # what it works with
    ddp: nn.Module
    board: Board
    saver: Saver
    scale: LossScale
    # where it stands
    step: int = 0
    epoch: int = 0
    consumed: int = 0
    skipped_in_a_row: int = 0

    def __init__(
        self,
        told: Told,
        task: Task,
        device: torch.device,
        board: Board,
        stop_wished: Callable[[], bool] = never,
    ) -> None:
        """Put everything together and restore the checkpoint to resume from.

        Raises:
            Refused: settings, task and checkpoint do not go together.
            CheckpointDamaged: the checkpoint is not whole.
        """
        asked = told.task
        self.told, self.task, self.device = told, task, device
        self.board, self.stop_wished = board, stop_wished
        self.size = checks.dataset_size(task, asked.global_batch_size)
        self.layout = Layout(
            world_size=told.world_size,
            rank=told.rank,
            micro_batch=micro_batch(asked.global_batch_size, told.world_size, told.accumulation),
            accumulation=told.accumulation,
        )
        self.total_steps = asked.max_steps or (asked.epochs or 1) * steps_left(
            self.size, asked.global_batch_size
        )
        self.model = task.model.to(device)
        checks.model(self.model, told, device)
        recompute_blocks(task, asked.gradient_checkpointing)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = (task.optimizer or default_optimizer)(self.parameters)
        self.schedule = (task.schedule or default_schedule)(self.optimizer, self.total_steps)
        checks.optimizer_and_schedule(self.optimizer, self.schedule)
        self.scale = LossScale.of(asked.precision)
        parts: dict[str, Stateful] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "scale": self.scale,
        }
        self.saver = Saver(told, parts, device, board)
        with board.phase(Phase.LOADING):
            self.resume()
        self.ddp = wrap(self.model, told.ddp, device)
        self.statistics = running_statistics(self.model)
        # staticGraph: torch crashes unless the first window of a process is synchronised throughout (pytorch#143580).
        self.unsynced_allowed = not told.ddp.static_graph
        self.source = Batches(task.train_dataset, task.collate, asked.seed, "train")
        self.result: dict[str, float] = {}

    def run(self) -> bool:
        """Train to the end; False if it stopped on request, its state saved where there is a checkpoint."""
        self.board.put({Slot.TOTAL_STEPS: self.total_steps, Slot.STEP: self.step, Slot.EPOCH: self.epoch + 1})
        if self.told.ddp.static_graph and self.layout.accumulation > 1:
            self.board.line(message_of(rule("static-graph-accumulation")))
        while self.step < self.total_steps:
            for window, loaded in self.rest_of_epoch():
                words = self.train_step(window, loaded)
                if words.save or self.saver.due_after(self.step):
                    self.save()
                elif self.saver.copy_due_after(self.step):
                    self.copy()
                if self.board.stop_here(self.step) or words.stop:
                    return self.stop()
                if self.step == self.total_steps:
                    break
            if self.step < self.total_steps:
                if not self.evaluate() or self.board.stop_here(self.step):
                    return self.stop()
                self.epoch, self.consumed = self.epoch + 1, 0
        self.save()
        if not self.evaluate():
            return self.stop()
        self.finish()
        return True

    def stop(self) -> bool:
        """Save, and say so; all ranks are here."""
        self.save()
        self.board.line(f"stopped on request after step {self.step} of {self.total_steps}")
        return False

    def rest_of_epoch(self) -> Iterator[tuple[Window, Iterator[Any]]]:
        """The optimizer steps left in this epoch, and where their batches come from."""
        left = windows(self.size, self.told.task.seed, self.epoch, self.layout, self.consumed)
        now, ahead = itertools.tee(itertools.islice(left, self.total_steps - self.step))
        shares = (share for window in ahead for share in window.shares)
        loaded = batches(self.source, shares, self.task.workers, pinned=self.device.type == "cuda")
        for window in now:
            yield window, loaded

    def train_step(self, window: Window, loaded: Iterator[Any]) -> Words:
        """One optimizer step, on all ranks or on none."""
        self.ddp.train()
        self.optimizer.zero_grad(set_to_none=True)
        if self.statistics and not window.whole:
            # A rank may have a single sample, which is normed by running statistics: rank 0's, not its own.
            share_buffers(self.model)
        statistics = Kept(self.statistics)
        counted: list[tuple[Tensor, Any]] = []
        for number, share in enumerate(window.shares):
            with self.board.phase(Phase.DATA):
                batch = next(loaded)
            with self.board.phase(Phase.TO_DEVICE):
                batch = to_device(batch, self.device)
            seed_device(derive(self.told.task.seed, "step", self.step, self.told.rank, number), self.device)
            with self.synchronised(last=number == len(window.shares) - 1), self.statistics_for(share):
                counted.append(self.forward_backward(batch, share))
        self.unsynced_allowed = True

        grads = gradients(self.parameters)
        raw_norm = norm(grads)
        loss_sum, count = (sum(map(float, each)) for each in zip(*counted, strict=True))
        words = agree(
            Words(
                loss_sum=loss_sum,
                count=count,
                finite=math.isfinite(loss_sum) and math.isfinite(raw_norm),
                stop=self.stop_wished(),
                save=self.told.rank == 0 and self.saver.time_is_up(),
            ),
            self.device,
        )
        learning_rate = float(self.optimizer.param_groups[0]["lr"])
        finite = words.finite and words.count > 0
        gradient_norm = self.update(grads, raw_norm, words.count) if finite else self.skip(statistics)
        self.scale.update(finite=finite)
        advance(self.schedule)
        self.step, self.consumed = self.step + 1, window.consumed
        self.board.count(samples=window.samples, counted=count)
        self.board.step_made(
            self.step,
            {
                Slot.EPOCH: self.epoch + 1,
                Slot.LOSS: words.loss if finite else math.nan,
                Slot.GRAD_NORM: gradient_norm,
                Slot.LEARNING_RATE: learning_rate,
            },
        )
        self.board.line_now_and_then(lambda: f"step {self.step}/{self.total_steps} loss {words.loss:.4g}")
        if finite:
            self.result["loss"] = words.loss
        if self.step % CHECK_EVERY_STEPS == 0:
            self.check_replicas()
        return words

    def forward_backward(self, batch: Any, share: Share) -> tuple[Tensor, Any]:
        """Gradients of one micro-batch are added to what is there; returns its loss and count."""
        untouched = Kept(self.model.buffers()) if share.stands_in else None
        with self.board.phase(Phase.FORWARD), arithmetic(self.told.task.precision, self.device):
            loss_sum, count = checks.loss(self.task.loss(self.ddp, batch))
        # Any constant would do here, because `update` divides by the real count; this one keeps FP16 in its range.
        weight = 0.0 if share.stands_in else self.scale.scale / self.layout.global_batch
        with self.board.phase(Phase.BACKWARD):
            (loss_sum * weight).backward()  # type: ignore[no-untyped-call]
        if untouched is not None:
            untouched.restore()
            return torch.zeros(()), 0
        return loss_sum.detach(), count

    def synchronised(self, *, last: bool) -> AbstractContextManager[None]:
        """Gradients are all-reduced in the last backward of a window, and only kept in the others."""
        return nullcontext() if last or not self.unsynced_allowed else self.ddp.no_sync()  # type: ignore[operator]

    def statistics_for(self, share: Share) -> AbstractContextManager[None]:
        """What BatchNorm norms with: the batch, but where the end of an epoch leaves a single sample for a rank."""
        alone = len(share.samples) == 1 < self.layout.micro_batch
        return running_statistics_used(self.model) if alone else nullcontext()

    def update(self, grads: list[Tensor], raw_norm: float, count: float) -> float:
        """Scale to the mean over everything counted, clip, step; returns the norm before clipping."""
        # DDP has divided by the number of ranks, `forward_backward` by the global batch.
        factor = self.layout.world_size * self.layout.global_batch / (count * self.scale.scale)
        gradient_norm = raw_norm * factor
        if self.task.clip_norm is not None:
            factor *= min(1.0, self.task.clip_norm / (gradient_norm + 1e-6))
        with self.board.phase(Phase.OPTIMIZER):
            torch._foreach_mul_(grads, factor)
            self.optimizer.step()
        self.skipped_in_a_row = 0
        return gradient_norm

    def skip(self, statistics: Kept) -> float:
        """Leave parameters and running statistics as they were, on all ranks.

        Raises:
            Diverged: too often in a row.
        """
        statistics.restore()
        self.board.add(Slot.NON_FINITE_STEPS)
        self.skipped_in_a_row += 1
        scale = f"; FP16 loss scale was {self.scale.scale:g}" if self.scale.enabled else ""
        self.board.line(f"step {self.step + 1} skipped on all ranks: loss or gradients are not finite{scale}")
        if self.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise Diverged(
                f"loss or gradients were not finite in the {self.skipped_in_a_row} steps up to {self.step + 1}; lower "
                "the learning rate, clip (Task.clip_norm), look for bad samples, or use BF16 instead of FP16"
            )
        return math.nan

    def evaluate(self) -> bool:
        """Measure what the task measures, and say it; False if all ranks ended it because a stop was asked for."""
        where = f"epoch {self.epoch + 1} step {self.step}/{self.total_steps}"
        if self.task.evaluate is not None:
            with self.board.phase(Phase.EVALUATION):
                self.board.can_stop_at(self.step)
                share_buffers(self.model)
                measured = evaluate(
                    self.model,
                    self.task.evaluate,
                    collate=self.task.collate,
                    workers=self.task.workers,
                    layout=self.layout,
                    seed=self.told.task.seed,
                    precision=self.told.task.precision,
                    device=self.device,
                    stop=lambda: self.stop_wished() or self.board.told_to_stop(self.step),
                )
                self.board.can_stop_at(0)
            if measured is None:
                return False
            self.result |= measured
        self.board.line(" ".join([where, *(f"{name} {value:.4g}" for name, value in self.result.items())]))
        self.board.report(**self.result)
        return True

    def finish(self) -> None:
        """Check once more that all ranks have the same model, and report it."""
        share_buffers(self.model)
        self.check_replicas()
        self.board.report(steps=self.step, replicasEqual=True, parameterHash=parameter_hash(self.model))

    def check_replicas(self) -> None:
        try:
            check_replicas(self.model, self.step)
        except ReplicasDiffer:
            self.board.add(Slot.REPLICA_MISMATCHES)
            raise

    def save(self) -> None:
        """Save this step, unless it is saved already or nothing is to be."""
        if not self.told.saves or self.saver.has_saved(self.step):
            return
        with self.board.phase(Phase.CHECKPOINT):
            share_buffers(self.model)
            self.check_replicas()
            self.saver.save(self.position())

    def copy(self) -> None:
        """Copy this step into memory, where the end of this process does not reach it."""
        with self.board.phase(Phase.CHECKPOINT):
            share_buffers(self.model)
            self.check_replicas()
            self.saver.copy(self.position())

    def position(self) -> Position:
        return Position(
            step=self.step,
            epoch=self.epoch,
            samples_consumed=self.consumed,
            global_batch_size=self.layout.global_batch,
            world_size=self.layout.world_size,
            dataset_size=self.size,
            seed=self.told.task.seed,
        )

    def resume(self) -> None:
        """Go on from the step that was agreed on, if there is one."""
        step = self.told.resume_step
        if step is None:
            return
        saved = self.saver.load(step, self.position())
        self.step, self.epoch, self.consumed = saved.step, saved.epoch, saved.samples_consumed
        self.board.put({Slot.RESUMED_STEP: step, Slot.CHECKPOINT_STEP: step, Slot.STEP: step})
        source = "copy in memory" if self.told.resumes_from_memory else "checkpoint"
        self.board.line(
            f"resumed from the {source} of step {step}: epoch {self.epoch + 1}, {self.consumed} samples"
        )
