"""The launcher processes of a local run, one per node.

Why apart: whatever happens to the command line, no process of the run outlives it. Must not: know what a job is; it
gets environments and hands on lines.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from ddpjob_cli.errors import Unusable
from ddpjob_cli.local import strays

LAUNCHER = (sys.executable, "-P", "-m", "ddpjob_trainer.launcher")
"""`-P`: a `random.py` of the user's is the program's to import, not the launcher's."""
MAX_LINE_BYTES = 16384
MAX_LOG_BYTES = 32 * 1024 * 1024
"""Then a log is turned over, once: `log.1`."""
TERM_SECONDS = 5.0
"""Between asking launchers to end and killing them, where they were asked before."""
DRAIN_SECONDS = 1.0
"""How long the output of an ended launcher is read on: a stray may hold the pipe open."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one launcher is started with."""

    environment: Mapping[str, str]
    log: Path


class Nodes:
    """Launchers, started in the order of their nodes; leaving the context ends them all."""

    def __init__(self, on_line: Callable[[int, str], None]) -> None:
        self.on_line = on_line
        self.processes: list[Process] = []
        self.spared: set[int] = set()
        self._readers: list[asyncio.Task[None]] = []
        self._waiters: list[asyncio.Task[int]] = []

    async def __aenter__(self) -> Self:
        self.spared = strays.children()
        strays.adopt(on=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.kill()
        finally:
            strays.adopt(on=False)

    async def start(self, launches: Sequence[Launch], *, directory: Path, lock: int) -> None:
        """Start them in `directory`; `lock` stays open in each.

        Raises:
            Unusable: the system refuses.
        """
        for node, launch in enumerate(launches):
            process = await self._spawn(node, launch, directory, lock)
            self.processes.append(process)
            self._readers.append(asyncio.create_task(self._forward(node, process, launch.log)))
            self._waiters.append(asyncio.create_task(process.wait()))

    async def restart(self, node: int, launch: Launch, *, directory: Path, lock: int) -> None:
        """Start an ended launcher again; what it left behind is killed first.

        Raises:
            Unusable: the system refuses.
        """
        self._readers[node].cancel()
        strays.kill_all_but(self.spared | {process.pid for process in self.processes})
        process = await self._spawn(node, launch, directory, lock)
        self.processes[node] = process
        self._readers[node] = asyncio.create_task(self._forward(node, process, launch.log))
        self._waiters[node] = asyncio.create_task(process.wait())

    async def _spawn(self, node: int, launch: Launch, directory: Path, lock: int) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *LAUNCHER,
                cwd=directory,
                env=dict(launch.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
                preexec_fn=strays.die_with_parent(),
            )
        except OSError as error:
            raise Unusable(f"the launcher of node {node} cannot be started: {error}") from error

    @property
    def returncodes(self) -> list[int | None]:
        return [process.returncode for process in self.processes]

    async def wait(self, seconds: float) -> bool:
        """Wait until all have ended and their output is read, or the time is over; whether they have."""
        _, running = await asyncio.wait(self._waiters, timeout=seconds)
        if running:
            return False
        _, reading = await asyncio.wait(self._readers, timeout=DRAIN_SECONDS)
        for reader in reading:
            reader.cancel()
        return True

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    async def end(self) -> None:
        """Ask them to end, then kill what is left."""
        self.signal(signal.SIGTERM)
        if not await self.wait(TERM_SECONDS):
            await self.kill()

    async def kill(self) -> None:
        """Kill launchers, their groups, and every process below them."""
        for process in self.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
        if self._waiters:
            await self.wait(TERM_SECONDS)
        strays.kill_all_but(self.spared)
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)

    async def _forward(self, node: int, process: Process, log: Path) -> None:
        assert process.stdout is not None
        pending = b""
        with Log(log) as file:
            while chunk := await process.stdout.read(65536):
                file.keep(chunk)
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    self._line(node, line)
                if len(pending) > MAX_LINE_BYTES:
                    self._line(node, pending)
                    pending = b""
            if pending:
                self._line(node, pending)

    def _line(self, node: int, line: bytes) -> None:
        self.on_line(node, line[:MAX_LINE_BYTES].decode(errors="replace").rstrip("\r"))


class Log:
    """A node's output in a file that is turned over when it is long. A full disk must not end a training for its log."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._bytes = 0

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def keep(self, chunk: bytes) -> None:
        """Write, if the disk takes it."""
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._file.write(chunk)
        self._bytes += len(chunk)
        if self._bytes > MAX_LOG_BYTES and chunk.endswith(b"\n"):
            self._file.close()
            with contextlib.suppress(OSError):
                self._path.replace(self._path.with_name(self._path.name + ".1"))
            self._open()

    def _open(self) -> None:
        self._file = None
        with contextlib.suppress(OSError):
            self._file = self._path.open("ab", buffering=0)
            self._bytes = self._path.stat().st_size
