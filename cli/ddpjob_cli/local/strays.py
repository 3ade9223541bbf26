"""Processes that outlive their launcher: they come to us and are ended with the run.

Why apart: a launcher that is killed leaves workers in sessions of their own, which no signal to its group reaches.
Linux hands orphans to the nearest ancestor that asks for them; elsewhere these functions do nothing.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt(*, on: bool) -> None:
    """Ask for orphans below us, or ask no more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def die_with_parent() -> Callable[[], None] | None:
    """What a child runs before its program so that it is told to end when we die of anything."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def run_in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return run_in_child


def children() -> set[int]:
    """Our direct children that still run."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if int(parent) == os.getpid() and state != "Z":
            found.add(int(stat.parent.name))
    return found


def kill_all_but(spared: set[int]) -> int:
    """Kill our children, and theirs as they come to us; returns how many."""
    count = 0
    while found := children() - spared:
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
        count += len(found)
    return count
