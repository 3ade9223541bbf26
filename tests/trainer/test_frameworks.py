"""Precedence at the level of frameworks, with stand-ins that have their arguments and nothing else.

The real ones run in `programs/`; here it is about who wins, what is said, and that nothing is said twice.
"""

import dataclasses
import inspect
import json
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_api.names import WorkerEnv
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.instrumentation import recomputation
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.frameworks import (
    accelerate,
    huggingface,
    huggingface_trainer,
    lightning,
)
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


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def shared(folder: Path, directory: Path | None = None, **ddp: Any) -> Shared:
    """The instrumentation of a rank with its page in `folder`; `directory`: where the job's checkpoints are."""
    environment = {WorkerEnv.SETTINGS.value: json.dumps(ddp)}
    if directory is not None:
        environment |= {WorkerEnv.CHECKPOINT.value: "{}", WorkerEnv.CHECKPOINT_DIR.value: str(directory)}
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


def test_hugging_face_gets_every_setting_and_only_the_scripts_own_wishes_are_overrides(
    tmp_path: Path,
) -> None:
    found = shared(tmp_path, **ALL)
    arguments = Arguments(gradient_accumulation_steps=2, ddp_find_unused_parameters=True)
    huggingface.put_settings(arguments, found)
    assert arguments == Arguments(None, 4, None, 99, 25, False, False, True)
    assert said(found) == {
        "gradientAccumulationSteps": ("2", "4", True),
        "findUnusedParameters": ("true", "false", True),
    }


def test_accumulation_said_elsewhere_or_later_is_the_resources_too(tmp_path: Path) -> None:
    found = shared(tmp_path, gradientAccumulationSteps=4)
    arguments = Arguments()
    arguments.accelerator_config = SimpleNamespace(gradient_accumulation_kwargs={"num_steps": 8})  # type: ignore[attr-defined]
    huggingface.put_settings(arguments, found)
    huggingface.put_accumulation(arguments, found)
    assert arguments.gradient_accumulation_steps == 4
    assert arguments.accelerator_config.gradient_accumulation_kwargs == {}  # type: ignore[attr-defined]
    arguments.gradient_accumulation_steps = 16
    huggingface.put_accumulation(arguments, found)
    assert arguments.gradient_accumulation_steps == 4
    assert [each.asked for each in found.notices.overrides] == ["8", "16"]


def test_an_empty_resource_touches_nothing(tmp_path: Path) -> None:
    found = shared(tmp_path)
    arguments = Arguments(gradient_accumulation_steps=2, ddp_find_unused_parameters=True)
    before = dataclasses.replace(arguments)
    huggingface.put_settings(arguments, found)
    given: dict[str, Any] = {"find_unused_parameters": True, "timeout": timedelta(seconds=5)}
    lightning.put_arguments(given, found)
    assert arguments == before and len(given) == 2 and not said(found)


def test_report_changes_nothing_and_says_each_difference_once(tmp_path: Path) -> None:
    found = shared(tmp_path, **ALL, overrides="Report")
    arguments = Arguments(ddp_bucket_cap_mb=50, ddp_timeout=300)
    before = dataclasses.replace(arguments)
    huggingface.put_settings(arguments, found)
    assert arguments == before
    expected = {"bucketCapMB": ("50", "50", False), "timeoutSeconds": ("300", "300", False)}
    assert said(found) == expected

    def ddp(module: Any, bucket_cap_mb: Any = None, find_unused_parameters: bool = False) -> None: ...

    # What the framework hands down is the same wish.
    found.settings.over_ddp(inspect.signature(ddp).bind(None, bucket_cap_mb=50))
    assert said(found)["bucketCapMB"] == expected["bucketCapMB"]
    assert sum(each.setting == "bucketCapMB" for each in found.notices.overrides) == 1


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


@pytest.fixture
def module() -> Any:
    return accelerator_module()


def test_accelerate_gets_handlers_where_the_script_has_none(tmp_path: Path, module: Any) -> None:
    found = shared(tmp_path, **ALL)
    accelerate.patch(module, found)
    made = module.Accelerator()
    assert made.handlers == [
        Handler(broadcast_buffers=False, static_graph=True, gradient_as_bucket_view=True),
        InitHandler(timeout=timedelta(seconds=99)),
    ]
    assert made.gradient_accumulation_steps == 4 and not said(found)


