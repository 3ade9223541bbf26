"""Stand-ins for frameworks that have their arguments and nothing else, and the instrumentation of a rank."""

import dataclasses
import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ddpjob_api.names import WorkerEnv
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.frameworks import huggingface_trainer
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.instrumentation.settings import Settings
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.page import Page
from ddpjob_trainer.worker import Worker

ALL = {
    "gradientAccumulationSteps": 4,
    "bucketCapMB": 25,
    "broadcastBuffers": False,
    "findUnusedParameters": False,
    "staticGraph": True,
    "gradientAsBucketView": True,
    "timeoutSeconds": 99,
}


def shared(
    folder: Path, directory: Path | None = None, checkpoint: dict[str, Any] | None = None, **ddp: Any
) -> Shared:
    """The instrumentation of a rank with its page in `folder`; `directory`: where the job's checkpoints are."""
    environment = {WorkerEnv.SETTINGS.value: json.dumps(ddp)}
    if directory is not None:
        environment |= {
            WorkerEnv.CHECKPOINT.value: json.dumps(checkpoint or {}),
            WorkerEnv.CHECKPOINT_DIR.value: str(directory),
        }
    worker = Worker(Page(folder / "page", create=True), environment)
    notices = Notices(worker)
    guard = Guard(worker, notices)
    return Shared(
        worker=worker,
        settings=Settings(worker.settings, notices),
        verdicts=Verdicts(worker, notices),
        notices=notices,
        saving=Saving(worker, notices, Clock(worker, notices), guard),
        guard=guard,
    )


def said(found: Shared) -> dict[str, tuple[str, str, bool]]:
    return {each.setting: (each.asked, each.effective, each.applied) for each in found.notices.overrides}


@dataclasses.dataclass
class Arguments:
    """Hugging Face's fields."""

    output_dir: str | None = None
    gradient_accumulation_steps: int = 1
    ddp_backend: str | None = None
    ddp_timeout: int = 1800
    ddp_bucket_cap_mb: int | None = None
    ddp_broadcast_buffers: bool | None = None
    ddp_find_unused_parameters: bool | None = None
    ddp_static_graph: bool | None = None
    save_only_model: bool = False
    save_strategy: str = "steps"
    save_steps: int = 500
    save_total_limit: int | None = None
    load_best_model_at_end: bool = False


@dataclasses.dataclass
class Handler:
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False


@dataclasses.dataclass
class InitHandler:
    backend: str | None = "nccl"
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is None:
            self.timeout = timedelta(seconds=600 if self.backend == "nccl" else 1800)


@dataclasses.dataclass
class Plugin:
    num_steps: int | None = None
    sync_with_dataloader: bool = True


def accelerator_module() -> Any:
    class Accelerator:
        def __init__(
            self,
            gradient_accumulation_steps: int = 1,
            gradient_accumulation_plugin: Any = None,
            kwargs_handlers: Any = None,
        ) -> None:
            self.plugin = gradient_accumulation_plugin or Plugin(gradient_accumulation_steps)
            self.handlers = kwargs_handlers or []

        @property
        def gradient_accumulation_steps(self) -> Any:
            return self.plugin.num_steps

        @gradient_accumulation_steps.setter
        def gradient_accumulation_steps(self, steps: int) -> None:
            self.plugin.num_steps = steps

        def accumulate(self, *models: Any) -> None: ...

        def backward(self, loss: float) -> float:
            return loss / self.plugin.num_steps

        def save_state(self) -> None: ...

        def load_state(self) -> None: ...

    return SimpleNamespace(
        Accelerator=Accelerator,
        DistributedDataParallelKwargs=Handler,
        InitProcessGroupKwargs=InitHandler,
        GradientAccumulationPlugin=Plugin,
        PartialState=SimpleNamespace(_shared_state={}),
    )


class Strategy:
    """Lightning's, with what it was given."""

    def __init__(self, find_unused_parameters: bool = False, **kwargs: Any) -> None:
        self.given = {"find_unused_parameters": find_unused_parameters, **kwargs}


class LightningTrainer:
    """Lightning's, with what it was given and what was called."""

    def __init__(self, **kwargs: Any) -> None:
        self.given, self.called = kwargs, list[Any]()
        self.callbacks: list[Any] = []
        self.global_step = 0
        self.accumulate_grad_batches = kwargs.get("accumulate_grad_batches", 1)

    def fit(self, model: Any, ckpt_path: Any = None) -> str:
        self.called.append(("fit", model, ckpt_path))
        return "fitted"

    def save_checkpoint(self, filepath: Any) -> str:
        self.called.append(("save", filepath))
        return "saved"


class HuggingFaceTrainer:
    """Hugging Face's, with what was called."""

    def __init__(self) -> None:
        self.args, self.called, self.callbacks = Arguments(), list[Any](), list[Any]()

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)

    def train(self, resume_from_checkpoint: Any = None) -> str:
        self.called.append(("train", resume_from_checkpoint))
        return "trained"

    def evaluate(self) -> str:
        self.called.append("evaluate")
        return "evaluated"


def hugging_face(found: Shared, output: Path) -> HuggingFaceTrainer:
    """A patched trainer of a class of its own."""

    class Trainer(HuggingFaceTrainer):
        train = HuggingFaceTrainer.train

    huggingface_trainer.patch(SimpleNamespace(Trainer=Trainer), found)
    made = Trainer()
    made.args.output_dir = str(output)
    return made


class Recomputed:
    """`torch.utils.checkpoint`'s function."""

    @staticmethod
    def forward(value: int) -> int:
        return value + 1
