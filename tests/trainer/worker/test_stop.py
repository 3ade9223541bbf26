"""Where a plain script stops on request: after a step and all that the program does after it, before the next pass."""

from __future__ import annotations

import pytest
from tests.trainer.worker.conftest import Folder
from tests.trainer.worker.ranks import Rank, run

from ddpjob_api.page import Slot
from ddpjob_trainer.page import Page

STOP_AT = 3
PROGRAM = """
import json, os, sys
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
import ddpjob_trainer

kind, steps = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
model = inner if kind in {"backward", "step"} else DDP(inner)
if kind == "sharded":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
else:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
done = evaluated = 0

def save():
    model(torch.ones(2, 8))  # a callback may use the model
    own = torch.cat([parameter.detach().flatten() for parameter in inner.parameters()])
    all_of_them = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, own)
    equal = all(torch.equal(each, own) for each in all_of_them)
    print(json.dumps({"steps": done, "scheduled": scheduler.last_epoch, "evaluated": evaluated, "equal": equal}))

if kind != "unsaved" or dist.get_rank() == 0:
    ddpjob_trainer.on_stop(save if kind != "unsaved" else lambda: print(json.dumps({"steps": done})))
for _ in range(steps):
    loss = model(torch.randn(2, 8)).sum()
    if kind == "step":
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()])):
            parameter.grad = gradient
    else:
        loss.backward()
    optimizer.step()
    dist.all_reduce(torch.ones(1))  # as of a loss that is logged
    optimizer.zero_grad()
    scheduler.step()
    done += 1
    if kind == "evaluation" and done == 3:
        with torch.no_grad():
            model(torch.ones(2, 8))
        evaluated += 1
    if kind == "probe" and done == 3:
        if dist.get_rank() == 0:
            head = torch.nn.Linear(8, 1)
            descent = torch.optim.SGD(head.parameters(), lr=0.1)
            for _ in range(3):
                head(torch.ones(2, 8)).sum().backward()
                descent.step()
        dist.barrier()
        evaluated += 1
print("ended by itself")
"""


def stopped(folder: Folder, kind: str, *, steps: int = 100, world_size: int = 1) -> list[Rank]:
    where = folder(f"stop-{kind}")
    (where / "train.py").write_text(PROGRAM)
    for rank in range(world_size):
        Page(where / f"page-{rank}", create=True)[Slot.STOP_AT] = STOP_AT
    return run(where, ["train.py", kind, str(steps)], world_size=world_size)


@pytest.mark.parametrize(
    ("kind", "world_size"),
    [
        pytest.param("sharded", 2, id="the next forward pass; an optimizer inside another one"),
        pytest.param("evaluation", 1, id="after an evaluation"),
        pytest.param("probe", 2, id="after a probe that one rank fits"),
        pytest.param("backward", 1, id="without DDP, the next backward pass"),
        pytest.param("step", 1, id="where no pass is seen, the next step"),
    ],
)
def test_callbacks_see_a_step_with_all_that_the_program_does_after_it(
    folder: Folder, kind: str, world_size: int
) -> None:
    for rank in stopped(folder, kind, world_size=world_size):
        assert rank.returncode == 85, rank.stderr
        evaluated = int(kind in {"evaluation", "probe"})
        assert rank.printed == {"steps": STOP_AT, "scheduled": STOP_AT, "evaluated": evaluated, "equal": True}
        assert (rank[Slot.STEP], rank[Slot.EXIT_CODE]) == (STOP_AT, 85)


def test_ranks_without_a_callback_are_there_until_those_with_one_stop(folder: Folder) -> None:
    ranks = stopped(folder, "unsaved", world_size=2)
    assert [(rank.returncode, rank[Slot.STEP]) for rank in ranks] == [(85, STOP_AT)] * 2, ranks[0].stderr
    assert ranks[0].printed == {"steps": STOP_AT}
    assert "no on_stop callback" not in ranks[0].stderr


def test_a_program_whose_last_step_it_is_ends_by_itself(folder: Folder) -> None:
    [rank] = stopped(folder, "last", steps=STOP_AT)
    assert (rank.returncode, rank.stdout, rank[Slot.EXIT_CODE]) == (0, "ended by itself\n", 0)


CAUGHT = """
import sys, threading
import torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train():
    for _ in range(100):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

if sys.argv[1] == "caught":
    try:
        train()
    except BaseException:
        pass
else:
    thread = threading.Thread(target=train)
    thread.start()
    if sys.argv[1] == "joined":
        thread.join()
print("saves its model")
"""


@pytest.mark.parametrize("how", ["caught", "joined", "left to the end of the program"])
def test_a_program_that_goes_on_after_the_stop_is_stopped_and_not_done(folder: Folder, how: str) -> None:
    where = folder("stop-caught")
    (where / "train.py").write_text(CAUGHT)
    Page(where / "page-0", create=True)[Slot.STOP_AT] = STOP_AT
    [rank] = run(where, ["train.py", how], world_size=1)
    assert (rank.returncode, rank[Slot.EXIT_CODE], rank[Slot.STEP]) == (85, 85, STOP_AT), rank.stderr
    assert rank.stdout == "saves its model\n"
    assert rank.stderr.count("the job counts as stopped") == 1
