"""A rank that makes the others wait is named, with the right cause; ranks that are well are not."""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.trainer.launcher.local import LocalJob, Running, eventually

from ddpjob_api.messages import SUMS
from ddpjob_api.straggler import Slow, slowest
from ddpjob_trainer.launcher.windows import work

PROGRAM = str(Path(__file__).with_name("straggling.py"))
RANKS = 4
CAUSES = ("data_wait", "forward", "backward_compute")
MILLISECONDS = 60
pytestmark = pytest.mark.timeout(400)


@contextmanager
def training(folder: Path, windows: Sequence[str], lasting: str = "") -> Iterator[tuple[LocalJob, Running]]:
    """Four ranks below one launcher."""
    script = {
        "args": [PROGRAM, str(folder), str(MILLISECONDS), *windows, *(["+", lasting] if lasting else [])]
    }
    job = LocalJob(folder, nodes=1, processesPerNode=RANKS, program={"script": script})
    try:
        yield job, job.launch(0)
    finally:
        job.close()


def verdicts(folder: Path) -> list[tuple[str, Slow | None]]:
    """What was injected in each window, and what is said of it."""
    files = [folder / f"sums-{rank}.json" for rank in range(RANKS)]
    eventually(lambda: all(file.exists() for file in files), "every rank's sums", 300)
    ranks = [json.loads(file.read_text()) for file in files]
    found = []
    for window in zip(*ranks, strict=True):
        sums = [[dict(zip(SUMS, each, strict=True)) for each in rank[1:]] for rank in window]
        works = {rank: work(before, after) for rank, (before, after) in enumerate(sums)}
        found.append((window[0][0], slowest(works)))
    return found


def named(slow: Slow | None) -> str:
    return f"{slow.rank}:{slow.cause}" if slow else "-"


def test_each_rank_is_named_in_its_turn_and_one_that_lasts_is_told(tmp_path: Path) -> None:
    windows = ["-", "0:data_wait", "1:forward", "2:backward_compute", "3:data_wait", "-"]
    with training(tmp_path, windows, lasting="2:forward") as (job, launcher):
        found = verdicts(tmp_path)
        assert [named(slow) for _, slow in found] == windows
        launcher.wrote("rank 2 on node 0 makes the others wait, in forward: it computes longer")
        efficiency = job.report().efficiency
        assert efficiency is not None
        assert (efficiency.slowest_rank, efficiency.slowest_rank_cause) == (2, "forward")
        assert (efficiency.exposed_communication_percent or 0) > 30
        metrics = job.http("/metrics")[1].decode()
        assert 'ddpjob_trainer_straggler{rank="2",cause="forward"} 1' in metrics
        (tmp_path / "end").touch()
        assert launcher.code() == 0
        assert launcher.message.efficiency is not None
        assert launcher.message.efficiency.slowest_rank == 2


@pytest.mark.slow
def test_every_rank_with_every_cause(tmp_path: Path) -> None:
    windows = [f"{rank}:{cause}" for cause, rank in itertools.product(CAUSES, range(RANKS))]
    with training(tmp_path, windows) as (_, launcher):
        assert [named(slow) for _, slow in verdicts(tmp_path)] == windows
        assert launcher.code() == 0


@pytest.mark.slow
def test_healthy_ranks_are_never_told(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        with training(folder, ["-"] * 3, lasting="-") as (job, launcher):
            assert [named(slow) for _, slow in verdicts(folder)] == ["-"] * 3
            eventually(lambda job=job: job.report().efficiency, "a look at all ranks")
            (folder / "end").touch()
            assert launcher.code() == 0
            assert "makes the others wait" not in launcher.output
