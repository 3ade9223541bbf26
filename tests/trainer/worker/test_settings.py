"""The resource's settings are in effect inside an unmodified program; what it asked for itself is reported."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.trainer.worker.conftest import PROGRAM
from tests.trainer.worker.ranks import Rank, run

from ddpjob_api.codec import load, render
from ddpjob_api.page import Slot
from ddpjob_api.report import InEffect, Override
from ddpjob_api.spec import DDP, Backend, Overrides
from ddpjob_trainer.instrumentation.effect import settings_of_group

MIB = 1024 * 1024
pytestmark = pytest.mark.timeout(400)


def line_of(text: str) -> int:
    with open(PROGRAM) as program:
        return next(number for number, line in enumerate(program, 1) if text in line)


def test_what_the_resource_sets_is_in_effect_inside_the_program(overridden: list[Rank]) -> None:
    for rank in overridden:
        assert rank.returncode == 0, rank.stderr
        seen = rank.printed
        assert seen["backend"] == "gloo"
        assert seen["timeout"] == 77
        assert seen["bucket_cap"] == MIB
        assert seen["broadcast_buffers"] is False
        assert seen["find_unused_parameters"] is False
        assert seen["gradient_as_bucket_view"] is True
        assert seen["accumulation_offered"] == "4"


def test_in_a_standby_that_had_imported_torch_they_are_too(
    overridden: list[Rank], overridden_warm: list[Rank]
) -> None:
    for cold, warm in zip(overridden, overridden_warm, strict=True):
        assert (cold[Slot.WARM], warm[Slot.WARM]) == (0, 1)
        assert warm[Slot.STARTED_AT] == warm[Slot.TORCH_IMPORTED_AT] > 0
        assert warm.printed == cold.printed, "settings, every loss to the last bit, and collectives"
        assert warm.effect == cold.effect
        assert warm.stderr == cold.stderr
        assert warm[Slot.STEP] == cold[Slot.STEP] > 0


def test_groups_made_later_take_the_time_out_too(overridden: list[Rank]) -> None:
    assert overridden[0].printed["new_group_timeout"] == 77


def test_what_is_in_effect_is_read_back_from_torch(overridden: list[Rank]) -> None:
    effect = overridden[1].effect
    assert (effect.backend, effect.timeout, effect.world_size) == ("gloo", 77, 2)
    assert (effect.bucket_cap_mb, effect.broadcast_buffers, effect.find_unused_parameters) == (
        1,
        False,
        False,
    )
    assert (effect.static_graph, effect.gradient_as_bucket_view) == (False, True)
    assert effect.gradient_accumulation_steps == 4


def test_each_override_is_named_once_with_file_and_line(overridden: list[Rank]) -> None:
    group, model = line_of("init_process_group("), line_of("model = DDP(")
    expected = [
        ("timeoutSeconds", "300", "77", group),
        ("findUnusedParameters", "true", "false", model),
        ("bucketCapMB", "50", "1", model),
        ("broadcastBuffers", "true", "false", model),
    ]
    assert overridden[0].effect.overrides == tuple(
        Override(setting=setting, asked=asked, effective=effective, where=f"{PROGRAM}:{line}")
        for setting, asked, effective, line in expected
    )
    for setting, asked, resource, line in expected:
        sentence = f"[ddpjob] override {setting}: script {asked}, resource {resource} ({PROGRAM}:{line})"
        assert overridden[0].stderr.count(sentence) == 1
    assert overridden[0][Slot.OVERRIDES] == 4
    assert "override" not in overridden[1].stderr, "one rank per node speaks"


def test_a_resource_that_sets_nothing_touches_nothing(bare: list[Rank], untouched: list[Rank]) -> None:
    for without, instrumented in zip(bare, untouched, strict=True):
        assert without.returncode == instrumented.returncode == 0, instrumented.stderr
        assert without.printed == instrumented.printed, (
            "settings, every loss to the last bit, and collectives"
        )
        assert without.stdout == instrumented.stdout
        assert without.stderr == instrumented.stderr
    assert untouched[0].effect.overrides == ()


@pytest.mark.parametrize(
    ("program", "buckets"),
    [
        pytest.param("overridden", (MIB,) * 12, id="1: one bucket per MiB"),
        pytest.param("stopped", (12 * MIB,), id="25: all 12 MiB in the first"),
        pytest.param("untouched", (MIB, 11 * MIB), id="absent: a first bucket of 1 MiB"),
    ],
)
def test_buckets_have_the_sizes_that_torch_documents(
    program: str, buckets: tuple[int, ...], request: pytest.FixtureRequest
) -> None:
    rank: Rank = request.getfixturevalue(program)[0]
    assert rank.effect.bucket_bytes == buckets
    assert rank[Slot.BUCKETS] == len(buckets)


def test_report_leaves_the_script_alone_and_says_where_it_differs(failed: list[Rank]) -> None:
    effect = failed[0].effect
    assert (effect.find_unused_parameters, effect.bucket_cap_mb) == (True, None)
    found = {each.setting: each for each in effect.overrides}
    assert not any(each.applied for each in found.values())
    assert (found["findUnusedParameters"].asked, found["findUnusedParameters"].effective) == ("true", "true")
    assert found["bucketCapMB"].asked == "torch's default"
    assert "resource 1, kept the script's (overrides: Report)" in failed[0].stderr


def test_copies_and_pickles_are_as_without_us(overridden: list[Rank]) -> None:
    assert overridden[0].printed["without_us"] == dict.fromkeys(
        ("pickle", "copy", "names", "identity", "subclass", "signature"), True
    )


def test_an_explicit_25_is_said_not_to_be_the_default(stopped: list[Rank]) -> None:
    assert stopped[0].effect.bucket_cap_mb == 25
    assert any("25 is not torch's default" in warning for warning in stopped[0].effect.warnings)


def test_a_long_name_of_backends_is_reported_as_far_as_the_status_takes_it() -> None:
    """One that is refused there would cost the whole report."""
    name = "cpu:gloo,cuda:nccl,xpu:xccl,hpu:hccl"
    group = SimpleNamespace(_device_types=[])
    c10d = SimpleNamespace(
        is_initialized=lambda: True,
        get_backend=lambda: name,
        get_world_size=lambda: 2,
        GroupMember=SimpleNamespace(WORLD=group),
    )
    found = InEffect(**settings_of_group(c10d))
    assert found.backend == name[:32]
    assert load(InEffect, render(found)) == found


STATIC_LATER = """
import json, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
given, later = (DDP(torch.nn.Linear(4, 1), static_graph=each) for each in (True, False))
later._set_static_graph()
print(json.dumps([given.static_graph, later.static_graph]))
"""


@pytest.mark.parametrize(
    ("overrides", "static"), [(Overrides.APPLY, False), (Overrides.REPORT, True)], ids=lambda each: str(each)
)
def test_a_static_graph_that_is_set_after_wrapping_is_an_override_too(
    overrides: Overrides, static: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(STATIC_LATER)
    ddp = DDP(static_graph=False, overrides=overrides)
    [rank] = run(tmp_path, ["train.py"], world_size=1, ddp=ddp)
    assert rank.returncode == 0, rank.stderr
    assert rank.printed == [static, static]
    assert [(each.setting, each.asked, each.where) for each in rank.effect.overrides] == [
        ("staticGraph", "true", "train.py:5"),
        ("staticGraph", "true", "train.py:6"),
    ]


BY_HAND = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
for parameter in model.parameters():
    dist.all_reduce(parameter.grad)
optimizer.step()
"""


