"""A cluster built from Go modules and Debian packages: two real nodes in network namespaces, no Docker.

This module is the order of things; the parts are `slot` (whose), `control` and `node` (what runs), `images`,
`residue` (what must go).
"""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from pathlib import Path

from . import node, packages, paths, process, residue, slot
from .binaries import KUBERNETES, NETWORK_POLICY
from .control import ControlPlane, create_network, spawn
from .errors import CannotRun, Unhealthy
from .images import PodmanBuilder, registry_config
from .node import RealNode
from .process import Process
from .progress import say, step
from .shell import run, succeeds
from .slot import Slot
from .waiting import eventually

HOLDS_TORCH = "holds-torch"
"""Marks an image store that has the largest layers already, for the estimate of disk."""


class GoBuilt:
    """Provider of the cluster in this clone's slot."""

    name = "go-built"

    def __init__(self) -> None:
        self._held: Slot | None = None

    def missing(self) -> str | None:
        """Why this machine cannot have such a cluster, in one line; None if it can."""
        if platform.system() != "Linux":
            return f"network namespaces are Linux's; this is {platform.system()}"
        if os.geteuid() != 0:
            return "not root, which network namespaces and containerd need"
        return packages.missing() or KUBERNETES.missing()

    @property
    def place(self) -> Slot:
        """The slot that this clone holds."""
        if self._held is None:
            self._held = slot.mine()
        if self._held is None:
            raise CannotRun("no cluster is up; start one with `python -m tests.cluster.harness up`")
        return self._held

    @property
    def kubeconfig(self) -> Path:
        return self.place.kubeconfig

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.place.nodes)

    def tool(self, name: str) -> Path:
        """The path of kubectl or helm."""
        return KUBERNETES.folder() / name

    def is_up(self) -> bool:
        """Whether this clone holds a slot."""
        return slot.mine() is not None

    def up(self, *, detach: bool, user: Process | None) -> None:
        """A healthy cluster in this clone's slot, started if it is not up.

        `user` is a session that needs it: when the last user is gone the cluster may be taken down, unless detached.
        """
        needed = _disk_needed_gb()
        say(f"the cluster needs up to {needed:.0f} GB more in {paths.cache()}")
        paths.require_disk(needed, "the cluster")
        packages.ensure()
        programs = KUBERNETES.ensure()
        place = self._held = slot.claim(KUBERNETES.key())
        with slot.locked(place.name):
            if self.healthy():
                say(f"the cluster in slot {place.number} is up")
            else:
                self._start(place, programs)
            owner = slot.read_owner(place.number)
            assert owner is not None
            users = {u.pid: u for u in (*owner.users, *([user] if user else [])) if u.alive}
            slot.write_owner(
                place.number, replace(owner, detached=owner.detached or detach, users=tuple(users.values()))
            )

    def leave(self, user: Process) -> None:
        """The session needs the cluster no more; the last one takes it down unless it is detached."""
        place = self.place
        with slot.locked(place.name):
            owner = slot.read_owner(place.number)
            if owner is None:
                return
            left = tuple(u for u in owner.users if u != user and u.alive)
            slot.write_owner(place.number, replace(owner, users=left))
            if not left and not owner.detached:
                self._stop(place)

    def down(self) -> None:
        """Take the cluster down and prove that nothing is left of it."""
        place = self.place
        with slot.locked(place.name):
            self._stop(place)

    def healthy(self) -> bool:
        """Whether all processes of the record run, from current binaries, and both nodes are Ready."""
        owner = slot.read_owner(self.place.number)
        if not owner or not owner.processes or owner.binaries != KUBERNETES.key():
            return False
        if not all(p.alive for p in owner.processes):
            return False
        ready = "{range .items[*]}{.metadata.name}={.status.conditions[?(@.type=='Ready')].status} {end}"
        flags = [f"--kubeconfig={self.kubeconfig}", "--request-timeout=10s"]
        listed = run(self.tool("kubectl"), *flags, "get", "nodes", "-o", f"jsonpath={ready}", check=False)
        return all(f"{name}=True" in listed for name in self.nodes)

    def status(self) -> list[str]:
        """Lines for a person: slot, processes, nodes."""
        owner = slot.read_owner(self.place.number) if self.is_up() else None
        if owner is None:
            return ["nothing is up"]
        lines = [
            f"slot {self.place.number} of {owner.clone}, {'detached' if owner.detached else 'bound to its users'}"
        ]
        lines += [f"{p.name:26} pid {p.pid} {'runs' if p.alive else 'is gone'}" for p in owner.processes]
        lines += [f"used by pid {u.pid} ({u.name})" for u in owner.users if u.alive]
        return [*lines, f"healthy: {'yes' if self.healthy() else 'no'}", f"kubeconfig: {self.kubeconfig}"]

    # What tests do to it.

    def ensure_image(self, target: str) -> str:
        """Build the image and put it into the registry, if its content is new; its reference."""
        return self._builder().ensure(target)

    def layers(self, image: str) -> dict[str, int]:
        """The image's layers in the registry and their sizes in bytes."""
        return self._builder().layers(image)

    def on_node(self, name: str, image: str) -> bool:
        """Whether the node has the image already."""
        one = next(n for n in self.place.nodes if n.name == name)
        flags = [f"--address={one.containerd}", "--namespace=k8s.io"]
        found = bool(run("ctr", *flags, "images", "list", "-q", f"name=={image}").strip())
        if found and "/trainer:" in image:
            (one.root / HOLDS_TORCH).touch()
        return found

    def set_link(self, name: str, *, up: bool) -> None:
        """Plug or pull the node's network cable."""
        node.set_link(next(n for n in self.place.nodes if n.name == name), up=up)

    def set_path(self, one: str, other: str, *, up: bool) -> None:
        """Pass or drop what two pods send each other."""
        for here in self.place.nodes:
            node.set_path(here, one, other, up=up)
            node.set_path(here, other, one, up=up)

    def stop_kubelet(self, name: str) -> None:
        """End the node's kubelet, as a crash does; its pods run on."""
        if one := self._kubelet(name):
            process.stop([one], grace_seconds=0)

    def start_kubelet(self, name: str) -> None:
        """Start it again, where it is gone."""
        if self._kubelet(name) is None:
            one = next(n for n in self.place.nodes if n.name == name)
            RealNode(place=self.place, node=one, binaries=KUBERNETES.folder()).resume_kubelet()

    def processes(self, uid: str, _node: str) -> list[Process]:
        """The processes of a pod's containers."""
        return node.processes_of_pod(uid)

    def signal(self, one: Process, number: int) -> None:
        """Send a signal to a process of a pod."""
        one.signal(number)

    def proc(self, one: Process, name: str) -> str:
        """A file of the process's folder in /proc."""
        try:
            return Path(f"/proc/{one.pid}/{name}").read_text() if one.alive else ""
        except OSError:
            return ""

    def stop_api_server(self) -> None:
        """End the API server, as an outage does."""
        if one := self._control().api_server():
            process.stop([one], grace_seconds=0)

    def start_api_server(self) -> None:
        """End the outage."""
        if self._control().api_server() is None:
            self._control().start_api_server()

    def enforce_network_policies(self) -> None:
        """Start kube-router's firewall on every node; it stays for the life of the cluster."""
        program = NETWORK_POLICY.ensure() / "kube-router"
        place = self.place
        with slot.locked(place.name):
            owner = slot.read_owner(place.number)
            running = {p.name for p in owner.processes if p.alive} if owner else set()
            for one in place.nodes:
                if (name := f"kube-router-{one.index}") not in running:
                    spawn(place, name, one.inside(program, *_firewall(place, one.name)))

    def shared_directory(self, name: str, *, size_mb: int | None = None) -> str:
        """A folder that is the same on all nodes, writable for every user; with a size it is a memory disk."""
        folder = self.place.run / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        if size_mb is not None and not folder.is_mount():
            run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "ddpjob-test", folder)
        folder.chmod(0o777)
        return str(folder)

    def _kubelet(self, name: str) -> Process | None:
        index = next(n for n in self.place.nodes if n.name == name).index
        return self._recorded(f"kubelet-{index}")

    def _recorded(self, name: str) -> Process | None:
        owner = slot.read_owner(self.place.number)
        return next((p for p in owner.processes if p.name == name and p.alive), None) if owner else None

    def _control(self) -> ControlPlane:
        return ControlPlane(place=self.place, binaries=KUBERNETES.folder())

    def _builder(self) -> PodmanBuilder:
        return PodmanBuilder(f"{self.place.gateway}:5000")

    def _start(self, place: Slot, programs: Path) -> None:
        with step(f"removing leftovers of slot {place.number}"):
            self._stop(place)
        slot.write_owner(
            place.number, slot.Owner(clone=str(paths.CLONE), root=str(place.root), binaries=KUBERNETES.key())
        )
        for folder in (place.run, place.logs, place.sockets, *(n.root for n in place.nodes)):
            folder.mkdir(parents=True, exist_ok=True)
        for log in place.logs.glob("*.log"):
            log.unlink()
        control = self._control()
        with step("starting the control plane"):
            control.create_identities()
            create_network(place)
            config = place.run / "registry.yaml"
            config.write_text(registry_config(place.gateway))
            spawn(place, "registry", ["docker-registry", "serve", config])
            control.start()
        with step(f"starting nodes {', '.join(self.nodes)}"):
            eventually(
                lambda: succeeds("curl", "-fsS", "--noproxy", "*", f"http://{place.gateway}:5000/v2/"),
                timeout=20,
                describe=f"the registry answers (its log: {place.logs}/registry.log)",
                error=Unhealthy,
            )
            self._builder().ensure_pause()
            real = [RealNode(place=place, node=one, binaries=programs) for one in place.nodes]
            for one in real:
                one.connect()
                one.start_containerd()
            for one in real:
                one.start_kubelet()
            eventually(
                lambda: self._nodes_ready(real),
                timeout=90,
                describe=f"nodes {', '.join(self.nodes)} are Ready (logs: {place.logs}/kubelet-*.log)",
                every=0.5,
                error=Unhealthy,
            )
            # Pods are refused until the controller manager has given the namespace its service account.
            flags = [f"--kubeconfig={place.kubeconfig}", "--for=create", "--timeout=30s"]
            run(programs / "kubectl", "wait", "serviceaccount/default", *flags)

    def _nodes_ready(self, nodes: list[RealNode]) -> bool:
        for one in nodes:
            one.keep_kubelet()
        return self.healthy()

    def _stop(self, place: Slot) -> None:
        residue.remove(place)
        slot.write_owner(place.number, None)


def _firewall(place: Slot, node_name: str) -> list[str]:
    return [
        f"--kubeconfig={place.kubeconfig}",
        f"--hostname-override={node_name}",
        f"--service-cluster-ip-range={place.services}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--run-loadbalancer=false",
        "--health-port=0",
    ]


def _disk_needed_gb() -> float:
    """What is not in the cache yet: Go's modules and binaries 8, builder and registry 9, image stores 7 each."""
    place = slot.mine() or Slot(number=0, root=paths.cache() / "slots" / "0")
    warm = [one for one in place.nodes if (one.root / HOLDS_TORCH).exists()]
    total = 0.0 if KUBERNETES.cached() else 8.0
    total += (
        0.0 if (paths.cache() / "registry/docker/registry/v2/repositories/ddpjob/trainer").exists() else 9.0
    )
    return total + 7.0 * (slot.NODES - len(warm)) + 1.0
