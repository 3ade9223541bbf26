"""The workers of one node in one generation, from their start to the end of the last one.

Why apart: a generation's processes, pages and pipes live and die together, and an old generation must not be reached
by what is meant for the next. Must not: know the coordinator, the budget, or another generation.
"""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path

from ddpjob_api.exits import Exit
from ddpjob_api.messages import Start
from ddpjob_api.nested import nested
from ddpjob_api.page import Slot
from ddpjob_api.report import Cause, WorkerExit
from ddpjob_trainer.files import Files, agent_file, command_error_file
from ddpjob_trainer.launcher.accelerate_defaults import says_its_kind
from ddpjob_trainer.launcher.cause import is_failure
from ddpjob_trainer.launcher.children import Children, Process
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.ending import end_of, foretold, not_started
from ddpjob_trainer.launcher.environment import TETHER_WORDS, command_line, worker_env
from ddpjob_trainer.launcher.examination import Examination
from ddpjob_trainer.launcher.oom import OomCounter
from ddpjob_trainer.launcher.output import Pump, Sink
from ddpjob_trainer.launcher.places import cleared, others, prefix
from ddpjob_trainer.launcher.postmortems import PostMortems
from ddpjob_trainer.launcher.reserve import Reserve
from ddpjob_trainer.launcher.standby import Standby
from ddpjob_trainer.launcher.timing import (
    AGENT_SECONDS,
    HANDLERS_FRACTION,
    HANDLERS_SECONDS,
    KILL_SECONDS,
    LAST_WORDS_SECONDS,
    ORPHAN_LOOK_SECONDS,
    ORPHAN_LOOKS,
)
from ddpjob_trainer.launcher.verdict import Rank
from ddpjob_trainer.launcher.watchdog import shown
from ddpjob_trainer.launcher.workers import Worker
from ddpjob_trainer.page import Page


class Unkillable(RuntimeError):
    """A worker is still there long after SIGKILL: it sits in the kernel, and no later generation may start here."""


