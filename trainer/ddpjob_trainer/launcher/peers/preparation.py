"""What a launcher does before a generation, and beside it: have the step that was asked for, keep a neighbour's copy.

Why apart: the work is in threads, so that neither the coordinator's beats nor the signals wait for a disk; all that the
event loop sees of it is begun, cancelled and answered here. One thing is done at a time, and the newest order counts.
Must not: decide what is prepared (`restoring.py`), or start workers.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ddpjob_api.messages import BEAT_SECONDS, Message, Prepare, Prepared, Preparing, Source, Start, Unable
from ddpjob_trainer.checkpoints import OtherFormat, read_manifest, step_path
from ddpjob_trainer.fence import Fence, Fenced
from ddpjob_trainer.files import term_file
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.memory import Memory
from ddpjob_trainer.launcher.peers.giver import Giver
from ddpjob_trainer.launcher.peers.merging import keep_copies, merge
from ddpjob_trainer.launcher.peers.shelf import UNUSED, Cancelled
from ddpjob_trainer.launcher.peers.taker import Address, NoRoom, Watch, take_step

T = TypeVar("T")
UNASKED = 0
"""The attempt of what is told without an order; they begin at 1."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a Prepare came to."""

    damaged: str = ""
    unable: tuple[Unable, ...] = ()
    refused: str = ""


