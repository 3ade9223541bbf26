"""What fails in our part of a framework's hook leaves the program as it is; refusals and lost peers are no such fault."""

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.framework_doubles import (
    ALL,
    Arguments,
    Handler,
    HuggingFaceTrainer,
    LightningTrainer,
    Recomputed,
    Strategy,
    accelerator_module,
    shared,
)

from ddpjob_trainer.errors import Refused
from ddpjob_trainer.instrumentation import recomputation
from ddpjob_trainer.instrumentation.clock import Clock
from ddpjob_trainer.instrumentation.frameworks import accelerate, huggingface, huggingface_trainer, lightning
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.instrumentation.settings import Settings
from ddpjob_trainer.instrumentation.verdicts import Verdicts


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


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
