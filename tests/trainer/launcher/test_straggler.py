"""A rank that makes the others wait is named, with the right cause; ranks that are well are not."""

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.trainer.launcher.local import LocalJob, Running, eventually

from ddpjob_api.messages import SUMS
from ddpjob_api.straggler import slowest
from ddpjob_trainer.launcher.timing import STRAGGLER_SECONDS
from ddpjob_trainer.launcher.windows import Windows, work

PROGRAM = str(Path(__file__).with_name("straggling.py"))
RANKS = 4
CAUSES = ("data_wait", "forward", "backward_compute")
MILLISECONDS = 60
"""What is injected. On a busy machine, ranks that are well differ in a short window too, but by less than half of it."""
pytestmark = pytest.mark.timeout(600)


@contextmanager
def training(
    folder: Path, windows: Sequence[str], *, steps: int = 24, lasting: str = ""
) -> Iterator[tuple[LocalJob, Running]]:
    """Four ranks below one launcher."""
    last = ["+", lasting] if lasting else []
    script = {"args": [PROGRAM, str(folder), str(MILLISECONDS), str(steps), *windows, *last]}
    # Standbys would import torch four times while the ranks are measured.
    recovery = {"warmStandby": False}
    job = LocalJob(folder, nodes=1, processesPerNode=RANKS, program={"script": script}, recovery=recovery)
    try:
        yield job, job.launch(0)
    finally:
        job.close()


def sums(folder: Path) -> list[tuple[str, list[list[float]], list[list[float]]]]:
    """What was injected in each window, and the sums of every rank at its begin and end."""
    files = [folder / f"sums-{rank}.json" for rank in range(RANKS)]
    eventually(lambda: all(file.exists() for file in files), "every rank's sums", 300)
    ranks = [json.loads(file.read_text()) for file in files]
    return [
        (window[0][0], [rank[1] for rank in window], [rank[2] for rank in window])
        for window in zip(*ranks, strict=True)
    ]


def verdict(begin: list[list[float]], end: list[list[float]]) -> str:
    """As the schedule has it."""
    works = {
        rank: work(dict(zip(SUMS, before, strict=True)), dict(zip(SUMS, after, strict=True)))
        for rank, (before, after) in enumerate(zip(begin, end, strict=True))
    }
    slow = slowest(works)
    return f"{slow.rank}:{slow.cause}" if slow and slow.excess > MILLISECONDS / 2000 else "-"


def test_each_rank_is_named_in_its_turn_and_one_that_lasts_is_told(tmp_path: Path) -> None:
    windows = ["-", "0:data_wait", "1:forward", "2:backward_compute", "3:data_wait", "-"]
    with training(tmp_path, windows, lasting="2:forward") as (job, launcher):
        assert [verdict(begin, end) for _, begin, end in sums(tmp_path)] == windows
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
        assert [verdict(begin, end) for _, begin, end in sums(tmp_path)] == windows
        assert launcher.code() == 0


@pytest.mark.slow
@pytest.mark.parametrize("run", range(20))
def test_healthy_ranks_are_never_named(run: int, tmp_path: Path) -> None:
    with training(tmp_path, ["-"] * 10, steps=60) as (_, launcher):
        windows = Windows(RANKS)
        for number, (_, begin, end) in enumerate(sums(tmp_path)):
            for at, each in ((number, begin), (number + 1, end)) if number == 0 else ((number + 1, end),):
                windows.hear(100 + at * STRAGGLER_SECONDS, 0, [value for rank in each for value in rank])
            assert windows.named is None, f"run {run}, window {number}"
        assert len(windows._kept) == 10
        assert launcher.code() == 0
        assert "makes the others wait" not in launcher.output