class Preparation:
    """The checkpoints of one launcher."""

    def __init__(
        self,
        config: Config,
        memory: Memory,
        *,
        say: Callable[[str], None],
        send: Callable[[Message], None],
        keep: Callable[[Coroutine[None, None, None]], object],
    ) -> None:
        """Nothing is opened yet; `keep` runs a coroutine beside and takes its errors."""
        self.shelf = config.shelf
        self.giver = Giver(self.shelf, config.token)
        self._config = config
        self._memory = memory
        self._say = say
        self._send = send
        self._keep = keep
        self._watch: Watch | None = None
        self._copying: Watch | None = None
        self._turn = asyncio.Lock()
        self._torn: list[str] = []
        """What is wrong with newer steps, until it is told: it can be seen only once where they are set aside."""

    def start(self) -> None:
        """Give to others from now on; a job of one node, or on a shared volume, has nobody to give to."""
        if self._config.plan.nodes == 1 or self.shelf.target() is None:
            return
        try:
            self.giver.start(self._config.bind_host)
        except OSError as error:
            self._say(f"checkpoints cannot be given to other nodes: {error.strerror or error}")
        self._memory.giver_port = self.giver.port

    def close(self) -> None:
        self.cancel()
        self.giver.close()

    def cancel(self) -> None:
        """End what is under way; it is not answered."""
        for watch in (self._watch, self._copying):
            if watch is not None:
                watch.cancel()
        self._watch = self._copying = None

    def obey(self, message: Prepare) -> None:
        """Have a step; the newest order counts."""
        self.cancel()
        self._watch = watch = Watch()
        self._keep(self._prepare(message, watch))

    def begin(self, message: Start) -> Path | None:
        """A generation begins: returns where the step is that it goes on from."""
        self.cancel()
        step = message.resume_step
        if not self.shelf.by_step:
            return None if step is None else self.shelf.holder(step)
        goes_on = "starts anew" if step is None else f"goes on from step {step}"
        unread = {each for each in self._memory.unread if each > (step or 0)}
        kept, problems = self.shelf.put_away(unread)
        if kept:
            self._say(
                f"checkpoints of steps {', '.join(map(str, kept))} could not be read when it was decided that the training "
                f"{goes_on}; they are now step-….{UNUSED} in {self.shelf.folder}, and are yours to delete, until another of that step takes its place"
            )
        self._memory.unread.clear()
        if step is not None:
            dropped, problems = self.shelf.drop_above(step)
            if dropped:
                self._say(
                    f"checkpoints of steps {', '.join(map(str, dropped))} are deleted: the training {goes_on}"
                )
        # Where the coordinator cannot be told what is here, the training goes on.
        with contextlib.suppress(OSError):
            self._pass_over(problems)
        if step is None:
            self._keep(self._say_torn())
            return None
        return self.shelf.holder(step)

    def keep_for(self, neighbour: Source | None) -> None:
        """Keep a copy of what a neighbour's script saves, while the generation runs."""
        shelf = self.shelf
        if neighbour is None or shelf.by_step or shelf.shared or shelf.folder is None:
            return
        self._copying = watch = Watch(slow=True)
        token = self._config.token
        threading.Thread(
            target=lambda: keep_copies(shelf, address(neighbour), token=token, watch=watch),
            name="keep",
            daemon=True,
        ).start()

    async def _say_torn(self) -> None:
        """Say what the steps have lost that were here and cannot be gone on from, here and to the coordinator."""
        try:
            self._pass_over(await in_thread(asyncio.get_running_loop(), lambda: self.shelf.torn(0)))
        except OSError as error:
            self._say(f"{self.shelf.folder}: what is torn cannot be looked for: {error.strerror or error}")

    def _pass_over(self, problems: Sequence[str]) -> None:
        """Say what is wrong with steps that nobody goes on from, here and to the coordinator.

        Raises:
            OSError: it cannot be told what is here.
        """
        for problem in problems:
            self._say(problem)
        if problems:
            steps, tree = self._memory.stock()
            told = "; ".join(problems)[:512]
            self._send(Prepared(attempt=UNASKED, passed_over=told, checkpoints=steps, tree=tree))

    async def _prepare(self, message: Prepare, watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        async with self._turn:
            if watch.cancelled:
                return
            began = loop.time()
            work = in_thread(loop, lambda: self._have(message, watch))
            while not work.done():
                await asyncio.wait([work], timeout=BEAT_SECONDS)
                if not work.done() and not watch.cancelled:
                    self._send(
                        Preparing(
                            attempt=message.attempt,
                            source=watch.source,
                            done_bytes=watch.done_bytes,
                            total_bytes=watch.total_bytes,
                        )
                    )
            try:
                outcome = work.result()
            except Cancelled:
                return
            finally:
                self._memory.fetched_bytes += watch.fetched_bytes
                if watch.fetched_bytes:
                    self._memory.fetch_seconds += loop.time() - began
        for each in watch.left_out:
            self._say(each)
        if self._watch is not watch:
            return  # another order has come, or the generation begins
        steps, tree = self._memory.stock()
        torn, self._torn = self._torn, []
        self._send(
            Prepared(
                attempt=message.attempt,
                damaged=outcome.damaged[:512],
                passed_over="; ".join(torn)[:512],
                unable=outcome.unable[:16],
                refused=outcome.refused[:512],
                checkpoints=steps,
                tree=tree,
            )
        )

    # in a thread

    def _have(self, message: Prepare, watch: Watch) -> Outcome:
        """Raises:
        Cancelled: it is not asked for any more.
        """
        sources = [address(source) for source in message.sources]
        try:
            if message.step is None:
                failed = merge(self.shelf, self._config.node, sources, token=self._config.token, watch=watch)
                return Outcome(unable=unable(failed))
            self._torn += [each for each in self.shelf.torn(message.step) if each not in self._torn]
            return self._have_step(message.step, message.term, sources, watch)
        except (NoRoom, Fenced, OtherFormat) as error:
            return Outcome(refused=str(error))
        except OSError as error:
            return Outcome(refused=f"{error.filename or 'the checkpoint folder'}: {error.strerror or error}")

    def _have_step(self, step: int, term: int, sources: Sequence[Address], watch: Watch) -> Outcome:
        here = self.shelf.holder(step)
        if here is not None:
            with contextlib.suppress(OSError, ValueError):
                watch.total_bytes = read_manifest(step_path(here, step)).size_bytes
        problems = self.shelf.verify(step, watch.count, lambda: watch.cancelled)
        if self.shelf.holder(step) is not None:
            return Outcome()
        if not sources:
            return Outcome(damaged="; ".join(problems) or f"step {step} is not here any more")
        target = self.shelf.target()
        if target is None:
            return Outcome(refused=f"step {step} is not in the shared folder")
        target.mkdir(parents=True, exist_ok=True)
        failed = take_step(
            step_path(target, step).name,
            target,
            sources,
            token=self._config.token,
            fence=Fence(term=term, files=(term_file(self._config.run_dir),)),
            watch=watch,
        )
        return Outcome() if self.shelf.holder(step) is not None else Outcome(unable=unable(failed))


def address(source: Source) -> Address:
    return Address(node=source.node, host=source.host, port=source.port)


def unable(failed: dict[int, str]) -> tuple[Unable, ...]:
    return tuple(Unable(node=node, why=why[:256]) for node, why in sorted(failed.items()))


def in_thread(loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> "asyncio.Future[T]":
    """The result of work in a thread that does not keep the launcher from its end."""
    future: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            assert result is not None
            future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # handed over, and raised there
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: the launcher has ended
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="prepare", daemon=True).start()
    return future
