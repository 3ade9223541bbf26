"""DDP used in every way that is not the usual one: the program is as without us, and what is counted is what it did."""

import re
from pathlib import Path

import pytest
from tests.trainer.worker.conftest import PROGRAM, Folder
from tests.trainer.worker.ranks import Rank, run

from ddpjob_api.page import Fact, Slot, WorkerState
from ddpjob_api.report import InEffect

HERE = Path(PROGRAM).parent
pytestmark = pytest.mark.timeout(400)

OF_TORCH = re.compile(r"^\[rank\d\]|^\[?[WI]\d|^\s*$")
"""Lines of its loggers, of C++ and of Python, which have the time in them."""


def said(rank: Rank, *, ours: bool = False) -> list[str]:
    """What a rank wrote to its standard error; `ours`: what DDPJob says there."""
    lines = [line for line in rank.stderr.splitlines() if not OF_TORCH.match(line)]
    return [line for line in lines if line.startswith("[ddpjob]") is ours]


def test_losses_warnings_and_counts_of_unusual_programs(folder: Folder) -> None:
    program = str(HERE / "hostile.py")
    bare = run(folder("hostile-bare"), [program], bootstrap=False)
    ours = run(folder("hostile"), [program])
    for plain, rank in zip(bare, ours, strict=True):
        assert plain.returncode == rank.returncode == 0, plain.stderr + rank.stderr
        for name, losses in plain.printed["losses"].items():
            assert rank.printed["losses"][name] == losses, name
        assert said(rank) == said(plain), "warnings name the program's line"
        did = plain.printed["did"]
        effect: InEffect = rank.effect
        counted = {
            "steps": rank[Slot.STEP],
            "forwards": rank[Slot.MICRO_BATCHES],
            "synchronised": rank[Slot.MICRO_BATCHES_SYNCED],
            "backwards": rank[Slot.BACKWARDS],
            "all_reduces": effect.all_reduces,
            "models": rank[Slot.DDP_MODELS],
        }
        assert counted == did
        assert rank[Slot.UNMEASURED] == 0


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_ranks_that_a_program_starts_itself_are_none_of_the_job(fails: bool, folder: Folder) -> None:
    args = [str(HERE / "spawner.py"), *(["fail"] if fails else [])]
    [bare] = run(folder("spawner-bare"), args, world_size=1, bootstrap=False)
    [ours] = run(folder("spawner"), args, world_size=1)
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout) == (int(fails), bare.stdout)
    assert said(ours) == said(bare)
    assert ours[Slot.STEP] == ours[Slot.MICRO_BATCHES] == ours[Slot.DDP_MODELS] == 0
    assert ours[Slot.UNMEASURED] == 1, "without steps of its own it is not hung"
    [line] = said(ours, ours=True)
    assert "the program starts processes of its own" in line and "they are no ranks of this job" in line
    [warning] = ours.effect.warnings
    assert warning in line


HELPED = """
import torch, torch.multiprocessing as mp
if __name__ == "__main__":
    mp.start_processes(print, args=("prepared",), nprocs=1, start_method="fork")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_a_program_that_trains_itself_after_processes_of_its_own_is_measured(folder: Folder) -> None:
    where = folder("helped")
    (where / "train.py").write_text(HELPED)
    [rank] = run(where, ["train.py"], world_size=1)
    assert rank.returncode == 0, rank.stderr
    assert (rank[Slot.STEP], rank[Slot.UNMEASURED]) == (1, 0)


def test_a_program_that_leaves_nothing_as_it_was_trains_and_ends_as_without_us(folder: Folder) -> None:
    args = [str(HERE / "surroundings.py")]
    [bare] = run(folder("surroundings-bare"), args, world_size=1, bootstrap=False)
    [ours] = run(folder("surroundings"), args, world_size=1)
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
    assert said(ours) == said(bare)
    assert re.search("the program's own hook: .*mat1 and mat2 shapes cannot be multiplied", ours.stderr)
    assert ours[Slot.STEP] == ours[Slot.BACKWARDS] == ours.effect.all_reduces - 1 == 3
    assert (ours[Slot.EXIT_CODE], ours[Slot.STATE]) == (bare.returncode, WorkerState.FINISHED)
    assert ours.facts[Fact.DDP]["worldSize"] == 1
    assert ours.error["ddpjob"]["type"] == "RuntimeError", "it is found although the environment is gone"
    assert ours.error["ddpjob"]["location"].rpartition(":")[0] == args[0].removeprefix("/")
