"""Real launchers and real trainings: a node that lost its checkpoints goes on from the others'."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.launcher.local import LocalJob, Running, eventually

from ddpjob_api.names import LauncherEnv
from ddpjob_api.report import Outcome
from ddpjob_trainer.checkpoints import complete_steps, step_path

TASK = """
import os, time
from pathlib import Path
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from ddpjob_trainer.task import Task

def task(until=""):
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(torch.randn(64, 5, generator=generator), torch.arange(64) % 3)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
    def loss(model, batch):
        time.sleep(0.03)
        return functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), len(batch[1])
    return Task(model=model, train_dataset=data, loss=loss, optimizer=lambda p: torch.optim.AdamW(p, lr=0.01))
"""


class Training(LocalJob):
    """A task whose nodes have folders of their own."""

    def __init__(self, folder: Path, *, nodes: int, steps: int, **checkpoint: Any) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "lossy.py").write_text(TASK)
        task = {"entrypoint": "lossy:task", "maxSteps": steps, "globalBatchSize": 6}
        super().__init__(
            folder,
            nodes=nodes,
            program={"task": task},
            checkpoint={"everySteps": 5, "keep": 2, **checkpoint},
            recovery={"maxRestarts": 5, "warmStandby": False},
        )

    def checkpoints(self, node: int, incarnation: int = 0) -> Path:
        return self.folder / f"checkpoints-{node}-{incarnation}"

    def launch(self, node: int, *, incarnation: int = 0, token: bytes | None = None, **env: str) -> Running:
        own = {
            LauncherEnv.CHECKPOINT_DIR: str(self.checkpoints(node, incarnation)),
            "PYTHONPATH": str(self.folder),
            "OMP_NUM_THREADS": "1",
        }
        return super().launch(node, incarnation=incarnation, token=token, **(own | env))

    def finish(self) -> str:
        """The hash of the final parameters."""
        lead, *others = [running for running in self.started if running.process.poll() is None]
        lead.wrote("done: all workers")
        for running in (lead, *others):
            assert running.code() == 0, running.output
        message = lead.message
        assert message.outcome is Outcome.DONE
        return str(message.result["parameterHash"])


def resumed(running: Running, generation: int) -> int:
    """The step from which a generation began, by the coordinator's words."""
    found = re.findall(rf"generation {generation} starts(?: from step (\d+))?:", running.output)
    assert found, running.output
    return int(found[-1] or 0)


