"""Slots: numbered places on a machine where one clone's cluster lives.

Why: everything a cluster owns (bridge, namespaces, addresses, cgroups, sockets) carries the slot's number, so two
clones side by side never meet; and a slot's image store stays when its cluster goes, so a fresh clone starts warm.

Must not: start or stop anything (`gobuilt.py`), or look for leftovers (`residue.py`).
"""

from __future__ import annotations

import fcntl
import ipaddress
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import paths, process
from .errors import CannotRun
from .process import Process
from .shell import run

SLOTS = 16
NODES = 2


@dataclass(frozen=True, kw_only=True)
class Node:
    """The names and addresses of one real node."""

    slot: int
    index: int
    root: Path
    """Its containerd's image store; stays when the cluster goes."""

    run: Path
    """Its kubelet's and CNI's files; goes with the cluster."""

    @property
    def name(self) -> str:
        return f"node-{self.index}"

    @property
    def unique(self) -> str:
        """Names its network namespace, CNI network and cgroup."""
        return f"ddpjob{self.slot}-{self.name}"

    @property
    def veth(self) -> str:
        return f"ddpjob{self.slot}-v{self.index}"

    @property
    def address(self) -> str:
        return f"172.30.{self.slot}.{10 + self.index}"

    @property
    def pods(self) -> str:
        return f"10.{200 + self.slot}.{self.index}.0/24"

    @property
    def sockets(self) -> Path:
        return paths.RUN / str(self.slot) / self.name

    @property
    def containerd(self) -> Path:
        return self.sockets / "containerd.sock"

    def inside(self, *argv: str | Path) -> list[str]:
        """The command in this node's network (not `ip netns exec`: that hides /sys/fs/cgroup)."""
        return ["nsenter", f"--net=/run/netns/{self.unique}", *(str(a) for a in argv)]


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The names, addresses and folders of one cluster."""

    number: int
    root: Path

    @property
    def name(self) -> str:
        return f"ddpjob{self.number}"

    @property
    def bridge(self) -> str:
        return self.name

    @property
    def gateway(self) -> str:
        """The host's address on the bridge: API server, DNS and registry listen there."""
        return f"172.30.{self.number}.1"

    @property
    def loopback(self) -> str:
        """An address for what nodes and pods must not reach (etcd, health ports)."""
        return f"127.0.77.{self.number + 1}"

    @property
    def pods(self) -> str:
        return f"10.{200 + self.number}.0.0/16"

    @property
    def services(self) -> str:
        return "10.96.0.0/16"  # lives in the nodes' namespaces only, so slots may share it

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def sockets(self) -> Path:
        return paths.RUN / str(self.number)

    @property
    def kubeconfig(self) -> Path:
        return self.run / "kubeconfig"

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(
            Node(slot=self.number, index=i, root=self.root / f"node-{i}", run=self.run / f"node-{i}")
            for i in range(NODES)
        )


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds a slot, and the processes started in it."""

    clone: str
    root: str
    """The slot's folder: another clone that cleans up needs it, even if its own cache lies elsewhere."""

    binaries: str
    """Key of the binaries that run, so that new versions restart the cluster."""

    detached: bool = False
    """Kept running when its users are gone."""

    users: tuple[Process, ...] = ()
    """Test sessions that use the cluster; the last one to leave takes it down unless it is detached."""

    processes: tuple[Process, ...] = ()

    @property
    def abandoned(self) -> bool:
        """Whether anybody may take the slot: its clone, processes or users are gone."""
        if not Path(self.clone).is_dir() or not any(p.alive for p in self.processes):
            return not any(u.alive for u in self.users)
        return not self.detached and not any(u.alive for u in self.users)


def read_owner(number: int) -> Owner | None:
    """The owner on record; None for a slot that nobody holds."""
    record = _record(number)
    with paths.needed(f"to read the record {record}"):
        try:
            data = json.loads(record.read_text())
        except (FileNotFoundError, ValueError):
            return None
    for key in ("users", "processes"):
        data[key] = tuple(Process(**p) for p in data[key])
    return Owner(**data)


def write_owner(number: int, owner: Owner | None) -> None:
    """Replace the record in one step; None frees the slot."""
    record = _record(number)
    with paths.needed(f"to write the record {record}"):
        if owner is None:
            record.unlink(missing_ok=True)
            return
        beside = record.with_suffix(".new")
        beside.write_text(json.dumps(asdict(owner)))
        beside.replace(record)


def add_process(slot: Slot, process: Process) -> None:
    """Put a process on record the moment it exists, so that a killed run can be cleaned up."""
    owner = read_owner(slot.number)
    assert owner is not None, "a process was started in a slot that nobody owns"
    kept = tuple(p for p in owner.processes if p.name != process.name or p.alive)
    write_owner(slot.number, replace(owner, processes=(*kept, process)))


def mine() -> Slot | None:
    """The slot that this clone holds, if any."""
    for number in range(SLOTS):
        owner = read_owner(number)
        if owner and owner.clone == str(paths.CLONE):
            return Slot(number=number, root=Path(owner.root))
    return None


def claim(binaries: str) -> Slot:
    """This clone's slot: the one it holds, else the first that nobody else holds.

    Raises:
        CannotRun: all are taken, or their addresses are in use by other networks of this machine.
    """
    with locked("slots"):
        held = mine()
        if held:
            return held
        for candidate in range(SLOTS):
            owner = read_owner(candidate)
            if (owner and not owner.abandoned) or _foreign_network(candidate):
                continue
            # A dead owner's record stays until its leftovers are removed; only the clone's name changes hands.
            root = Path(owner.root) if owner else paths.cache() / "slots" / str(candidate)
            root = root if root.parent.is_dir() else paths.cache() / "slots" / str(candidate)
            # Until its processes run, the one that starts them keeps the slot from being taken for abandoned.
            me = (process.current("starting"),)
            fresh = Owner(clone=str(paths.CLONE), root=str(root), binaries=binaries, users=me)
            write_owner(candidate, replace(fresh, processes=owner.processes if owner else ()))
            return Slot(number=candidate, root=root)
    raise CannotRun(
        f"all {SLOTS} cluster slots of this machine are taken or overlap with other networks; end a cluster with "
        "`python -m tests.cluster.harness down` in its clone"
    )


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock among all clones of this user; the kernel frees it if the holder dies."""
    lock = paths.run_folder() / f"{name}.lock"
    with paths.needed(f"the lock {lock}"):
        handle = lock.open("w")
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _record(number: int) -> Path:
    return paths.run_folder() / f"{number}.json"


def _foreign_network(number: int) -> bool:
    slot = Slot(number=number, root=Path("/"))
    ours = [ipaddress.ip_network(f"{slot.gateway}/24", strict=False), ipaddress.ip_network(slot.pods)]
    for route in json.loads(run("ip", "-json", "route", "show", "table", "main") or "[]"):
        if route.get("dev") == slot.bridge or route["dst"] == "default":
            continue
        network = ipaddress.ip_network(route["dst"], strict=False)
        if any(network.version == own.version and network.overlaps(own) for own in ours):
            return True
    return False