def test_a_scripts_own_handler_is_changed_in_a_copy(tmp_path: Path, module: Any) -> None:
    found = shared(tmp_path, bucketCapMB=2)
    accelerate.patch(module, found)
    own = Handler(bucket_cap_mb=50, find_unused_parameters=True)
    made = module.Accelerator(kwargs_handlers=[own])
    assert made.handlers == [Handler(bucket_cap_mb=2, find_unused_parameters=True)]
    assert own.bucket_cap_mb == 50
    assert said(found) == {"bucketCapMB": ("50", "2", True)}


def test_accumulation_by_hand_keeps_the_scale_of_the_loss(tmp_path: Path, module: Any) -> None:
    found = shared(tmp_path, gradientAccumulationSteps=4)
    accelerate.patch(module, found)
    by_hand = module.Accelerator()
    assert by_hand.backward(8.0) == 8.0
    assert "outside of `with accelerator.accumulate(model):`" in found.notices.warnings[0]
    with_accumulate = module.Accelerator()
    with_accumulate.accumulate()
    assert with_accumulate.backward(8.0) == 2.0


def test_hugging_faces_own_plugin_of_one_step_is_left_alone(tmp_path: Path, module: Any) -> None:
    found = shared(tmp_path, gradientAccumulationSteps=4)
    accelerate.patch(module, found)
    assert module.Accelerator(gradient_accumulation_plugin=Plugin(1)).gradient_accumulation_steps == 1
    own = Plugin(3, sync_with_dataloader=False)
    made = module.Accelerator(gradient_accumulation_plugin=own)
    assert made.plugin == Plugin(4, sync_with_dataloader=False) and own.num_steps == 3


