"""Copies of the state in the memory of the node, between two checkpoints.

Why apart: a copy in memory costs no disk and outlives the worker, but it must never be what the training dies of: it is
written only where as much again stays free, by the volume and by the limit of the container.
Must not: raise for want of room; the checkpoints on the disk are there too.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from ddpjob_trainer.cgroup import CGROUP, MOUNT, memory_limits, numbers
from ddpjob_trainer.checkpoint_writing import Content, prune, remove_leftovers, write_step
from ddpjob_trainer.checkpoints import Position
from ddpjob_trainer.fence import Fenced
from ddpjob_trainer.loop.board import say
from ddpjob_trainer.loop.told import Told

KEEP = 2
"""One is whole while the next is written."""
MEMINFO = Path("/proc/meminfo")


class MemoryCopies:
    """The copies of one node."""

    def __init__(self, told: Told) -> None:
        """Leftovers of a worker that died while it wrote are removed."""
        assert told.memory_dir is not None
        self.told, self.folder = told, told.memory_dir
        self.refused = ""
        """Why the newest copy was not written; said once per reason."""
        remove_leftovers(self.folder)

    def write(self, position: Position, contents: Mapping[str, Content], size_bytes: int) -> None:
        """Write a copy if there is room for it."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # The older of the two makes room first, so that memory holds two and never three.
            prune(self.folder, newest=position.step, keep=KEEP - 1)
            free = free_memory(self.folder)
            if free < 2 * size_bytes:
                self.refuse(
                    f"it takes {size_bytes >> 20} MiB, and of {free >> 20} MiB that are free as much again must stay "
                    "so; raise the memory limit, or take checkpoint.inMemoryEverySteps away"
                )
                return
            write_step(
                self.folder,
                position,
                contents,
                entrypoint=self.told.task.entrypoint,
                fence=self.told.fence,
            )
        except Fenced as fenced:
            self.refuse(str(fenced))
        except OSError as error:
            self.refuse(str(error))
        else:
            self.refused = ""

    def refuse(self, why: str) -> None:
        if not self.refused:
            say(f"WARNING no copy of the state in memory: {why}")
        self.refused = why


def free_memory(folder: Path, *, meminfo: Path = MEMINFO, cgroup: Path = CGROUP, mount: Path = MOUNT) -> int:
    """Bytes that may still be taken: of the volume, of the machine, and of the container's limit."""
    volume = os.statvfs(folder)
    found = [volume.f_bavail * volume.f_frsize]
    with contextlib.suppress(OSError, KeyError):
        found.append(numbers(meminfo.read_text().replace(":", ""))["MemAvailable"] * 1024)
    # Clean pages of files are given back before anybody is killed.
    found += [
        limit.most - limit.used + limit.inactive_cache + limit.active_cache
        for limit in memory_limits(cgroup, mount)
    ]
    return max(0, min(found))
