"""How much memory this container may still take, and what a process holds, from the kernel's counters.

Why apart: a machine may be short of memory below every limit (`cgroup.py`), and what it is short of is not ours to take.
Must not: decide what may be started (`reserve.py`).
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpjob_trainer.cgroup import CGROUP, MOUNT, memory_limits, numbers

MEMINFO = Path("/proc/meminfo")
SPARED = 0.1
"""Part of the machine's memory that is left to others."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True)
class Room:
    """Where the counters are."""

    cgroup: Path = CGROUP
    mount: Path = MOUNT
    meminfo: Path = MEMINFO

    def left(self) -> int:
        """Bytes that can be had before a limit is met or the machine is short; page cache that can go counts as room.

        Negative where it is short already; 0 where nothing is known.
        """
        rooms = [*self._below_limits(), *self._on_machine()]
        return min(rooms, default=0)

    def _below_limits(self) -> Iterator[int]:
        for limit in memory_limits(self.cgroup, self.mount):
            yield limit.most - (limit.used - limit.inactive_cache)

    def _on_machine(self) -> Iterator[int]:
        with contextlib.suppress(OSError, KeyError):
            known = numbers(self.meminfo.read_text().replace(":", ""))
            yield (known["MemAvailable"] - int(known["MemTotal"] * SPARED)) * 1024


def private_bytes(pid: int) -> int:
    """Memory that a process has for itself alone (not the files it maps); 0 where it is gone."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES
