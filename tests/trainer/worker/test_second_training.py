"""A process that trains more than one model, and ranks that never meet."""

from pathlib import Path

import pytest
from tests.trainer.worker.ranks import run

from ddpjob_api.page import Slot
from ddpjob_api.spec import DDP
from ddpjob_trainer.page import Page

pytestmark = pytest.mark.timeout(300)

TRAIN = """
import contextlib, json, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")


def train(model, optimizer, steps):
    for step in range(steps):
        for last in (False, True):
            with contextlib.nullcontext() if last else model.no_sync():
                model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def wrapped():
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
"""

AFTER_ANOTHER = (
    TRAIN
    + """
first, second = wrapped(), wrapped()
train(*first, 3)
train(*second, 40)
print(json.dumps({"weights": [each[0].module.weight.sum().item() for each in (first, second)]}))
dist.destroy_process_group()
"""
)


def test_a_static_graph_that_begins_after_another_training_is_handled_too(tmp_path: Path) -> None:
    """pytorch#143580: its first window runs under no_sync, after optimizer steps of another model."""
    program = tmp_path / "train.py"
    program.write_text(AFTER_ANOTHER)
    for rank in run(tmp_path, [str(program)], ddp=DDP(static_graph=True)):
        assert rank.returncode == 0, rank.stderr
        assert rank.effect.all_reduces == 3 + 40 + 2, "one more in the first window of each model"
        assert rank[Slot.STEP] == 3 + (40 - 32), (
            "counted again once the first optimizer does not step any more"
        )


ALONE = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("world_size", "said"), [(2, 1), (1, 0)])
def test_ranks_that_never_meet_are_told(tmp_path: Path, world_size: int, said: int) -> None:
    program = tmp_path / "train.py"
    program.write_text(ALONE)
    first, *_ = run(tmp_path, [str(program)], world_size=world_size)
    assert first.returncode == 0, first.stderr
    sentence = "each of the 2 ranks trains a model of its own"
    assert first.stderr.count(sentence) == said
    assert sum(sentence in warning for warning in first.effect.warnings) == said


FOLLOWED = (
    TRAIN
    + """
import sys
kind = sys.argv[1]
group = dist.new_group([*range(dist.get_world_size())])
model, optimizer = wrapped()
train(model, optimizer, 3)
if kind == "gone":
    del model
other = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for step in range(20):
    other(torch.ones(2, 4)).sum().backward()
    if kind == "sharded":  # as by HSDP: in groups of a mesh
        dist.all_reduce(torch.ones(1), group=group)
    optimizer.step()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize(
    ("kind", "world_size"),
    [
        pytest.param("one rank", 1, id="of the only rank"),
        pytest.param("sharded", 2, id="in other groups than the default one"),
    ],
)
def test_a_training_without_ddp_follows_one_with_it(tmp_path: Path, kind: str, world_size: int) -> None:
    program = tmp_path / "train.py"
    program.write_text(FOLLOWED)
    for rank in run(tmp_path, [str(program), kind], world_size=world_size):
        assert rank.returncode == 0, rank.stderr
        assert rank[Slot.STEP] == 3 + 20


def test_a_stop_after_the_last_step_with_ddp_is_made_after_the_first_step_without(tmp_path: Path) -> None:
    """Only its step shows that the pass before it was of the training, and not of an evaluation."""
    program = tmp_path / "train.py"
    program.write_text(FOLLOWED)
    Page(tmp_path / "page-0", create=True)[Slot.STOP_AT] = 3
    [rank] = run(tmp_path, [str(program), "gone"], world_size=1)
    assert (rank.returncode, rank[Slot.EXIT_CODE], rank[Slot.STEP]) == (85, 85, 4), rank.stderr


PROBED = (
    TRAIN
    + """
import sys
model, optimizer = wrapped()
for epoch in range(3):
    train(model, optimizer, 4)
    if sys.argv[1] == "gone":
        del model, optimizer  # as at the end of a function
    if dist.get_rank() == 0:
        head = torch.nn.Linear(4, 1)
        descent = torch.optim.SGD(head.parameters(), lr=0.1)
        for step in range(100):
            head(torch.ones(2, 4)).sum().backward()
            descent.step()
    dist.barrier()
    if sys.argv[1] == "gone":
        model, optimizer = wrapped()
dist.destroy_process_group()
"""
)


@pytest.mark.parametrize("model", ["there", "gone"])
def test_a_probe_that_one_rank_fits_leaves_the_ranks_at_one_step(tmp_path: Path, model: str) -> None:
    program = tmp_path / "train.py"
    program.write_text(PROBED)
    ranks = run(tmp_path, [str(program), model])
    assert [rank.returncode for rank in ranks] == [0, 0], ranks[0].stderr
    assert [rank[Slot.STEP] for rank in ranks] == [12, 12]
    assert [rank[Slot.UNMEASURED] for rank in ranks] == [1, 0], "the last that rank 0 did was its own"
    assert [rank[Slot.OBSERVED_ACCUMULATION] for rank in ranks] == [2, 2]


AROUND = (
    TRAIN
    + """
model, optimizer = wrapped()
for step in range(3):
    model.module(torch.ones(2, 4)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
)


def test_a_training_that_goes_around_ddp_is_one(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(AROUND)
    for rank in run(tmp_path, [str(program)]):
        assert rank.returncode == 0, rank.stderr
        assert (rank[Slot.STEP], rank.effect.all_reduces) == (3, 0)