class Crew:
    """The workers of `start.generation` on this node."""

    def __init__(
        self,
        config: Config,
        start: Start,
        *,
        children: Children,
        sink: Sink,
        oom: OomCounter,
        reserve: Reserve,
        post_mortems: PostMortems,
        on_exit: Callable[["Crew", WorkerExit], None],
        keep: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        """Nothing is started yet; `keep` runs a coroutine beside and takes its errors."""
        self.generation = start.generation
        self.stop_asked = False
        """A stop step was named."""
        self.stopping = False
        self.ended = asyncio.Event()
        """All workers have ended."""
        self._config = config
        self._start = start
        self._children = children
        self._sink = sink
        self._oom = oom
        self._reserve = reserve
        self._on_exit = on_exit
        self._keep = keep
        self._began = 0.0
        self.workers: list[Worker] = []
        self.examination = Examination(
            self.workers,
            self.generation,
            node=config.node,
            post_mortems=post_mortems,
        )

    def begin(self, environ: Mapping[str, str], resume_dir: Path | None = None) -> None:
        """Start every worker, in its standby where there is one; one that cannot be started has ended at once."""
        loop = asyncio.get_running_loop()
        self._environ, self._resume_dir = dict(environ), resume_dir
        self._began = loop.time()
        self._oom.forget()
        for local_rank, rank in enumerate(self._config.ranks):
            files = cleared(self._config, self.generation, rank)
            before = prefix(self._config, rank)
            pumps = (Pump(loop, self._sink, before, 1), Pump(loop, self._sink, before, 2))
            command, env = self.command_and_environment(local_rank)
            inlets = (pumps[0].inlet, pumps[1].inlet)
            standby = self._reserve.take(rank, env, files.page, inlets)
            page = Page(files.page, create=True)
            worker = Worker(
                rank=rank,
                files=files,
                page=page,
                others=others(self._config, self.generation, rank),
                agent=agent_file(self._config.run_dir, self.generation)
                if self._config.spec.command is not None
                else None,
                pumps=pumps,
            )
            self.workers.append(worker)
            if nested(self._config.spec.command or ("",)) is not None:
                self._sink.say(f"runs {shlex.join(command[TETHER_WORDS:])}")
            if standby is not None:
                worker.process = standby.process
                ours = (os.dup(inlets[0]), os.dup(inlets[1]))
                self._keep(self._take_over(worker, standby, command, env, ours))
            else:
                self._spawn(worker, command, env, inlets)
            for pump in pumps:
                pump.start()

    def command_and_environment(self, local_rank: int) -> tuple[list[str], dict[str, str]]:
        """What a worker of this generation runs, and with what."""
        files = Files.of(self._config.run_dir, self.generation, self._config.ranks[local_rank])
        env = worker_env(
            self._config,
            self._start,
            local_rank=local_rank,
            files=files,
            base=self._environ,
            resume_dir=self._resume_dir,
        )
        return command_line(self._config, self._start, kind_is_told=says_its_kind(env)), env

    def _spawn(
        self, worker: Worker, command: list[str], env: Mapping[str, str], inlets: tuple[int, int]
    ) -> None:
        try:
            worker.process = self._children.spawn(command, env, *inlets)
        except OSError as error:
            asyncio.get_running_loop().call_soon(self._ended, worker, not_started(worker, error))
        else:
            self._keep(self._watch(worker, worker.process))

    async def _take_over(
        self,
        worker: Worker,
        standby: Standby,
        command: list[str],
        env: Mapping[str, str],
        inlets: tuple[int, int],
    ) -> None:
        """Wait until the standby is the worker; where it does not come to it, start one as usual."""
        try:
            taken = await standby.took_over()
            if not taken and not self.stopping:
                self._reserve.failed(standby)
                worker.page.close()
                worker.files.page.unlink(missing_ok=True)
                worker.page = Page(worker.files.page, create=True)
                worker.process = None
                self._spawn(worker, command, env, inlets)
                return
        finally:
            for inlet in inlets:
                os.close(inlet)
        if not taken:
            worker.is_sent(signal.SIGKILL)
        await self._watch(worker, standby.process)

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks of this node, also those below a `command`."""
        return tuple(rank for worker in self.workers for rank in worker.ranks)

    # words to the workers

    def pause(self) -> None:
        """Hold the ranks where they are, for a stop on request; one may hear of its step from another, and end before us."""
        self.stop_asked = True
        for rank in self.ranks:
            rank.page[Slot.PAUSE] = 1

    @property
    def held(self) -> bool:
        """Whether every rank has reached `boundary` and can still stop there (it evaluates)."""
        step = self.boundary
        return step > 0 and all(
            rank.page[Slot.BOUNDARY] == rank.page[Slot.CAN_STOP_AT] == step for rank in self.ranks
        )

    @property
    def boundary(self) -> int:
        """Highest step boundary among the ranks."""
        return max((int(rank.page[Slot.BOUNDARY]) for rank in self.ranks), default=0)

    def stop_at(self, step: int) -> None:
        """All ranks save and end at `step`; then they are let go of."""
        for rank in self.ranks:
            rank.page[Slot.STOP_AT] = step
            rank.page[Slot.PAUSE] = 0

    # the end

    async def stop(self, grace_seconds: float, *, stacks: bool, post_mortem: bool = False) -> None:
        """End every worker: stacks, SIGTERM, grace, SIGKILL of the process groups.

        Raises:
            Unkillable: one is still there.
        """
        self.stopping = True
        if self.ended.is_set():
            return
        if stacks:
            await self.examination.examine(post_mortem=post_mortem)
        last_words = min(HANDLERS_SECONDS, grace_seconds * HANDLERS_FRACTION)
        spared = [worker for worker in self.workers if worker.alive and worker.foretold is not None]
        self._send(signal.SIGTERM, group=True, spared=spared)
        for worker in self.workers:
            if worker.process is not None:
                worker.process.send_group(signal.SIGCONT)  # a stopped process would sit out the grace period
        if spared and not await self._all_ended(last_words):
            self._send(signal.SIGTERM, group=True)
        if not await self._all_ended(grace_seconds - (last_words if spared else 0.0)):
            count = self._send(signal.SIGKILL, group=True)
            workers = "1 worker" if count == 1 else f"{count} workers"
            self._sink.say(f"{workers} did not end within {grace_seconds:.1f} s of SIGTERM: killed")
            if not await self._all_ended(KILL_SECONDS):
                raise Unkillable(
                    f"a worker is still there {KILL_SECONDS:.0f} s after SIGKILL; it waits in the kernel, for a "
                    "device or a file system"
                )

    async def close(self) -> None:
        """Leave nothing behind: groups, orphans, pipes. The pages stay open to be read."""
        for worker in self.workers:
            if worker.process is not None:
                worker.process.send_group(signal.SIGKILL)
        # An orphan appears only when its parent is gone, which takes a moment after the signal.
        for _ in range(ORPHAN_LOOKS):
            if not self._children.kill_orphans():
                break
            await asyncio.sleep(ORPHAN_LOOK_SECONDS)
        await self.drain()
        self._children.kill_orphans()
        for worker in self.workers:
            for pump in worker.pumps:
                pump.close()

    async def drain(self) -> None:
        """Wait, for a bounded time, for output that is still on its way."""
        await asyncio.gather(*(pump.drain() for worker in self.workers for pump in worker.pumps))

    def discard(self) -> None:
        """Unmap the pages and take away what only this generation needed; stacks stay for who looks later."""
        run_dir, generation = self._config.run_dir, self.generation
        leftovers = [agent_file(run_dir, generation), command_error_file(run_dir, generation)]
        for rank in self.ranks:
            rank.page.close()
            leftovers += [rank.files.page, rank.files.error, rank.files.claim]
        for path in leftovers:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    @property
    def exits(self) -> tuple[WorkerExit, ...]:
        return tuple(worker.exit for worker in self.workers if worker.exit is not None)

    @property
    def failures(self) -> tuple[WorkerExit, ...]:
        """Ends that must end the generation, also those that are only written yet."""
        known = (worker.exit or worker.foretold for worker in self.workers)
        return tuple(item for item in known if item is not None and self.failed(item))

    @property
    def succeeded(self) -> bool:
        """All ended with 0 by themselves."""
        return len(self.exits) == len(self.workers) and all(
            item.returncode == 0 and item.cause is not Cause.KILLED for item in self.exits
        )

    @property
    def stopped_on_request(self) -> bool:
        return (
            self.stop_asked
            and len(self.exits) == len(self.workers)
            and all(item.returncode in {0, Exit.STOPPED} for item in self.exits)
        )

    @property
    def joined(self) -> bool:
        """Whether every rank is in its process group; a `command` none of whose ranks is known counts as it runs."""
        if self._config.spec.command is not None and not self._waits_for_ranks():
            return bool(self.workers)
        return bool(self.workers) and all(rank.page[Slot.PROCESS_GROUP_AT] > 0 for rank in self.ranks)

    def _waits_for_ranks(self) -> bool:
        """Whether a `command` is a launcher whose ranks can be expected to show themselves."""
        asked = nested(self._config.spec.command or ("",)) is not None
        early = asyncio.get_running_loop().time() - self._began < AGENT_SECONDS
        return asked and (early or agent_file(self._config.run_dir, self.generation).exists())

    @property
    def shown(self) -> bool:
        """Whether any rank has come so far that its steps are seen."""
        return any(shown(rank.page) for rank in self.ranks)

    @property
    def pages(self) -> dict[int, Page]:
        """Pages of the ranks that live."""
        return {
            rank.rank: rank.page for worker in self.workers for rank in worker.ranks if worker.pid_of(rank)
        }

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(int(rank.page[Slot.STEP]) for rank in self.ranks)

    def _send(self, number: int, *, group: bool = False, spared: Sequence[Worker] = ()) -> int:
        """Signal the workers that live; a group's other members get it too, also when its leader has ended."""
        count = 0
        self._children.reap()  # one that has died was not ended by this
        for worker in self.workers:
            if worker.process is None or worker in spared:
                continue
            if worker.process.returncode is None:
                worker.is_sent(number)
                count += 1
                if not group:
                    worker.process.send(number)
            if group:
                worker.process.send_group(number)
        return count

    async def _all_ended(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.ended.wait(), max(seconds, 0))
        except TimeoutError:
            return False
        return True

    async def _watch(self, worker: Worker, process: Process) -> None:
        await process.ended.wait()
        assert process.returncode is not None
        worker.pumps[1].catch_up()
        item = end_of(
            worker,
            process.returncode,
            config=self._config,
            generation=self.generation,
            stop_asked=self.stop_asked,
            oom=self._oom,
        )
        self._ended(worker, item)

    @property
    def overdue_at(self) -> float | None:
        """When the first of those that have written their failure, and are still there, should have ended.

        Ranks below a `command` are its launcher's to wait for.
        """
        wrote = [worker.page[Slot.ERROR_AT] for worker in self.workers if worker.may_be_slow]
        return min(wrote) + LAST_WORDS_SECONDS if wrote else None

    def overdue(self, now: float) -> tuple[WorkerExit, ...]:
        """The failures of those that should have ended; each is told once."""
        slow = [worker for worker in self.workers if worker.may_be_slow]
        due = [worker for worker in slow if worker.page[Slot.ERROR_AT] + LAST_WORDS_SECONDS <= now]
        found = []
        for worker in due:
            item = foretold(worker)
            if self.failed(item):  # a rank that stopped on request may be slow, too
                worker.foretold = item
                found.append(item)
        return tuple(found)

    def was_foretold(self, rank: int) -> bool:
        """Whether the failure of a rank was told before its end."""
        return any(worker.foretold is not None for worker in self.workers if worker.rank == rank)

    def _ended(self, worker: Worker, item: WorkerExit) -> None:
        worker.exit = item
        if len(self.exits) == len(self.workers):
            self.ended.set()
        self._on_exit(self, item)

    def failed(self, item: WorkerExit) -> bool:
        """Whether a worker's end must end the generation everywhere."""
        return is_failure(item, stop_asked=self.stop_asked)
