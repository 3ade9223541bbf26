"""How much memory this container may still take, and what a process holds, from the kernel's counters.

Why apart: the two cgroup versions keep limit and use in different files, any group above may have the lower limit, and
a machine may be short of memory below every limit. Must not: decide what may be started (`reserve.py`).
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpjob_trainer.launcher.oom import CGROUP, MOUNT, group_paths

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
        paths = group_paths(self.cgroup)
        for folder in upwards(self.mount, paths[""]):
            yield from left_by(folder, "memory.max", "memory.current", "inactive_file")
        for folder in upwards(self.mount / "memory", paths["memory"]):
            yield from left_by(
                folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )

    def _on_machine(self) -> Iterator[int]:
        with contextlib.suppress(OSError, KeyError):
            known = numbers(self.meminfo.read_text().replace(":", ""))
            yield (known["MemAvailable"] - int(known["MemTotal"] * SPARED)) * 1024


def upwards(mount: Path, path: str) -> Iterator[Path]:
    """The folder of a group and of all groups around it, the mount itself last."""
    folder = mount / path.lstrip("/")
    yield folder
    while folder != mount and mount in folder.parents:
        folder = folder.parent
        yield folder


def left_by(folder: Path, limit: str, use: str, cache: str) -> Iterator[int]:
    """What a group's limit leaves; nothing where it has none."""
    with contextlib.suppress(OSError, ValueError):
        most = int((folder / limit).read_text())
        used = int((folder / use).read_text())
        spare = 0
        with contextlib.suppress(OSError):
            spare = numbers((folder / "memory.stat").read_text()).get(cache, 0)
        yield most - (used - spare)


def numbers(text: str) -> dict[str, int]:
    """`name 123 …` per line."""
    found = {}
    for line in text.splitlines():
        name, *rest = line.split()[:2] or [""]
        if rest and rest[0].isdecimal():
            found[name] = int(rest[0])
    return found


def private_bytes(pid: int) -> int:
    """Memory that a process has for itself alone (not the files it maps); 0 where it is gone."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES
