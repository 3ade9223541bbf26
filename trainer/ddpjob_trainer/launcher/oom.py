"""Whether the kernel killed for memory in this container, from its cgroup's counters.

Why apart: SIGKILL says nothing of its sender; the two cgroup versions keep the count in different files.
Must not: blame a rank (`cause.py`).
"""

import contextlib
from pathlib import Path

from ddpjob_trainer.cgroup import CGROUP, MOUNT, group_paths


class OomCounter:
    """Kills for memory since this was made."""

    def __init__(self, cgroup: Path = CGROUP, mount: Path = MOUNT) -> None:
        self._files = candidates(cgroup, mount)
        self._before = self._count()

    def killed(self) -> bool:
        """Whether there was a new kill since the last call."""
        now = self._count()
        new, self._before = now > self._before, now
        return new

    def _count(self) -> int:
        for file in self._files:
            with contextlib.suppress(OSError):
                found = oom_kills(file.read_text())
                if found is not None:
                    return found
        return 0


def candidates(cgroup: Path, mount: Path) -> list[Path]:
    """The files that may have the count: version 2, then version 1, each at our path or the namespace's root."""
    paths = group_paths(cgroup)
    return [
        mount / paths[""].lstrip("/") / "memory.events",
        mount / "memory" / paths["memory"].lstrip("/") / "memory.oom_control",
        mount / "memory.events",
        mount / "memory" / "memory.oom_control",
    ]


def oom_kills(text: str) -> int | None:
    """`oom_kill N`; both versions write it so."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None
