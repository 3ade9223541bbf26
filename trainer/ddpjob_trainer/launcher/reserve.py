"""The standbys of this node: when one is started, that there is room for it, and who gets it.

Why apart: a standby is never worth what it costs elsewhere. It is started after a step of the generation, one at a
time, on half a core unless cores are idle, where memory has room for twice its size; it goes as soon as room is short; and a launcher
whose standbys fail stops having them. Where there is none, a rank is started anew. Must not: start or judge a worker.

Room is looked at before the kernel has to act: where a container's processes are killed together for memory
(`memory.oom.group`, the default of Kubernetes with cgroup v2), to be the first in line would not help.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddpjob_api.page import Slot
from ddpjob_trainer.launcher.children import Children, Process
from ddpjob_trainer.launcher.room import private_bytes
from ddpjob_trainer.launcher.standby import Standby
from ddpjob_trainer.launcher.timing import STANDBY_DELAY_SECONDS, STANDBY_END_SECONDS, STANDBY_LOOK_SECONDS
from ddpjob_trainer.page import Page

ROOM = 2
"""Times its size must be free before one is started; as long as it is there, once its size stays free."""
MOST_ASSUMED_BYTES = 1 << 30
"""A standby holds less than its worker, which has the same imports and a model; nor ever more than this, until one was
measured."""
MAX_FAILURES = 3
MAX_WITHOUT = 8
MIB = 1 << 20


class Rank(Protocol):
    """What is looked at of a worker."""

    rank: int
    page: Page
    process: Process | None


class Generation(Protocol):
    """What is looked at of a crew."""

    generation: int
    stopping: bool

    @property
    def workers(self) -> Sequence[Rank]: ...

    def command_and_environment(self, local_rank: int) -> tuple[list[str], dict[str, str]]: ...


@dataclass(frozen=True, kw_only=True)
class Held:
    """What metrics show of a standby."""

    ready: bool
    size: int
    """Bytes."""


class Reserve:
    """At most one standby per local rank."""

    def __init__(
        self,
        *,
        wanted: bool,
        folder: Path,
        children: Children,
        room: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.wanted = wanted
        """Asked for, and worth trying."""
        self._folder = folder
        self._children = children
        self._room = room
        self._say = say
        self._standbys: dict[int, Standby] = {}
        self._dropped: list[Process] = []
        """Killed; they may still live for a moment."""
        self._size = 0
        """Of the largest that was measured when it was ready."""
        self._seen: tuple[int, dict[int, float]] = (0, {})
        """The generation that is looked at, and when each rank was first seen to have made a step."""
        self._short = 0
        """The generation in which there was no room."""
        self._failures = 0
        self._without: list[str] = []

    async def run(self, crew: Callable[[], Generation | None]) -> None:
        """Have standbys whenever they may be had."""
        while self.wanted:
            await asyncio.sleep(STANDBY_LOOK_SECONDS)
            self.look(crew(), asyncio.get_running_loop().time())

    def look(self, crew: Generation | None, now: float) -> None:
        """Bury what has ended, drop what there is no room for, start what is missing."""
        for standby in list(self._standbys.values()):
            if standby.process.returncode is not None or standby.unfit:
                self._failed(standby)
            elif standby.ready:
                self._size = max(self._size, private_bytes(standby.process.pid))
        generation = crew.generation if crew is not None else self._seen[0]
        if self._standbys and self._room() < max(map(self._size_of, self._standbys.values())):
            self._short = generation
            self._say("memory is short: the standbys are ended")
            for standby in list(self._standbys.values()):
                self._drop(standby)
        if crew is None or crew.stopping or not self.wanted or generation == self._short:
            return
        if any(not standby.ready for standby in self._standbys.values()):
            return
        if self._seen[0] != generation:
            self._seen = (generation, {})
        for local_rank, worker in enumerate(crew.workers):
            if worker.page[Slot.GENERATION_STEPS] <= 0 or worker.process is None:
                continue
            since = self._seen[1].setdefault(worker.rank, now)
            if worker.rank not in self._standbys and now >= since + STANDBY_DELAY_SECONDS:
                self._begin(crew, local_rank, worker.rank, worker.process.pid)
                return

    def take(
        self, rank: int, environment: dict[str, str], page: Path, outputs: Sequence[int]
    ) -> Standby | None:
        """The standby of a rank, ordered to become the worker of `environment`; `page` is its page then."""
        standby = self._standbys.pop(rank, None)
        if standby is None:
            return None
        if standby.order(environment, page, outputs):
            return standby
        self._standbys[rank] = standby
        self._drop(standby)
        page.unlink(missing_ok=True)
        return None

    def failed(self, standby: Standby) -> None:
        """A standby did not take over."""
        why = standby.unfit or "it did not answer"
        self._say(f"rank {standby.rank}: its standby did not take over ({why}); a fresh process is started")
        self._count_failure()

    def held(self) -> dict[int, Held]:
        """What there is, by rank."""
        return {
            rank: Held(ready=standby.ready, size=self._size_of(standby))
            for rank, standby in self._standbys.items()
        }

    async def close(self) -> None:
        """End all, and wait for their end."""
        self.end()
        ends = [asyncio.ensure_future(process.ended.wait()) for process in self._dropped]
        if ends:
            await asyncio.wait(ends, timeout=STANDBY_END_SECONDS)
        for end in ends:
            end.cancel()

    def end(self) -> None:
        """No standbys from now on."""
        self.wanted = False
        for standby in list(self._standbys.values()):
            self._drop(standby)

    def _begin(self, crew: Generation, local_rank: int, rank: int, pid: int) -> None:
        size = self._size or min(private_bytes(pid), MOST_ASSUMED_BYTES)
        room = self._room()
        if room < ROOM * size:
            self._short = crew.generation
            self._say(
                f"no standby in generation {crew.generation}: about {size // MIB} MiB, of which memory must have room "
                f"for twice, and it has {max(room, 0) // MIB} MiB; a restart begins with fresh processes"
            )
            return
        command, environment = crew.command_and_environment(local_rank)
        try:
            self._standbys[rank] = Standby(
                rank=rank,
                command=command,
                environment=environment,
                page=self._folder / f"page-standby-r{rank}",
                without=self._without,
                children=self._children,
            )
        except OSError as error:
            self._say(f"the standby of rank {rank} cannot be started: {os.strerror(error.errno or 0)}")
            self._count_failure()

    def _size_of(self, standby: Standby) -> int:
        return private_bytes(standby.process.pid)

    def _failed(self, standby: Standby) -> None:
        """It ended, or will: without the package that is to blame there may be another."""
        if standby.package and len(self._without) < MAX_WITHOUT:
            self._without.append(standby.package)
            self._say(f"standbys leave out {standby.package}: {standby.unfit}")
        else:
            why = standby.unfit or f"ended with {standby.process.returncode}"
            self._say(f"the standby of rank {standby.rank} is lost: {why}")
            self._count_failure()
        self._drop(standby)

    def _count_failure(self) -> None:
        self._failures += 1
        if self._failures == MAX_FAILURES:
            self._say(f"no standbys any more: {MAX_FAILURES} have failed")
            self.end()

    def _drop(self, standby: Standby) -> None:
        self._standbys.pop(standby.rank, None)
        standby.kill()
        standby.close()
        self._dropped = [each for each in self._dropped if each.returncode is None] + [standby.process]
