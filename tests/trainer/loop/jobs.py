"""What a rank of the crew is asked to do: a training, as the launcher would have it, and what came of it."""

import math
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ddpjob_api.codec import load
from ddpjob_api.page import Slot
from ddpjob_api.spec import DDP, Checkpoint
from ddpjob_api.spec import Task as Asked
from ddpjob_trainer.loop.board import Board
from ddpjob_trainer.loop.entrypoint import make_task
from ddpjob_trainer.loop.told import Told
from ddpjob_trainer.loop.trainer import Trainer
from ddpjob_trainer.page import Page


@dataclass
class Outcome:
    """One rank's."""

    done: bool
    steps: int
    losses: list[float]
    gradients: list[list[torch.Tensor]]
    parameters: dict[str, torch.Tensor]
    slots: dict[str, float]
    result: dict[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    synchronised: int = 0
    facts: list[tuple[str, Any]] = field(default_factory=list)
    """What was put on the page, in order."""


def training(
    rank: int,
    world_size: int,
    *,
    entrypoint: str,
    page: Path,
    params: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    ddp: dict[str, Any] | None = None,
    checkpoint: dict[str, Any] | None = None,
    directory: Path | None = None,
    memory: Path | None = None,
    resume: int | None = None,
    resume_dir: Path | None = None,
    stop: tuple[int, int] | None = None,
    stop_at: int = 0,
    file_size_limit: int | None = None,
    path: Path | None = None,
) -> Outcome:
    """Train. `stop`: (rank, step) that wishes to stop there; `stop_at`: the launcher's word; `path`: of modules."""
    if path is not None:
        sys.path.insert(0, str(path))
    if ":" not in entrypoint:
        entrypoint = f"tests.trainer.loop.toys:{entrypoint}"
    asked = {"entrypoint": entrypoint, "params": params or {}, "globalBatchSize": 8, **(task or {})}
    if "maxSteps" not in asked:
        asked.setdefault("epochs", 1)
    told = Told(
        task=load(Asked, asked),
        ddp=load(DDP, ddp or {}),
        checkpoint=load(Checkpoint, checkpoint) if checkpoint is not None else None,
        checkpoint_dir=directory,
        memory_dir=memory,
        resume_step=resume,
        resume_dir=resume_dir,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_world_size=world_size,
    )
    result: dict[str, Any] = {}
    losses: list[float] = []
    facts: list[tuple[str, Any]] = []
    with Page(page.with_name(f"{page.name}-{rank}"), create=True) as mapped:
        mapped[Slot.STOP_AT] = stop_at
        board = Noting(
            losses,
            page=mapped,
            report=lambda **values: result.update(values),
            put_fact=lambda fact, value: facts.append((fact.value, value)),
            speaks=False,
        )
        made = make_task(told.task.entrypoint, told.task.params, told.task.seed)
        trainer = Trainer(told, made, torch.device("cpu"), board)
        if stop is not None and stop[0] == rank:
            trainer.stop_wished = lambda: trainer.step + 1 >= stop[1]
        with largest_file(file_size_limit):
            done = trainer.run()
        slots = {slot.name: mapped[slot] for slot in Slot}
        trainer.ddp.reducer._set_ddp_runtime_logging_sample_rate(1)
        trainer.ddp.logger.set_runtime_stats_and_log()
        logged = trainer.ddp._get_ddp_logging_data()
    return Outcome(
        done=done,
        steps=trainer.step,
        losses=losses,
        gradients=getattr(trainer.optimizer, "steps", []),
        parameters={name: value.clone() for name, value in trainer.model.state_dict().items()},
        slots=slots,
        result=result,
        scale=trainer.scale.scale,
        synchronised=logged.get("iteration", 0),
        facts=facts,
    )


@contextmanager
def largest_file(size_bytes: int | None) -> Iterator[None]:
    """Within it, the kernel refuses to let a file grow beyond `size_bytes`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if size_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


class Noting(Board):
    """A board that keeps the loss of every step."""

    def __init__(self, losses: list[float], **options: Any) -> None:
        super().__init__(**options)
        self.losses = losses

    def step_made(self, step: int, values: Any) -> None:
        self.losses.append(values[Slot.LOSS])
        super().step_made(step, values)


def farthest(one: Outcome, other: Outcome) -> float:
    """The largest difference between two runs' gradients, relative to the largest gradient of the step."""
    assert len(one.gradients) == len(other.gradients)
    worst = 0.0
    for mine, theirs in zip(one.gradients, other.gradients, strict=True):
        size = max(float(grad.abs().max()) for grad in mine)
        worst = max(worst, *(float((a - b).abs().max()) / size for a, b in zip(mine, theirs, strict=True)))
    return worst


def equal(one: Outcome, other: Outcome) -> bool:
    """Whether two runs left the same bits."""
    return one.parameters.keys() == other.parameters.keys() and all(
        torch.equal(value, other.parameters[name]) for name, value in one.parameters.items()
    )


def same_losses(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(one, other, strict=True)
    )
