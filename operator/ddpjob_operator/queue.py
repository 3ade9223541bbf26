"""Work by key: each key once in the queue, one worker per key, failures again after a growing pause.

Why our own: kopf logs and drops the exceptions of low-level handlers, so that retries must live somewhere.
Must not: know what the work is.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

log = logging.getLogger("ddpjob.queue")
BACKOFF_FIRST = 0.25
BACKOFF_MOST = 60.0


class Queue(Generic[K]):
    """Calls `work(key)` for every key that was added; what it returns is when (seconds) to come back, or None."""

    def __init__(self, work: Callable[[K], Awaitable[float | None]], *, workers: int) -> None:
        self._work = work
        self._workers = workers
        self._due: dict[K, float] = {}
        """Waiting keys and since when, in the order in which they are taken."""
        self._active: dict[K, float] = {}
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._waiting = asyncio.Event()
        """Set while keys are due."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []
        self.failed: Callable[[K, BaseException], None] = lambda key, error: None
        """Told of every failure, for metrics."""

    def add(self, key: K) -> None:
        """Work on the key soon. While it is worked on, once more afterwards."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._active:
            self._again.add(key)
            return
        if key not in self._due:
            self._due[key] = asyncio.get_running_loop().time()
            self._waiting.set()
            self._idle.clear()

    def add_after(self, key: K, seconds: float) -> None:
        """Work on the key then, or earlier if something else asks for it."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, seconds)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= when:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(when, self.add, key)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(), name=f"queue-{n}") for n in range(self._workers)]

    async def stop(self) -> None:
        """End the workers, also in the middle of their work: what they write is safe to be cut off at any point."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def idle(self) -> None:
        """Wait until nothing is due or in work (timers aside)."""
        await self._idle.wait()

    @property
    def depth(self) -> int:
        return len(self._due) + len(self._active)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest key has waited or been worked on."""
        since = min([*self._due.values(), *self._active.values()], default=None)
        return 0.0 if since is None else asyncio.get_running_loop().time() - since

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._due:
                self._waiting.clear()
                await self._waiting.wait()
            key = next(iter(self._due))
            del self._due[key]
            self._active[key] = loop.time()
            try:
                again = await self._work(key)
            except Exception as error:
                self.failed(key, error)
                self.add_after(key, self._pause(key))
            else:
                self._failures.pop(key, None)
                if again is not None:
                    self.add_after(key, again)
            finally:
                self._active.pop(key, None)
            if key in self._again:
                self._again.discard(key)
                self.add(key)
            if not (self._due or self._active):
                self._idle.set()

    def _pause(self, key: K) -> float:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return float(min(BACKOFF_MOST, BACKOFF_FIRST * 2 ** min(failures, 16)) * random.uniform(0.75, 1.25))
