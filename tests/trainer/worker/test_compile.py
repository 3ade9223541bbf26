"""torch.compile makes of a program what it makes of it without us, and the steps that it compiles are counted."""

from pathlib import Path
from typing import Any

import pytest
from tests.trainer.worker.conftest import PROGRAM, Folder
from tests.trainer.worker.ranks import Rank, run

from ddpjob_api.page import Slot
from ddpjob_api.report import InEffect
from ddpjob_api.spec import DDP

COMPILED = str(Path(PROGRAM).with_name("compiled.py"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def both(folder: Folder, *groups: str) -> tuple[dict[str, dict[str, Any]], Rank]:
    """What the program says under plain python, once it says the same under the bootstrap; and that rank."""
    [bare] = run(folder("bare"), [COMPILED, *groups], world_size=1, bootstrap=False)
    [ours] = run(folder("ours"), [COMPILED, *groups], world_size=1, ddp=DDP(find_unused_parameters=False))
    assert bare.returncode == ours.returncode == 0, ours.stderr
    for group, variants in bare.printed.items():
        for name, facts in variants.items():
            assert ours.printed[group][name] == facts, f"{group}, {name}"
    assert ours[Slot.UNMEASURED] == 0
    return bare.printed, ours


def steps_in(groups: dict[str, dict[str, Any]]) -> int:
    return sum(len(facts.get("losses", ())) for group in groups.values() for facts in group.values())


def test_frames_graphs_breaks_and_losses_are_as_without_us(folder: Folder) -> None:
    facts, ours = both(folder, "default", "python_reducer")
    default = facts["default"]
    assert {name: found["frames"] for name, found in default.items() if name != "over"} == {
        "around": 0,
        "inside": 1,
        "optimizer": 1,
        "optimizer without breaks": 1,
        "optimizer that breaks, without breaks": 0,
        "over, without breaks": 0,
    }
    assert not default["optimizer without breaks"]["breaks"], "the optimizer's hooks are in the graph's code"
    assert ours[Slot.STEP] == steps_in(facts), "those in compiled code too"


def test_a_model_with_the_python_reducer_is_known(folder: Folder) -> None:
    text = (
        "import compiled, json, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "with compiled.dynamo.config.patch(optimize_ddp='python_reducer'):\n"
        "    compiled.train('around', lambda model: compiled.torch.compile(model, backend='eager'), compiled.sgd)"
    )
    where = folder("python-reducer")
    (where / "train.py").write_text(text)
    [rank] = run(
        where,
        ["train.py"],
        world_size=1,
        ddp=DDP(bucket_cap_mb=7),
        extra={"PYTHONPATH": str(Path(COMPILED).parent)},
    )
    assert rank.returncode == 0, rank.stderr
    effect: InEffect = rank.effect
    assert (effect.bucket_cap_mb, effect.all_reduces, rank[Slot.DDP_MODELS]) == (7, None, 1)
    assert not any("has no effect" in warning for warning in effect.warnings)
    assert rank[Slot.STEP] == 5


def test_whole_steps_and_inductor_are_as_without_us(folder: Folder) -> None:
    facts, _ = both(folder, "whole", "inductor")
    if not facts["inductor"]:
        pytest.skip("inductor needs a C++ compiler for CPUs, and there is neither g++ nor clang++")
    assert all("losses" in found for found in facts["inductor"].values()), facts["inductor"]