def worker_of(running: Running) -> int:
    """The pid of a launcher's one rank."""
    children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text().split()
    return int(children[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_losses_of_nodes_and_damaged_copies_change_neither_step_nor_result(tmp_path: Path) -> None:
    undisturbed = Training(tmp_path / "undisturbed", nodes=2, steps=60)
    disturbed = Training(tmp_path / "disturbed", nodes=2, steps=60)
    try:
        lead, lost = disturbed.launch_all()
        eventually(lambda: disturbed.reached(12), "some checkpoints")

        # The launcher of node 1 is killed, and its folder goes with it.
        lost.kill()
        second = disturbed.launch(1, incarnation=1)
        lead.wrote("generation 2 starts")
        newest = max(complete_steps(disturbed.checkpoints(1, 1)))
        assert resumed(lead, 2) == newest >= 10
        assert f"node 1 takes step {newest} from node 0" in lead.output

        # The newest copy of node 1 is damaged, and a worker dies.
        eventually(lambda: disturbed.reached(newest + 7), "further checkpoints")
        os.kill(worker_of(second), signal.SIGSTOP)
        newest = max(complete_steps(disturbed.checkpoints(1, 1)))
        state = step_path(disturbed.checkpoints(1, 1), newest) / "state.pt"
        state.write_bytes(b"?" + state.read_bytes()[1:])
        os.kill(worker_of(second), signal.SIGKILL)
        lead.wrote("generation 3 starts")
        assert resumed(lead, 3) == newest
        assert f"node 1: checkpoint {state.parent} is damaged" in lead.output

        # Node 0 is lost with the coordinator, and all that it had.
        eventually(lambda: disturbed.reached(newest + 7), "one more checkpoint")
        lead.kill()
        other = disturbed.launch(0, incarnation=1)
        other.wrote("generation 4 starts")
        assert resumed(other, 4) >= newest + 5
        found = disturbed.finish()
        assert other.message.restarts == 1

        undisturbed.launch_all()
        assert found == undisturbed.finish()
    finally:
        undisturbed.close()
        disturbed.close()


@pytest.mark.timeout(600)
def test_all_but_one_node_may_be_lost_and_when_all_are_it_is_said(tmp_path: Path) -> None:
    job = Training(tmp_path, nodes=2, steps=400)
    try:
        lead, other = job.launch_all()
        eventually(lambda: job.reached(7), "a checkpoint")
        other.kill()
        other = job.launch(1, incarnation=1)
        lead.wrote("generation 2 starts")
        assert resumed(lead, 2) == max(complete_steps(job.checkpoints(1, 1))) >= 5
        lead.wrote("resumed from the checkpoint of step")
        for running in (lead, other):
            running.kill()
        known = {LauncherEnv.GENERATION: "2"}
        lead = job.launch(0, incarnation=1, **known)
        job.launch(1, incarnation=2, **known)
        lead.wrote("no node has a checkpoint: the training starts anew")
        lead.wrote("generation 3 starts:")
    finally:
        job.close()


@pytest.mark.timeout(600)
def test_a_training_goes_on_from_its_copies_in_memory_also_on_a_node_that_lost_its_own(
    tmp_path: Path,
) -> None:
    job = Training(tmp_path, nodes=2, steps=100_000, everySteps=150, inMemoryEverySteps=3)

    def saved() -> int:
        return max(complete_steps(job.checkpoints(0)))

    try:
        lead, other = job.launch_all()
        eventually(lambda: job.reached(155), "a checkpoint, and steps after it")
        worker = worker_of(other)
        os.kill(worker, signal.SIGSTOP)  # so that no checkpoint is made meanwhile
        checkpoint = saved()
        os.kill(worker, signal.SIGKILL)
        lead.wrote("generation 2 starts")
        copy = resumed(lead, 2)
        assert copy > checkpoint >= 150
        assert copy % 3 == 0
        for node in (0, 1):
            assert f"step-{copy:08d}" not in os.listdir(job.checkpoints(node)), "it was in memory only"
        lead.wrote(f"[rank 0] resumed from the copy in memory of step {copy}")

        # With the launcher of node 1 go its folder and its memory; a step of before is not gone on from again.
        eventually(lambda: job.reached(copy + 7), "another copy")
        other.kill()
        checkpoint = saved()
        job.launch(1, incarnation=1)
        lead.wrote("generation 3 starts")
        newer = resumed(lead, 3)
        assert newer > max(copy, checkpoint)
        assert newer % 3 == 0
        assert f"node 1 takes step {newer} from node 0" in lead.output
        assert complete_steps(job.checkpoints(1, 1)) == (newer,)
        lead.wrote(f"[rank 0] resumed from the copy in memory of step {newer}")
    finally:
        job.close()


SAVER = """
import os, sys, time
from pathlib import Path
folder = Path(os.environ["DDPJOB_CHECKPOINT_DIR"])
there = sorted(path.name for path in folder.glob("checkpoint-*"))
print("found", there[-1:] and (folder / there[-1] / "model.bin").read_text(), flush=True)
for number in range(len(there), len(there) + 3):
    if os.environ["RANK"] == "0":
        item = folder / f"checkpoint-{number}"
        item.mkdir()
        (item / "model.bin").write_text(f"model {number}")
time.sleep(600)
"""


@pytest.mark.timeout(300)
def test_what_a_script_saved_on_one_node_outlives_that_node_and_is_on_all(tmp_path: Path) -> None:
    (tmp_path / "saver.py").write_text(SAVER)
    program = {"script": {"args": [str(tmp_path / "saver.py")]}}
    job = LocalJob(tmp_path, nodes=2, program=program, checkpoint={})
    folders = {name: tmp_path / name for name in ("zero", "one", "fresh")}

    def launch(node: int, name: str, incarnation: int = 0) -> Running:
        return job.launch(node, incarnation=incarnation, **{LauncherEnv.CHECKPOINT_DIR: str(folders[name])})

    try:
        lead, other = launch(0, "zero"), launch(1, "one")
        lead.wrote("[rank 0] found []")
        kept = folders["one"] / ".ddpjob-kept" / "for-0" / "checkpoint-2" / "model.bin"
        eventually(kept.exists, "node 1 keeps a copy of what node 0 saved")
        assert not list(folders["one"].glob("checkpoint-*")), "the script on node 1 sees what it saved itself"
        lead.kill()
        lead = launch(0, "fresh", incarnation=1)
        lead.wrote("[rank 0] found model 2")
        other.wrote("[rank 1] found model 2")
    finally:
        job.close()