def test_accelerates_variable_does_not_win_over_the_resource(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(accelerate.VARIABLE, "8")
    found = shared(tmp_path, gradientAccumulationSteps=4)
    accelerate.patch(module, found)
    assert module.Accelerator().gradient_accumulation_steps == 4
    assert said(found) == {"gradientAccumulationSteps": ("8", "4", True)}


def test_lightning_gets_arguments_of_its_strategy(tmp_path: Path) -> None:
    found = shared(tmp_path, **ALL)
    given: dict[str, Any] = {"find_unused_parameters": True, "forward_sync_buffers": True}
    lightning.put_arguments(given, found)
    assert given == {
        "timeout": timedelta(seconds=99),
        "bucket_cap_mb": 25,
        "broadcast_buffers": False,
        "find_unused_parameters": False,
        "static_graph": True,
        "gradient_as_bucket_view": True,
    }
    assert said(found) == {
        "findUnusedParameters": ("true", "false", True),
        "broadcastBuffers": ("true", "false", True),
    }


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


class Recomputed:
    """`torch.utils.checkpoint`'s function."""

    @staticmethod
    def forward(value: int) -> int:
        return value + 1


def accelerate_program(found: Shared) -> Any:
    module = accelerator_module()
    accelerate.patch(module, found)
    made = module.Accelerator(2, kwargs_handlers=[Handler(bucket_cap_mb=50)])
    made.accumulate()
    by_hand = module.Accelerator()
    made.save_state()
    made.load_state()
    return made.plugin, made.handlers, by_hand.backward(8.0)


def huggingface_program(found: Shared) -> Any:
    @dataclasses.dataclass
    class Fresh(Arguments):
        gradient_checkpointing: bool = False
        gradient_checkpointing_kwargs: dict[str, Any] | None = None

        def __post_init__(self) -> None:
            self.output_dir = self.output_dir or "trainer_output"

    class Trainer(HuggingFaceTrainer):
        train, evaluate = HuggingFaceTrainer.train, HuggingFaceTrainer.evaluate

    huggingface.patch_arguments(SimpleNamespace(TrainingArguments=Fresh), found)
    huggingface_trainer.patch(SimpleNamespace(Trainer=Trainer), found)
    made = Trainer()
    made.args = Fresh(gradient_accumulation_steps=2, ddp_bucket_cap_mb=50)
    return vars(made.args), made.train("own"), made.evaluate(), made.called


def lightning_program(found: Shared) -> Any:
    class Ours(Strategy):
        __init__ = Strategy.__init__

    class Trainer(LightningTrainer):
        __init__, fit, save_checkpoint = (
            LightningTrainer.__init__,
            LightningTrainer.fit,
            LightningTrainer.save_checkpoint,
        )

    lightning.patch_strategy(SimpleNamespace(DDPStrategy=Ours), found)
    lightning.patch_trainer(SimpleNamespace(Trainer=Trainer, __name__="lightning.trainer.trainer"), found)
    made = Trainer(accumulate_grad_batches=2)
    done = made.fit("model", ckpt_path="own.ckpt"), made.save_checkpoint("last.ckpt")
    return Ours(True, bucket_cap_mb=50).given, made.given, done, made.called


def recomputing_program(found: Shared) -> Any:
    class Fresh(Recomputed):
        forward = Recomputed.forward

    recomputation.patch(SimpleNamespace(CheckpointFunction=Fresh), found.verdicts, found.guard)
    return [Fresh.forward(each) for each in range(3)]


CALLBACKS = {
    "transformers.trainer_callback": SimpleNamespace(TrainerCallback=object),
    "lightning.callbacks": SimpleNamespace(Callback=object),
}
"""Modules that are there where their framework is."""

Program = Callable[[Shared], Any]
PLACES: list[tuple[Program, type, str, dict[str, Any] | None]] = [
    # where our own code fails, and what of the resource is in effect all the same (None: that hook was all)
    (accelerate_program, Shared, "use_cpu", None),
    (accelerate_program, Settings, "over_framework", None),
    (accelerate_program, Saving, "saved", ALL),
    (accelerate_program, Saving, "went_on", ALL),
    (accelerate_program, Clock, "_enter", ALL),
    (huggingface_program, Shared, "use_cpu", {"gradientAccumulationSteps": 4}),
    (huggingface_program, Settings, "over_framework", None),
    (huggingface_program, Saving, "redirected", ALL),
    (huggingface_program, Clock, "_enter", ALL),
    (lightning_program, Settings, "over_framework", None),
    (lightning_program, Saving, "saved", ALL),
    (lightning_program, Clock, "_enter", ALL),
    (recomputing_program, Verdicts, "learn_checkpointing", None),
]


@pytest.mark.parametrize(
    ("program", "kind", "name", "kept"),
    PLACES,
    ids=[f"{program.__name__}-{name}" for program, _, name, _ in PLACES],
)
def test_a_fault_of_ours_in_a_frameworks_hook_leaves_the_program_as_it_is(
    program: Program,
    kind: type,
    name: str,
    kept: dict[str, Any] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for module, stand_in in CALLBACKS.items():
        monkeypatch.setitem(sys.modules, module, stand_in)
    whole = shared(new(tmp_path / "whole"), **(kept or {}))
    if kept is None:
        whole.worker.live = whole.worker.measured = False  # as in a child: all hooks stand aside
    expected = program(whole)
    called: list[str] = []

    def fail(*args: Any, **kwargs: Any) -> None:
        called.append(name)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(kind, name, fail)
    capfd.readouterr()
    directory = new(tmp_path / "checkpoints") if name == "redirected" else None
    broken = shared(new(tmp_path / "broken"), directory=directory, **ALL)
    assert program(broken) == expected
    assert set(called) == {name}, "the fault was met"
    assert capfd.readouterr().err.count("is not measured any more, and its training goes on") == 1
    [warning] = [each for each in broken.notices.warnings if "is not measured any more" in each]
    assert "RuntimeError: a fault of ours" in warning
    assert not broken.worker.measured


def test_a_refusal_seen_in_a_hook_is_the_rules_sentence_and_no_fault(tmp_path: Path) -> None:
    found = shared(tmp_path, findUnusedParameters=True)
    with pytest.raises(Refused) as refusal:
        recomputing_program(found)
    assert str(refusal.value).startswith("spec.ddp")
    assert "findUnusedParameters with reentrant gradient checkpointing fails" in str(refusal.value)
    assert found.worker.measured
    (tmp_path / "other").mkdir()
    with pytest.raises(Refused, match="bf16"):
        shared(tmp_path / "other").verdicts.learn_hook("bf16_compress_hook", "gloo")


def test_a_lost_peer_that_ours_meets_first_is_no_fault_of_ours(tmp_path: Path) -> None:
    found = shared(tmp_path)

    def meet() -> None:
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")

    with pytest.raises(RuntimeError):
        found.guard.setting(meet)()
    assert found.worker.measured
