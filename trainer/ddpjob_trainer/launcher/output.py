"""The workers' output on its way to the launcher's, line by line with the rank in front.

Why apart: nothing may be lost (a last line without an end, megabytes without a line, bytes that are no text), nothing
may stop the event loop (whoever reads the launcher's output may be slow), and two ranks' lines may not mix.
Must not: interpret what passes.
"""

import asyncio
import contextlib
import os
import queue
import threading
from collections import deque

from ddpjob_trainer.launcher.timing import DRAIN_SECONDS, FLUSH_SECONDS

MAX_PIECE_BYTES = 65536
"""A line longer than this is passed on in pieces."""
BACKLOG_BYTES = 4 * 1024 * 1024
"""While this much waits for a slow reader, the workers' pipes are not read."""
READ_BYTES = 65536
TAIL_LINES = 40
TAIL_LINE_BYTES = 512
"""What is kept of a pipe's newest lines, for a worker that dies without another word."""


class Splitter:
    """Bytes to whole lines: LF, CR LF and a lone CR (progress bars) end one."""

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now, without their ends."""
        if self._after_return:
            data = data.removeprefix(b"\n")
        self._after_return = data.endswith(b"\r")
        data = self._rest + data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = data.split(b"\n")
        if len(self._rest) > MAX_PIECE_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return [piece for line in lines for piece in pieces(line)]

    def end(self) -> list[bytes]:
        """The last line, if it had no end."""
        rest, self._rest = self._rest, b""
        return pieces(rest) if rest else []


def pieces(line: bytes) -> list[bytes]:
    cuts = range(0, max(len(line), 1), MAX_PIECE_BYTES)
    return [line[cut : cut + MAX_PIECE_BYTES] for cut in cuts]


class Sink:
    """The launcher's own standard output and error, written by one thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._pumps: set[Pump] = set()
        self._thread = threading.Thread(target=self._write, name="output", daemon=True)
        self._thread.start()

    def put(self, descriptor: int, data: bytes) -> None:
        with self._lock:
            self._waiting += len(data)
            full = self._waiting > BACKLOG_BYTES
        self._queue.put((descriptor, data))
        if full:
            for pump in self._pumps:
                pump.hold()

    def say(self, text: str) -> None:
        """A line of the launcher's own."""
        lines = text.splitlines() or [""]
        self.put(1, b"".join(b"[ddpjob] " + line.encode("utf-8", "replace") + b"\n" for line in lines))

    def register(self, pump: "Pump") -> None:
        self._pumps.add(pump)

    def forget(self, pump: "Pump") -> None:
        self._pumps.discard(pump)

    def flush(self) -> None:
        """Wait until all is written, for a bounded time."""
        self._queue.put(None)
        self._thread.join(FLUSH_SECONDS)

    def _write(self) -> None:
        broken: set[int] = set()
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            rest = memoryview(data)
            while rest and descriptor not in broken:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                except OSError:
                    broken.add(descriptor)  # the reader is gone; training goes on
            with self._lock:
                before = self._waiting
                self._waiting -= len(data)
                low = self._waiting <= BACKLOG_BYTES // 4 < before
            if low:
                with contextlib.suppress(RuntimeError):  # the loop is over; its pumps are closed
                    self._loop.call_soon_threadsafe(self._resume)

    def _resume(self) -> None:
        for pump in self._pumps:
            pump.go_on()


class Pump:
    """One pipe of one worker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sink: Sink, prefix: bytes, target: int) -> None:
        self._loop = loop
        self._sink = sink
        self._prefix = prefix
        self._target = target
        self._splitter = Splitter()
        self._descriptor, self.inlet = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._descriptor, False)
        self._held = False
        self.tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        """The newest lines."""
        self.drained = asyncio.Event()
        """End of the pipe: nobody can write to it any more."""

    def start(self) -> None:
        """Close our copy of the worker's end and begin to read."""
        os.close(self.inlet)
        self._sink.register(self)
        self._loop.add_reader(self._descriptor, self._read)

    def hold(self) -> None:
        if not self._held and not self.drained.is_set():
            self._held = True
            self._loop.remove_reader(self._descriptor)

    def go_on(self) -> None:
        if self._held and not self.drained.is_set():
            self._held = False
            self._loop.add_reader(self._descriptor, self._read)

    def catch_up(self) -> None:
        """Read what is there now."""
        while not self.drained.is_set() and self._read():
            pass

    async def drain(self) -> None:
        """Wait for the rest of the output; children of the worker that keep the pipe do not block for ever."""
        try:
            await asyncio.wait_for(self.drained.wait(), DRAIN_SECONDS)
        except TimeoutError:
            self._put(self._splitter.end())

    def close(self) -> None:
        """Read what is there and let go of the pipe."""
        self.catch_up()
        self._end()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._end()
            return False
        self._put(self._splitter.feed(data))
        return True

    def _end(self) -> None:
        if self.drained.is_set():
            return
        self._put(self._splitter.end())
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._sink.forget(self)
        self.drained.set()

    def _put(self, lines: list[bytes]) -> None:
        if lines:
            self.tail.extend(line[:TAIL_LINE_BYTES] for line in lines[-TAIL_LINES:])
            self._sink.put(self._target, b"".join(self._prefix + line + b"\n" for line in lines))
