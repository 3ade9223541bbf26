"""When a standby is started and when it goes: room in memory, one at a time, never again where they fail."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from ddpjob_api.page import Slot
from ddpjob_trainer.launcher import reserve, standby
from ddpjob_trainer.launcher.children import Children, Process
from ddpjob_trainer.launcher.reserve import MAX_FAILURES, Reserve
from ddpjob_trainer.launcher.room import Room, private_bytes
from ddpjob_trainer.page import Page

MIB = 1 << 20
GIB = 1 << 30

V2 = {"cgroup": "0::/pod/trainer\n"}
V1 = {"cgroup": "4:memory:/pod/trainer\n0::/\n"}
MACHINE = {"meminfo": "MemTotal: 10485760 kB\nMemFree: 1 kB\nMemAvailable: 5242880 kB\n"}
ROOMS: list[tuple[str, dict[str, str], int]] = [
    ("nothing is known", {}, 0),
    ("no limit: the machine's, a tenth left to others", MACHINE, 4 * GIB),
    (
        "version 2, cache that can go is room",
        {
            **V2,
            **MACHINE,
            "mount/pod/trainer/memory.max": f"{2 * GIB}\n",
            "mount/pod/trainer/memory.current": f"{GIB}\n",
            "mount/pod/trainer/memory.stat": f"anon 5\ninactive_file {GIB // 2}\nactive_file 7\n",
        },
        GIB + GIB // 2,
    ),
    (
        "version 2, the group around has the lower limit",
        {
            **V2,
            **MACHINE,
            "mount/pod/trainer/memory.max": "max\n",
            "mount/pod/trainer/memory.current": "1\n",
            "mount/pod/memory.max": f"{GIB}\n",
            "mount/pod/memory.current": f"{GIB + MIB}\n",
        },
        -MIB,
    ),
    (
        "version 2, seen from within its namespace",
        {"cgroup": "0::/\n", "mount/memory.max": f"{GIB}\n", "mount/memory.current": "0\n"},
        GIB,
    ),
    (
        "version 1",
        {
            **V1,
            **MACHINE,
            "mount/memory/pod/trainer/memory.limit_in_bytes": f"{GIB}\n",
            "mount/memory/pod/trainer/memory.usage_in_bytes": f"{MIB}\n",
            "mount/memory/pod/trainer/memory.stat": f"inactive_file 3\ntotal_inactive_file {MIB}\n",
            "mount/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "mount/memory/memory.usage_in_bytes": "1\n",
        },
        GIB,
    ),
    (
        "a limit above what the machine has",
        {**V2, **MACHINE, "mount/pod/trainer/memory.max": f"{64 * GIB}\n", "mount/pod/trainer/memory.current": "0"},
        4 * GIB,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("files", "room"), [case[1:] for case in ROOMS], ids=[case[0] for case in ROOMS])
def test_room_is_what_the_lowest_limit_leaves(files: dict[str, str], room: int, tmp_path: Path) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = Room(cgroup=tmp_path / "cgroup", mount=tmp_path / "mount", meminfo=tmp_path / "meminfo")
    assert found.left() == room


def test_a_process_of_this_machine_has_a_size_and_one_that_is_gone_has_none() -> None:
    assert MIB < private_bytes(os.getpid()) < 64 * GIB
    assert private_bytes(2**22 + 1) == 0


@dataclass
class Rank:
    rank: int
    page: Page
    process: Process | None


@dataclass
class Crew:
    """Ranks that all have made a step, and what their standbys run."""

    workers: list[Rank]
    program: str
    generation: int = 1
    stopping: bool = False

    def command_and_environment(self, local_rank: int) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-I", "-S", "-c", self.program], {"RANK": str(local_rank), "MASTER_PORT": "1"}


@dataclass
class World:
    reserve: Reserve
    crew: Crew
    said: list[str] = field(default_factory=list)
    room: int = 64 * GIB
    now: float = 0.0

    async def until(self, condition: Callable[[], object]) -> None:
        """Look again and again, as the launcher does."""
        async with asyncio.timeout(60):
            while not condition():
                self.look()
                await asyncio.sleep(0.01)

    def look(self) -> None:
        self.reserve.look(self.crew, self.now)


READY = """
import socket
channel = socket.socket(fileno=3)
channel.send(b'{"begun": true}')
channel.send(b'{"ready": true}')
channel.recv(1)"""
IMPORTING = "import time\ntime.sleep(600)"
UNFIT = """
import json, socket, sys, os
channel = socket.socket(fileno=3)
without = json.loads(os.environ["DDPJOB_STANDBY"])["without"]
if "wandb" in without:
    channel.send(b'{"ready": true}')
    channel.recv(1)
