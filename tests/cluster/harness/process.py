"""Processes that outlive the command that started them, known by pid *and* start time.

Why the start time: a pid alone may have been given to somebody else's process since, and the harness ends only
what it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process, by an identity that is never given out twice."""

    name: str
    pid: int
    start: int
    """Clock ticks since boot at which it started (`/proc/<pid>/stat`, field 22)."""

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (a zombie does not)."""
        return _stat(self.pid) == (self.start, True)

    def signal(self, number: int) -> None:
        """Send a signal, if it is still this process."""
        if self.alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass


def of(pid: int, name: str = "") -> Process | None:
    """The process that has this pid now; None if there is none."""
    stat = _stat(pid)
    return Process(name=name or command_line(pid), pid=pid, start=stat[0]) if stat and stat[1] else None


def current(name: str) -> Process:
    """This process."""
    here = of(os.getpid(), name)
    assert here is not None
    return here


def start(name: str, argv: Sequence[str | Path], log: Path) -> Process:
    """Start a process in a session of its own, output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            [str(a) for a in argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
    child.returncode = (
        0  # never waited for by Popen: it outlives us, and `stop` reaps it where it is our child
    )
    stat = _stat(child.pid)
    return Process(name=name, pid=child.pid, start=stat[0] if stat else 0)


def stop(processes: Iterable[Process], grace_seconds: float) -> None:
    """SIGTERM, then SIGKILL for what is left after the grace; returns when all are gone."""
    left = [p for p in processes if p.alive]
    if grace_seconds > 0:
        for process in left:
            process.signal(signal.SIGTERM)
        left = _wait(left, grace_seconds)
    for process in left:
        process.signal(signal.SIGKILL)
    _wait(left, 10)


def command_line(pid: int) -> str:
    """The process's arguments, joined with spaces; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def pids() -> list[int]:
    """All pids of the machine."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _wait(processes: list[Process], seconds: float) -> list[Process]:
    deadline = time.monotonic() + seconds
    while (left := [p for p in processes if p.alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for process in processes:
        try:
            os.waitpid(process.pid, os.WNOHANG)  # reaps it if it is a child of ours
        except (ChildProcessError, ValueError):
            pass
    return left


def _stat(pid: int) -> tuple[int, bool] | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[19]), fields[0] not in "ZX"
