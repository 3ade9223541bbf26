"""What this process was told: environment in, typed values out, once.

Why apart: nothing else in the loop reads the environment. Must not: import torch, or judge what was told.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ddpjob_api.accelerators import Accelerator, of_resource
from ddpjob_api.codec import Invalid, load
from ddpjob_api.names import WorkerEnv
from ddpjob_api.plan import Plan
from ddpjob_api.spec import DDP, Backend, Checkpoint, Spec, Task
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.fence import Fence

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Told:
    """The settings of one rank."""

    task: Task
    ddp: DDP = field(default_factory=DDP)
    accelerator: Accelerator | None = None
    """What the pod asks for; None for a CPU job."""
    checkpoint: Checkpoint | None = None
    checkpoint_dir: Path | None = None
    memory_dir: Path | None = None
    """Where copies go between two checkpoints."""
    resume_step: int | None = None
    resume_dir: Path | None = None
    """The folder with that step, compared with its hashes by the launcher; None: `checkpoint_dir`, not compared."""
    fence: Fence = field(default_factory=Fence)
    name: str = "task"
    generation: int = 0
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1

    @property
    def accumulation(self) -> int:
        return self.ddp.gradient_accumulation_steps or 1

    @property
    def saves(self) -> bool:
        return self.checkpoint is not None and self.checkpoint_dir is not None

    @property
    def shared(self) -> bool:
        """Whether all nodes see one checkpoint directory."""
        return self.checkpoint is not None and self.checkpoint.persistent_volume_claim is not None

    @property
    def writes(self) -> bool:
        """Whether this rank writes the checkpoints: rank 0 of the job, or of its node where each has its own copy."""
        return self.saves and (self.rank if self.shared else self.local_rank) == 0

    @property
    def copies(self) -> bool:
        """Whether this rank writes copies in memory: each node has its own."""
        return self.memory_dir is not None and self.local_rank == 0

    @property
    def resumes_from_memory(self) -> bool:
        """Whether the step to go on from lies in this node's memory."""
        return self.resume_dir is not None and self.resume_dir == self.memory_dir

    @property
    def spec(self) -> Spec:
        """The part of the resource's spec that this process knows, for the rules."""
        return Spec(
            nodes=max(1, self.world_size // self.local_world_size),
            processes_per_node=self.local_world_size,
            task=self.task,
            ddp=self.ddp,
            checkpoint=self.checkpoint,
        )

    def plan(self, backend: Backend) -> Plan:
        return Plan(
            nodes=self.spec.nodes,
            processes_per_node=self.local_world_size,
            accelerator=None,
            backend=backend,
            accumulation=self.accumulation,
        )


def told(environ: Mapping[str, str] = os.environ) -> Told:
    """What the environment says; torchrun's names are enough beside the task itself.

    Raises:
        Refused: a variable is missing or is not what it should be.
    """
    if WorkerEnv.TASK not in environ:
        raise Refused(
            f"{WorkerEnv.TASK} is not set, so there is no task to train; start it with `ddpjob run FILE`, or set it "
            "to spec.task as JSON"
        )
    checkpoint_dir = environ.get(WorkerEnv.CHECKPOINT_DIR)
    checkpoint = (
        parsed(Checkpoint, environ, WorkerEnv.CHECKPOINT) if WorkerEnv.CHECKPOINT in environ else None
    )
    world_size = number(environ, "WORLD_SIZE", 1)
    rank = number(environ, "RANK", 0)
    found = Told(
        task=parsed(Task, environ, WorkerEnv.TASK),
        ddp=parsed(DDP, environ, WorkerEnv.SETTINGS) if WorkerEnv.SETTINGS in environ else DDP(),
        accelerator=of_resource(environ.get(WorkerEnv.ACCELERATOR)),
        checkpoint=checkpoint,
        checkpoint_dir=Path(checkpoint_dir) if checkpoint_dir else None,
        memory_dir=path(environ, WorkerEnv.MEMORY_DIR),
        resume_dir=path(environ, WorkerEnv.RESUME_DIR),
        resume_step=number(environ, WorkerEnv.RESUME_STEP, -1)
        if environ.get(WorkerEnv.RESUME_STEP)
        else None,
        name=environ.get(WorkerEnv.JOB_NAME, "task"),
        generation=number(environ, WorkerEnv.GENERATION, 0),
        rank=rank,
        local_rank=number(environ, "LOCAL_RANK", 0),
        world_size=world_size,
        local_world_size=number(environ, "LOCAL_WORLD_SIZE", 1),
        fence=fence(environ, Path(checkpoint_dir) if checkpoint_dir else None, checkpoint),
    )
    if not found.saves and checkpoint is not None:
        raise Refused(
            f"{WorkerEnv.CHECKPOINT} is set and {WorkerEnv.CHECKPOINT_DIR} is not; set it to a directory"
        )
    return found


def fence(environ: Mapping[str, str], directory: Path | None, checkpoint: Checkpoint | None) -> Fence:
    """The launcher's term file, and beside shared checkpoints one for all launchers."""
    files = [Path(environ[WorkerEnv.TERM_FILE])] if environ.get(WorkerEnv.TERM_FILE) else []
    raised = None
    if directory is not None and checkpoint is not None and checkpoint.persistent_volume_claim is not None:
        raised = directory / "term"
        files.append(raised)
    return Fence(term=number(environ, WorkerEnv.TERM, 0), files=tuple(files), raised=raised)


def parsed(kind: type[T], environ: Mapping[str, str], name: str) -> T:
    try:
        return load(kind, json.loads(environ[name]))
    except Invalid as invalid:
        raise Refused(f"{name}: {invalid}") from None
    except ValueError as error:
        raise Refused(f"{name} is not JSON: {error}") from None


def path(environ: Mapping[str, str], name: str) -> Path | None:
    text = environ.get(name)
    return Path(text) if text else None


def number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise Refused(f"{name} is {text!r}; expected a whole number") from None
