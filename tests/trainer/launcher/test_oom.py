"""Kills for memory: which are a worker's, and which were another process's that nobody asked about."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddpjob_api.messages import Start
from ddpjob_trainer.files import Files, agent_file
from ddpjob_trainer.launcher import ending
from ddpjob_trainer.launcher.crew import Crew
from ddpjob_trainer.launcher.foreman import Foreman
from ddpjob_trainer.launcher.oom import OomCounter
from ddpjob_trainer.launcher.timing import OOM_SECONDS
from ddpjob_trainer.launcher.verdict import Rank
from ddpjob_trainer.page import Page


class Kernel:
    """A cgroup of version 2, and the time."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "memory.events"
        self.now = 100.0
        self.kills = 0
        self.kill(2)
        listing = folder / "cgroup"
        listing.write_text("0::/\n")
        self.counter = OomCounter(listing, folder, clock=lambda: self.now)

    def kill(self, count: int = 1) -> None:
        self.kills += count
        self.file.write_text(f"oom {self.kills}\noom_kill {self.kills}\n")

    def watch(self) -> None:
        """The launcher's look, every second."""
        foreman: Any = SimpleNamespace(_oom=self.counter, crew=None)
        Foreman.watch(foreman, self.now)

    def begin(self) -> None:
        """A generation begins."""
        parts: Any = SimpleNamespace(node=0, ranks=())
        start = Start(term=1, generation=2, master_address="h", master_port=1, restarts=0, disruptions=0)
        Crew(
            parts, start, children=parts, sink=parts, oom=self.counter, reserve=parts, post_mortems=parts,
            on_exit=lambda crew, item: None, keep=lambda work: None,
        ).begin({})  # fmt: skip


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def killed(kernel: Kernel, tmp_path: Path, *, command: tuple[str, ...] | None = None) -> bool:
    """Whether a rank that ends with SIGKILL now is said to have been killed for memory; of a `command`, when that ends."""
    config: Any = SimpleNamespace(spec=SimpleNamespace(command=command), run_dir=tmp_path)
    agent = agent_file(tmp_path, 1)
    agent.parent.mkdir(parents=True, exist_ok=True)
    agent.write_text('[{"rank": 3, "exitCode": -9}]')
    with Page(tmp_path / "page", create=True) as page:
        worker: Any = SimpleNamespace(
            rank=3,
            ranks=(Rank(rank=3, files=Files.of(tmp_path, 1, 3), page=page),),
            signals={},
            page=page,
            files=Files.of(tmp_path, 1, 3),
            pumps=(None, SimpleNamespace(tail=[])),
        )
        code = -9 if command is None else 1
        item = ending.end_of(worker, code, config=config, generation=1, stop_asked=False, oom=kernel.counter)
    return item.oom_killed


def test_each_kill_is_of_one_worker(kernel: Kernel, tmp_path: Path) -> None:
    kernel.kill(2)
    assert [killed(kernel, tmp_path) for _ in range(3)] == [True, True, False]


def test_a_worker_may_take_a_while_to_die(kernel: Kernel, tmp_path: Path) -> None:
    kernel.kill()
    kernel.watch()
    kernel.now += OOM_SECONDS / 2
    assert killed(kernel, tmp_path)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        pytest.param(32.0, True, id="torchrun gives the other ranks 30 s before it ends"),
        pytest.param(3600.0, False, id="what it ended with has another cause"),
    ],
)
def test_a_command_ends_after_its_ranks(kernel: Kernel, tmp_path: Path, seconds: float, told: bool) -> None:
    kernel.kill()
    kernel.watch()
    kernel.now += seconds
    kernel.watch()
    assert killed(kernel, tmp_path, command=("torchrun", "train.py")) is told


def test_a_kill_of_another_process_is_not_blamed_on_a_worker_that_is_killed_later(
    kernel: Kernel, tmp_path: Path
) -> None:
    """A standby or a child of the program, and hours later somebody's `kill -9`."""
    kernel.kill()
    kernel.watch()
    kernel.now += 3600.0
    assert not killed(kernel, tmp_path)


async def test_a_kill_of_an_earlier_generation_is_not_blamed_on_a_worker_of_this_one(
    kernel: Kernel, tmp_path: Path
) -> None:
    kernel.kill()
    kernel.begin()
    assert not killed(kernel, tmp_path)


def test_a_count_that_cannot_be_read_for_a_moment_is_no_kill(kernel: Kernel, tmp_path: Path) -> None:
    kernel.file.unlink()
    kernel.watch()
    kernel.kill(0)
    assert not killed(kernel, tmp_path)


@pytest.mark.parametrize(
    ("cgroup", "file"),
    [
        ("0::/pod/c1\n", "pod/c1/memory.events"),
        ("0::/../elsewhere\n", "memory.events"),
        ("9:cpu:/x\n4:memory:/pod/c1\n0::/\n", "memory/pod/c1/memory.oom_control"),
    ],
)
def test_kills_for_memory_are_seen_in_both_cgroup_versions(tmp_path: Path, cgroup: str, file: str) -> None:
    listing = tmp_path / "cgroup"
    listing.write_text(cgroup)
    counter_file = tmp_path / "mount" / file
    counter_file.parent.mkdir(parents=True)
    counter_file.write_text("oom 3\noom_kill 2\noom_group_kill 0\n")
    counter = OomCounter(listing, tmp_path / "mount")
    assert not counter.killed()
    counter_file.write_text("oom 4\noom_kill 3\n")
    assert counter.killed()
    assert not counter.killed()
