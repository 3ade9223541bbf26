"""What a cluster leaves on the machine: found by the slot's names, removed, and checked to be gone.

Why apart: a run that was killed cannot clean up after itself, so the next one must; and `down` proves with the same
search that nothing is left. Everything here is found by names that only this slot has, never by a program's name.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from . import process, slot
from .errors import Unhealthy
from .process import Process
from .shell import run
from .slot import Slot

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, order=True)
class Residue:
    """One thing that belongs to a slot and exists on the machine."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def find(place: Slot) -> list[Residue]:
    """Everything of this slot that exists now; empty after a clean `down`."""
    found = [Residue("process", f"{p.pid} {p.name[:80]}") for p in _processes(place)]
    found += [Residue("mount", path) for path in _mounts(place)]
    found += [Residue("network namespace", n.unique) for n in place.nodes if _netns(n.unique).exists()]
    found += [Residue("link", name) for name in _links(place)]
    found += [Residue("iptables rule", " ".join(rule)) for rule in _rules(place)]
    found += [Residue("cgroup", str(path)) for path in _cgroups(place)]
    found += [Residue("file", str(path)) for path in _files(place)]
    return sorted(found)


def remove(place: Slot) -> None:
    """Remove all of it: processes first (they hold the rest), then mounts, networks, cgroups, files.

    Raises:
        Unhealthy: something is still there; the message names it.
    """
    containerds = [p for p in _recorded(place) if p.name.startswith("containerd")]
    process.stop([p for p in _recorded(place) if p not in containerds], grace_seconds=3)
    _kill_all(
        place, keep={p.pid for p in containerds}
    )  # containers and shims, while containerd can still note it
    process.stop(containerds, grace_seconds=5)
    _kill_all(place, keep=set())
    for path in reversed(_mounts(place)):
        run("umount", "--lazy", path, check=False)
    for node in place.nodes:
        if _netns(node.unique).exists():
            run("ip", "netns", "delete", node.unique)
    for name in _links(place):
        run("ip", "link", "delete", name, check=False)  # a veth goes with its other end
    for rule in _rules(place):
        run("iptables", "-w", "-D", *rule[1:])
    for file in _files(place):
        if file.is_dir() and not file.is_symlink():
            shutil.rmtree(file)
        else:
            file.unlink(missing_ok=True)
    _remove_cgroups(place)
    if left := find(place):
        raise Unhealthy(
            f"slot {place.number} is not clean: {'; '.join(map(str, left))}; remove it and try again"
        )
    if place.run.exists():
        shutil.rmtree(place.run)


def _recorded(place: Slot) -> list[Process]:
    owner = slot.read_owner(place.number)
    return [p for p in owner.processes if p.alive] if owner else []


def _processes(place: Slot) -> list[Process]:
    """Recorded ones, those in the slot's cgroups or network namespaces, and shims of its containerds."""
    found = {p.pid: p for p in _recorded(place)}
    pids: set[int] = set()
    for folder in _cgroups(place):
        try:
            pids.update(map(int, (folder / "cgroup.procs").read_text().split()))
        except OSError:
            continue
    for node in place.nodes:
        if _netns(node.unique).exists():
            pids.update(map(int, run("ip", "netns", "pids", node.unique, check=False).split()))
    shim = f"-address {place.sockets}/"
    pids.update(pid for pid in process.pids() if shim in process.command_line(pid))
    for pid in pids - {0, os.getpid()}:
        if (one := process.of(pid)) and pid not in found:
            found[pid] = one
    return list(found.values())


def _kill_all(place: Slot, keep: set[int]) -> None:
    deadline = time.monotonic() + 15
    while (left := [p for p in _processes(place) if p.pid not in keep]) and time.monotonic() < deadline:
        for one in left:
            one.signal(signal.SIGKILL)
        time.sleep(0.1)


def _mounts(place: Slot) -> list[str]:
    ours = (f"{place.root}/", f"{place.sockets}/")
    points = [
        line.split()[4].replace("\\040", " ")
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    return [point for point in points if point.startswith(ours)]


def _links(place: Slot) -> list[str]:
    names = {place.bridge, *(n.veth for n in place.nodes)}
    return [
        link["ifname"] for link in json.loads(run("ip", "-json", "link", "show")) if link["ifname"] in names
    ]


def _rules(place: Slot) -> list[list[str]]:
    """Host rules, recognised by the comment that carries the slot's name."""
    lines = run("iptables", "-w", "-S", check=False).splitlines()
    return [line.split() for line in lines if f"--comment {place.name} " in f"{line} "]


def _cgroups(place: Slot) -> list[Path]:
    """The slot's cgroups in every hierarchy (v1) or the one (v2), deepest first."""
    tops = [CGROUPS, *(CGROUPS.iterdir() if CGROUPS.is_dir() else [])]
    found: list[Path] = []
    for node in place.nodes:
        for top in tops:
            if (top / node.unique).is_dir():
                found += [Path(folder) for folder, _, _ in os.walk(top / node.unique, topdown=False)]
    return found


def _remove_cgroups(place: Slot) -> None:
    deadline = time.monotonic() + 10
    while (left := _cgroups(place)) and time.monotonic() < deadline:
        for folder in left:
            try:
                folder.rmdir()
            except OSError:
                time.sleep(0.05)  # its last process is still being reaped


def _files(place: Slot) -> list[Path]:
    found = list(_shim_sockets(place))
    for node in place.nodes:
        found += Path("/var/lib/cni/results").glob(f"{node.unique}-*")
    logs = Path("/var/log/containers")
    if logs.is_dir():
        found += [link for link in logs.iterdir() if str(place.root) in os.path.realpath(link)]
    return found + ([place.sockets] if place.sockets.exists() else [])


def _shim_sockets(place: Slot) -> Iterator[Path]:
    """containerd puts its shims' sockets into one folder for all; each task's folder says which is its own."""
    for note in place.sockets.glob("*/state/io.containerd.runtime.v2.task/*/*/address"):
        try:
            path = Path(note.read_text().removeprefix("unix://"))
        except OSError:
            continue
        if path.exists():
            yield path


def _netns(name: str) -> Path:
    return Path("/run/netns") / name
