"""The memory limits of this container and what they count, from the kernel's files in either cgroup version.

Why apart: the two versions keep limit and use in different files, and any group above ours may have the lower limit;
the launcher (room for a standby, the words of a kill) and the training loop (room for a copy) ask the same.
Must not: decide what may be taken (`launcher/room.py`, `loop/memory.py`), or import what is not the standard library.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/proc/self/cgroup")
MOUNT = Path("/sys/fs/cgroup")
NO_LIMIT_BYTES = 1 << 62
"""Version 1 has a number where there is no limit: the largest that it can count, in whole pages."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The memory limit of one group, in bytes."""

    most: int
    used: int
    inactive_cache: int = 0
    """Of what is used: pages of files that nobody has read lately."""
    active_cache: int = 0
    """And those that somebody has."""


def memory_limits(cgroup: Path = CGROUP, mount: Path = MOUNT) -> Iterator[Limit]:
    """Those of our group and of all around it that can be seen, in both versions; none where there is no limit."""
    paths = group_paths(cgroup)
    for folder in upwards(mount, paths[""]):
        yield from limit_of(folder, "memory.max", "memory.current", cache="")
    for folder in upwards(mount / "memory", paths["memory"]):
        yield from limit_of(folder, "memory.limit_in_bytes", "memory.usage_in_bytes", cache="total_")


def lowest_limit(cgroup: Path = CGROUP, mount: Path = MOUNT) -> int | None:
    """Bytes that this container may have; None: as many as the machine has."""
    return min((limit.most for limit in memory_limits(cgroup, mount)), default=None)


def quantity(count: int) -> str:
    """Bytes as the memory limit of a pod is written: `2500Mi`, `2Gi`."""
    for power, unit in ((30, "Gi"), (20, "Mi")):
        if count and count % (1 << power) == 0:
            return f"{count >> power}{unit}"
    return f"{count / (1 << 20):.1f}Mi"


def group_paths(cgroup: Path) -> dict[str, str]:
    """Our group in the unified hierarchy (""), and in version 1's of `memory`; the root where there is none."""
    paths = {"": "/", "memory": "/"}
    with contextlib.suppress(OSError):
        for line in cgroup.read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if "memory" in controllers.split(","):
                paths["memory"] = path
            elif not controllers:
                paths[""] = path
    return paths


def upwards(mount: Path, path: str) -> Iterator[Path]:
    """The folder of a group and of all groups around it, the mount itself last."""
    folder = mount / path.lstrip("/")
    yield folder
    while folder != mount and mount in folder.parents:
        folder = folder.parent
        yield folder


def limit_of(folder: Path, most: str, used: str, *, cache: str) -> Iterator[Limit]:
    """A group's limit, if it has one; `cache` is what the names of its caches begin with."""
    with contextlib.suppress(OSError, ValueError):
        limit, taken = int((folder / most).read_text()), int((folder / used).read_text())
        if limit >= NO_LIMIT_BYTES:
            return
        counts: dict[str, int] = {}
        with contextlib.suppress(OSError):
            counts = numbers((folder / "memory.stat").read_text())
        yield Limit(
            most=limit,
            used=taken,
            inactive_cache=counts.get(f"{cache}inactive_file", 0),
            active_cache=counts.get(f"{cache}active_file", 0),
        )


def numbers(text: str) -> dict[str, int]:
    """`name 123 …` per line."""
    found = {}
    for line in text.splitlines():
        name, *rest = line.split()[:2] or [""]
        if rest and rest[0].isdecimal():
            found[name] = int(rest[0])
    return found
