"""Whether processes of this container wait for a core, from the kernel's pressure counters.

Why apart: a standby may have what nobody else wants, and only the kernel sees that: a wait counts whether the cores are
taken by others or the container has used up its quota. Must not: stop or start anything (`standby.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ddpjob_trainer.cgroup import CGROUP, MOUNT, group_paths
from ddpjob_trainer.launcher.timing import BUSY_SECONDS, PRESSURE_SECONDS

MACHINE = Path("/proc/pressure/cpu")
MOST = 0.1
"""Part of the time in which some process may have waited."""


@dataclass(kw_only=True)
class Pressure:
    """Of our own group, or of the machine where groups are not counted; cores are taken for busy until it is known."""

    cgroup: Path = CGROUP
    mount: Path = MOUNT
    machine: Path = MACHINE
    _seen: tuple[float, float] | None = None
    """When the counter was looked at, and what it was."""
    _busy_until: float = float("inf")

    def low(self, now: float) -> bool:
        """Whether for some time nobody has waited for a core; to be asked again and again."""
        if self._seen is None or now >= self._seen[0] + PRESSURE_SECONDS:
            self._look(now)
        return now >= self._busy_until

    def _look(self, now: float) -> None:
        waited = next(self._counters(), None)
        if waited is None:
            self._busy_until = float("inf")
            return
        if self._seen is not None:
            at, before = self._seen
            if waited - before > MOST * (now - at):
                self._busy_until = now + BUSY_SECONDS
            elif self._busy_until == float("inf"):
                self._busy_until = now
        self._seen = (now, waited)

    def _counters(self) -> Iterator[float]:
        """Seconds in which some process waited, since ever; the nearest counter first."""
        folder = group_paths(self.cgroup)[""].lstrip("/")
        for path in (self.mount / folder / "cpu.pressure", self.mount / "cpu.pressure", self.machine):
            try:
                some = path.read_text().partition("\n")[0]
                yield int(some.rpartition("total=")[2]) / 1e6
            except (OSError, ValueError):
                continue
