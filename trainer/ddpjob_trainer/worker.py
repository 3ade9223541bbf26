"""The process as a rank of a job: what the launcher told it, and the page through which it answers.

Why apart: bootstrap, instrumentation and our own loop ask the same questions ("which settings, which generation, where
is the page"), and a program that is not part of a job gets `None` for an answer. Must not: import torch at its own
import (a script without torch pays nothing), or start a thread.
"""

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ddpjob_api.accelerators import PLUGINS, of_resource
from ddpjob_api.codec import Invalid, load
from ddpjob_api.exits import Exit
from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Fact, Slot, WorkerState
from ddpjob_api.spec import DDP, Backend, Checkpoint, Task
from ddpjob_trainer import plugins
from ddpjob_trainer.device_time import DeviceTime
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.page import Page
from ddpjob_trainer.script_checkpoints import offer

T = TypeVar("T")
MAX_RESULTS = 32
MAX_RESULT_NAME = 64
MAX_RESULT_TEXT = 256


class Worker:
    """One rank of a running job."""

    def __init__(self, page: Page, environment: Mapping[str, str]) -> None:
        """
        Raises:
            Refused: the launcher's environment cannot be read (another version of DDPJob).
        """
        self.page = page
        self.device_time = DeviceTime(page.slots)
        self.settings = settings_in(environment)
        """`spec.ddp`; its backend is Auto where the resource does not name one."""

        self.accelerator = of_resource(environment.get(WorkerEnv.ACCELERATOR))
        """What the pod asks for; None for a CPU job."""

        self.task = task_in(environment)
        """`spec.task`; None in script mode."""

        imports = environment.get(WorkerEnv.IMPORTS_FILE)
        self.imports_file: Path | None = Path(imports) if imports else None
        """Where the next generation's standby finds what to import."""

        self.job = environment.get(WorkerEnv.JOB_NAME, "job")
        self.rank = int(environment.get("RANK", "0"))
        self.local_rank = int(environment.get("LOCAL_RANK", "0"))
        self.nodes = int(environment.get("GROUP_WORLD_SIZE", "1"))
        self.processes_per_node = int(environment.get("LOCAL_WORLD_SIZE", "1"))
        self.generation = 0
        self.resume_step: int | None = None
        """Both are known once it begins."""

        self.checkpoint = checkpoint_in(environment)
        """`spec.checkpoint`; None without one."""

        directory = environment.get(WorkerEnv.CHECKPOINT_DIR)
        self.checkpoint_dir = Path(directory) if directory and self.checkpoint is not None else None

        self.live = True
        """False in a forked child: what was patched then behaves as if it were not."""

        self.stop_code = int(Exit.STOPPED)
        """What the process ends with when it stops on request; the page says STOPPED in any case."""
        self.measured = True
        """False in a forked child too, and once a part of the instrumentation has failed (`instrumentation.guard`)."""

        self.error_file: Path | None = None
        """Where the launcher looks for the last words; the program may change its environment."""

        self.steps_owned = False
        self.begin_callbacks: list[Callable[[], None]] = []
        """Run once when the generation is known, before the program's first line."""

        self.stop_callbacks: list[Callable[[], object]] = []
        self.exit_callbacks: list[Callable[[], None]] = []
        """Run once when the program has ended and its own exit handlers are done."""

        self._facts: dict[str, Any] = {}
        self._result: dict[str, Any] = {}

    def begin(self, environment: Mapping[str, str], *, warm: bool = False) -> None:
        """Belong to the generation that the environment describes; the program runs next.

        `warm`: the process waited for it with its imports done.
        """
        global _current
        self.generation = int(environment.get(WorkerEnv.GENERATION, "0"))
        last_words = environment.get("TORCHELASTIC_ERROR_FILE")
        self.error_file = Path(last_words) if last_words else None
        resume = environment.get(WorkerEnv.RESUME_STEP)
        self.resume_step = int(resume) if resume else None
        slots = self.page.slots
        slots[Slot.PID] = os.getpid()
        slots[Slot.GENERATION] = self.generation
        slots[Slot.RANK] = self.rank
        slots[Slot.STARTED_AT] = time.monotonic()
        if slots[Slot.TORCH_IMPORTED_AT]:
            slots[Slot.TORCH_IMPORTED_AT] = slots[Slot.STARTED_AT]
        slots[Slot.STEP] = slots[Slot.RESUMED_STEP] = (self.resume_step or 0) if self.task else 0
        offered = WorkerEnv.RESUME in environment  # below a `command`, which began with it
        if self.task is None and self.checkpoint_dir is not None and not offered:
            os.environ[WorkerEnv.RESUME] = offer(self.checkpoint_dir, self.speak if self.rank == 0 else None)
        for unknown in (Slot.LOSS, Slot.GRAD_NORM, Slot.LEARNING_RATE):
            slots[unknown] = math.nan
        slots[Slot.WARM] = float(warm)
        slots[Slot.STATE] = WorkerState.STARTED
        _current = self
        for callback in self.begin_callbacks:
            callback()
        os.register_at_fork(after_in_child=_leave)

    @property
    def backend(self) -> Backend:
        """The backend to initialise the process group with, never Auto: that follows the accelerator torch sees."""
        chosen = self.settings.backend
        return accelerator_backend() if chosen is Backend.AUTO else chosen

    def own_steps(self) -> None:
        """The caller counts steps, samples, tokens, loss and phases and reaches the step boundaries itself.

        The instrumentation then writes none of these; it goes on with micro-batches, backward passes, all-reduces,
        the reducer's clock and the settings in effect.
        """
        self.steps_owned = True

    def put_fact(self, fact: Fact, value: Any) -> None:
        """Publish one fact, a value of JSON, beside the others.

        Raises:
            ValueError: the facts do not fit into the page.
        """
        self._facts[fact.value] = value
        self.page.put_facts(self._facts)

    def report(self, values: Mapping[str, object]) -> None:
        """Merge values into `Fact.RESULT`; bounds and errors as `ddpjob_trainer.report`."""
        merged = {
            **self._result,
            **{result_name(name): scalar(name, value) for name, value in values.items()},
        }
        if len(merged) > MAX_RESULTS:
            raise ValueError(f"report: {len(merged)} values; a job's result holds {MAX_RESULTS}")
        self._result = merged
        self.put_fact(Fact.RESULT, merged)

    def say(self, message: str) -> None:
        """One line in the job's log, from one rank per node; the launcher adds the rank."""
        if self.local_rank == 0:
            self.speak(message)

    def speak(self, message: str) -> None:
        """One line in the job's log, from this rank."""
        speak(message)

    def finish(self) -> None:
        """Publish what is only known at the end."""
        callbacks, self.exit_callbacks = self.exit_callbacks, []
        for callback in callbacks:
            callback()