channel.send(b'{"unfit": "started a thread", "package": "wandb"}')
"""


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[Callable[[str, int], World]]:
    loop, children = asyncio.get_running_loop(), Children()
    children.adopt(loop)
    worlds: list[World] = []

    def make(program: str, ranks: int) -> World:
        workers = [
            Rank(rank, Page(tmp_path / f"page-{rank}", create=True), Process(os.getpid()))
            for rank in range(ranks)
        ]
        for worker in workers:
            worker.page[Slot.GENERATION_STEPS] = 1
        reserve = Reserve(
            wanted=True,
            folder=tmp_path,
            children=children,
            room=lambda: here.room,
            say=lambda text: here.said.append(text),
        )
        here = World(reserve, Crew(workers, program))
        worlds.append(here)
        return here

    yield make
    for each in worlds:
        await each.reserve.close()
        for worker in each.crew.workers:
            worker.page.close()
    loop.remove_signal_handler(signal.SIGCHLD)


Make = Callable[[str, int], World]


async def test_they_come_one_after_the_other_some_time_after_the_first_step(world: Make) -> None:
    here = world(READY, 2)
    here.look()
    assert here.reserve.held() == {}
    here.now += reserve.STANDBY_DELAY_SECONDS
    here.look()
    assert list(here.reserve.held()) == [0]
    await here.until(lambda: len([each for each in here.reserve.held().values() if each.ready]) == 2)
    assert all(0 < held.size < GIB for held in here.reserve.held().values())
    assert here.said == []


async def test_the_second_waits_for_the_first(world: Make) -> None:
    here = world(IMPORTING, 2)
    here.look()
    here.now += 60
    for _ in range(3):
        here.look()
    assert list(here.reserve.held()) == [0]


async def test_without_room_for_twice_its_size_there_is_none_and_it_is_said_once_in_a_generation(
    world: Make,
) -> None:
    here = world(READY, 1)
    here.room = MIB
    here.look()
    here.now += 60
    for _ in range(3):
        here.look()
    assert here.reserve.held() == {}
    (line,) = here.said
    assert line.startswith("no standby in generation 1: about ")
    assert "and it has 1 MiB" in line
    here.room, here.crew.generation = 64 * GIB, 2
    here.look()
    here.now += 60
    here.look()
    assert list(here.reserve.held()) == [0]


async def test_when_memory_gets_short_they_go_before_the_kernel_acts(world: Make) -> None:
    here = world(READY, 1)
    here.look()
    here.now += 60
    await here.until(lambda: any(held.ready for held in here.reserve.held().values()))
    here.room = 0
    here.look()
    assert here.reserve.held() == {}
    assert here.said == ["memory is short: the standbys are ended"]
    here.room = 64 * GIB
    here.look()
    assert here.reserve.held() == {}, "not again in this generation"


async def test_a_package_that_is_no_good_ahead_is_left_out_by_the_next(world: Make) -> None:
    here = world(UNFIT, 1)
    here.look()
    here.now += 60
    await here.until(lambda: any(held.ready for held in here.reserve.held().values()))
    assert here.said == ["standbys leave out wandb: started a thread"]


async def test_where_they_fail_again_and_again_there_are_none_any_more(world: Make) -> None:
    here = world("raise SystemExit(1)", 1)
    here.look()
    here.now += 60
    await here.until(lambda: not here.reserve.wanted)
    assert here.said[:-1] == ["the standby of rank 0 is lost: ended with 1"] * MAX_FAILURES
    assert here.said[-1] == "no standbys any more: 3 have failed"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, "it never answers"),
        ({"WORLD_SIZE": "4"}, "it was started for another world"),
    ],
    ids=["deaf", "another world"],
)
async def test_one_that_cannot_take_over_is_ended(
    change: dict[str, str], why: str, world: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "TAKE_OVER_SECONDS", 0.1)
    here = world(READY.replace("recv(1)", "recv(1)\nimport time\ntime.sleep(600)"), 1)
    here.look()
    here.now += 60
    await here.until(lambda: any(held.ready for held in here.reserve.held().values()))
    _, environment = here.crew.command_and_environment(0)
    page = tmp_path / "page-of-generation-2"
    taken = here.reserve.take(0, environment | {"MASTER_PORT": "2"} | change, page, ())
    assert here.reserve.held() == {}
    if change:
        assert taken is None, why
        assert not page.exists()
    else:
        assert taken is not None
        assert not await taken.took_over(), why
        assert taken.process.returncode == -9


async def test_one_that_has_not_mapped_its_page_yet_is_not_taken(world: Make, tmp_path: Path) -> None:
    """It would look for the page under a name that it has no more, and the launcher would watch an empty one."""
    here = world(IMPORTING, 1)
    here.look()
    here.now += 60
    await here.until(here.reserve.held)
    _, environment = here.crew.command_and_environment(0)
    page = tmp_path / "page-of-generation-2"
    assert here.reserve.take(0, environment | {"MASTER_PORT": "2"}, page, ()) is None
    assert here.reserve.held() == {}
    assert not page.exists()
