"""Whether the kernel killed for memory in this container, from its cgroup's counters.

Why apart: SIGKILL says nothing of its sender; the two cgroup versions keep the count in different files.
Must not: blame a rank (`cause.py`).
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from ddpjob_trainer.cgroup import CGROUP, MOUNT, group_paths
from ddpjob_trainer.launcher.timing import COMMAND_OOM_SECONDS, OOM_SECONDS


class OomCounter:
    """Kills for memory since this was made, also of processes that are no worker, after which nobody asks."""

    def __init__(
        self, cgroup: Path = CGROUP, mount: Path = MOUNT, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._files = candidates(cgroup, mount)
        self._clock = clock
        self._before = self._count()
        self._kills: list[float] = []
        """When each that may still be a worker's was seen."""

    def look(self) -> None:
        """See what is new, often enough to know when it came."""
        now, count = self._clock(), self._count()
        self._kills += [now] * (count - self._before)
        self._kills = [at for at in self._kills if at > now - COMMAND_OOM_SECONDS]
        self._before = max(self._before, count)

    def forget(self) -> None:
        """No worker lives: what was killed so far was none of those that come."""
        self.look()
        self._kills = []

    def killed(self, *, within: float = OOM_SECONDS) -> bool:
        """Whether a worker that has ended now may be one of the killed; each is one worker's."""
        self.look()
        oldest = self._clock() - within
        kill = next((at for at in self._kills if at > oldest), None)
        if kill is None:
            return False
        self._kills.remove(kill)
        return True

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