@pytest.mark.parametrize(("bucket_cap_mb", "said"), [(None, 0), (1, 1)])
def test_without_ddp_backend_and_time_out_are_in_effect(
    bucket_cap_mb: int | None, said: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BY_HAND)
    ddp = DDP(backend=Backend.GLOO, timeout=timedelta(seconds=120), bucket_cap_mb=bucket_cap_mb)
    [rank] = run(tmp_path, ["train.py"], world_size=1, ddp=ddp)
    assert (rank.effect.backend, rank.effect.timeout) == ("gloo", 120)
    assert len(rank.effect.warnings) == said
    assert all("only backend and timeoutSeconds" in warning for warning in rank.effect.warnings)


SKIPS = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
skipped = range(*map(int, sys.argv[1:]))
dist.init_process_group("gloo")


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)

    def forward(self, inputs, skips):
        return self.first(inputs) if skips else self.first(inputs) + self.second(inputs)


model = DDP(Model())
for step in range(1, 61):
    model(torch.ones(2, 4), step in skipped).sum().backward()
"""


@pytest.mark.parametrize(
    ("skipped", "said", "kept"),
    [((0, 0), 1, 1), ((4, 60, 4), 0, 0), ((12, 60), 1, 0)],
    ids=["never", "every fourth step", "later"],
)
def test_parameters_are_unused_where_any_sample_shows_it(
    skipped: tuple[int, ...], said: int, kept: int, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SKIPS)
    args = ["train.py", *map(str, skipped)]
    [rank] = run(tmp_path, args, world_size=1, ddp=DDP(find_unused_parameters=True))
    assert rank.returncode == 0, rank.stderr
    assert rank.stderr.count("warning: spec.ddp.findUnusedParameters: findUnusedParameters is on") == said
    assert sum("no parameter was unused" in warning for warning in rank.effect.warnings) == kept
    assert rank[Slot.WARNINGS] == len(rank.effect.warnings)
