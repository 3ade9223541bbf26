"""Child processes: starting them, signalling their groups, and reaping everything that dies under this launcher.

Why apart: a PID 1 (or subreaper) must reap orphans it never started, with `waitpid(-1)`, which would take the exit
statuses from under asyncio's child watcher; so this module is the only one that starts and reaps processes.
Must not: know ranks or generations (`crew.py`).
"""

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


class Process:
    """A child, leader of its own session and process group."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """Python's: negative for a signal."""
        self.ended = asyncio.Event()

    def send(self, number: int) -> None:
        """Signal the process alone, if it lives."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_group(self, number: int) -> None:
        """Signal the process and what it started; its group outlives it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


class Children:
    """All child processes of this launcher."""

    def __init__(self) -> None:
        self._live: dict[int, Process] = {}

    def adopt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Become the parent of orphans below, and reap from now on."""
        if os.getpid() != 1:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        loop.add_signal_handler(signal.SIGCHLD, self.reap)

    def spawn(
        self,
        command: list[str],
        env: Mapping[str, str],
        stdout: int,
        stderr: int,
        *,
        channel: tuple[int, int] | None = None,
    ) -> Process:
        """Start a process with its output on the given descriptors; `channel`: one more, and its number there.

        Raises:
            OSError: it cannot be started.
        """
        pid = os.posix_spawnp(
            command[0],
            command,
            env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, stdout, 1),
                (os.POSIX_SPAWN_DUP2, stderr, 2),
                *([(os.POSIX_SPAWN_DUP2, *channel)] if channel is not None else []),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these, and ignoring is inherited
        )
        process = Process(pid)
        self._live[pid] = process
        return process

    def reap(self) -> None:
        """Collect every child that has ended, ours or adopted."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            process = self._live.pop(pid, None)
            if process is not None:
                process.returncode = os.waitstatus_to_exitcode(status)
                process.ended.set()

    def kill_orphans(self) -> int:
        """SIGKILL adopted processes: what left its group and outlived its worker. Returns how many."""
        strangers = [pid for pid in child_pids() if pid not in self._live]
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return len(strangers)


def child_pids() -> list[int]:
    """Direct children of this process; none where the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    for task in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in task.read_text().split()]
    return found