def speak(message: str) -> None:
    """One line in the job's log."""
    stream = (
        sys.__stderr__
    )  # the process's own: the program may have put another one in its place, or closed it
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):
            print(f"[ddpjob] {message}", file=stream, flush=True)


_current: Worker | None = None


def current() -> Worker | None:
    """The rank this process is; None in a program that no launcher started, and in every child of a rank."""
    return _current


def attach(environment: Mapping[str, str]) -> Worker | None:
    """The rank that the launcher's environment describes, which this process is from its `begin` on.

    None where it describes none, or another process.

    Raises:
        Refused: as `Worker`.
        BadPage: the page is of another version.
        OSError: the page cannot be opened.
    """
    path, owner = environment.get(WorkerEnv.PAGE), environment.get(WorkerEnv.WORKER_PID)
    if not path or (owner and owner != str(os.getpid())):
        return None
    worker = Worker(Page(Path(path), create=True), environment)
    # A spawned or executed child inherits this and finds a pid that is not its own.
    os.environ[WorkerEnv.WORKER_PID] = str(os.getpid())
    wanted = worker.settings.gradient_accumulation_steps
    if wanted is not None:
        os.environ[WorkerEnv.GRADIENT_ACCUMULATION_STEPS] = str(wanted)
    return worker


def _leave() -> None:
    """In a forked child: not a rank, and never writing to its parent's page."""
    global _current
    if _current is not None:
        _current.live = _current.measured = False
    _current = None


def settings_in(environment: Mapping[str, str]) -> DDP:
    return read(DDP, environment.get(WorkerEnv.SETTINGS, "{}"), "ddp")


def task_in(environment: Mapping[str, str]) -> Task | None:
    text = environment.get(WorkerEnv.TASK)
    return read(Task, text, "task") if text else None


def checkpoint_in(environment: Mapping[str, str]) -> Checkpoint | None:
    text = environment.get(WorkerEnv.CHECKPOINT)
    return read(Checkpoint, text, "checkpoint") if text else None


def read(kind: type[T], text: str, field: str) -> T:
    try:
        return load(kind, json.loads(text), ("spec", field))
    except (Invalid, ValueError) as error:
        raise Refused(f"{error}; launcher and trainer are of different versions of DDPJob") from error


def accelerator_backend() -> Backend:
    """What `Auto` means on this machine."""
    import torch

    if torch.cuda.is_available():
        return Backend.NCCL
    if torch.xpu.is_available():
        return Backend.XCCL
    plugins.load(*PLUGINS)
    for device, backend in (("npu", Backend.HCCL), ("hpu", Backend.HCCL), ("mlu", Backend.CNCL)):
        plugin = getattr(torch, device, None)
        if plugin is not None and plugin.is_available():
            return backend
    return Backend.GLOO


def result_name(name: str) -> str:
    if len(name) > MAX_RESULT_NAME:
        raise ValueError(
            f"report: the name {name[:20]}… has {len(name)} characters; at most {MAX_RESULT_NAME}"
        )
    return name


def scalar(name: str, value: object) -> object:
    """`value` as JSON has it; what is not finite becomes its name, because JSON has no number for it."""
    item = getattr(value, "item", None)
    if callable(item):
        value = item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and len(value) > MAX_RESULT_TEXT:
        raise ValueError(f"report: {name} is a text of {len(value)} characters; at most {MAX_RESULT_TEXT}")
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"report: {name} is a {type(value).__name__}; give a number, a string, a boolean or None")
