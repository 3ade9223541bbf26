"""Precedence at the level of frameworks, with stand-ins that have their arguments and nothing else.

The real ones run in `programs/`; here it is about who wins, what is said, and that nothing is said twice.
"""

import dataclasses
import inspect
import os
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from tests.trainer.framework_doubles import (
    ALL,
    Arguments,
    Handler,
    InitHandler,
    Plugin,
    accelerator_module,
    said,
    shared,
)

from ddpjob_trainer.instrumentation.frameworks import accelerate, huggingface, lightning


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


@pytest.mark.parametrize("assigned", [4, 2])
def test_a_number_that_is_assigned_later_stays(assigned: int, tmp_path: Path, module: Any) -> None:
    found = shared(tmp_path, gradientAccumulationSteps=4)
    accelerate.patch(module, found)
    made = module.Accelerator()
    made.gradient_accumulation_steps = assigned
    assert (made.backward(8.0), made.gradient_accumulation_steps) == (8.0 / assigned, assigned)
    assert not found.notices.warnings


@pytest.mark.parametrize(
    ("own", "told"),
    [({"gradient_accumulation_steps": 1}, "1"), ({}, "1"), ({"gradient_accumulation_steps": 8}, "8")],
)
def test_who_accumulates_otherwise_than_asked_is_told_that_its_own_counts_stay(
    own: dict[str, int], told: str, tmp_path: Path, module: Any
) -> None:
    found = shared(tmp_path, gradientAccumulationSteps=4)
    accelerate.patch(module, found)
    made = module.Accelerator(**own)
    assert not found.notices.warnings, "it may yet accumulate by hand"
    made.accumulate()
    made.accumulate()
    (warning,) = found.notices.warnings
    assert f": 4 is in effect instead of the program's {told}, by which it still counts" in warning
    assert "max_train_steps" in warning and warning.endswith("DDPJOB_GRADIENT_ACCUMULATION_STEPS")


def test_who_gives_both_the_same_number_is_told_nothing(tmp_path: Path, module: Any) -> None:
    found = shared(tmp_path, gradientAccumulationSteps=4)
    accelerate.patch(module, found)
    module.Accelerator(gradient_accumulation_steps=4).accumulate()
    assert not found.notices.warnings and not said(found)


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


@pytest.mark.parametrize("sees", [True, False])
def test_a_partial_state_meets_on_the_cpu_only_for_want_of_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sees: bool
) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "taken back after the test")
    monkeypatch.delenv("ACCELERATE_USE_CPU")
    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: sees))
    )

    class PartialState:
        _shared_state: ClassVar[dict[str, Any]] = {}

        def __init__(self, cpu: bool = False, **kwargs: Any) -> None:
            self.given = {"cpu": cpu, **kwargs}
            self._shared_state["made"] = True

    found = shared(tmp_path)
    found.worker.nodes = 2
    accelerate.patch_state(SimpleNamespace(PartialState=PartialState), found)
    assert PartialState(timeout=5).given == {"cpu": not sees, "timeout": 5}
    assert ("ACCELERATE_USE_CPU" in os.environ) is not sees
    assert PartialState().given == {"cpu": False}, "the state is there, and goes by its first maker"


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
