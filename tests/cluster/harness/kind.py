"""A kind cluster, where the `kind` program and a Docker or Podman engine are: three containers, two of them workers."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import signal as signals
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from . import binaries, images, paths, process, slot
from .binaries import KUBERNETES
from .context import on_path_or_built
from .errors import CannotRun, CommandFailed, HarnessError
from .process import Process
from .progress import say, step
from .shell import digest, run, succeeds

CONFIG = """kind: Cluster
apiVersion: kind.x-k8s.io/v1alpha4
networking: {{podSubnet: "{pods}"}}
nodes:
- role: control-plane
- role: worker
  extraMounts: [{{hostPath: "{shared}", containerPath: "{shared}", propagation: HostToContainer}}]
- role: worker
  extraMounts: [{{hostPath: "{shared}", containerPath: "{shared}", propagation: HostToContainer}}]
"""
AS_ROOT = () if os.geteuid() == 0 else ("sudo", "-n")
"""The user of kind need not be root."""


def pod_subnet(clone: Path) -> str:
    """The addresses of a clone's pods, for 16 nodes: one of 1600 ranges of 10.100.0.0 to 10.199.255.255.

    Each clone has its own because this machine gets routes to them. Below are the addresses of Services (10.96.0.0/16),
    above those of the slots and kind's default.
    """
    first = int(ipaddress.ip_address("10.100.0.0"))
    chosen = int(digest([str(clone)]), 16) % 1600
    return str(ipaddress.ip_network((first + chosen * 2**12, 20)))


class Kind:
    """Provider of a kind cluster named after the clone."""

    name = "kind"

    def __init__(self) -> None:
        self._name = f"ddpjob-{digest([str(paths.CLONE)])[:6]}"
        self._folder = paths.cache() / "kind" / self._name
        self._record = 1000 + int(
            digest([str(paths.CLONE)])[:6], 16
        )  # an owner record of its own, beside the slots'

    @property
    def engine(self) -> str:
        """docker, or podman; empty where neither answers."""
        return next(
            (name for name in ("docker", "podman") if shutil.which(name) and succeeds(name, "ps")), ""
        )

    @property
    def kubeconfig(self) -> Path:
        return self._folder / "kubeconfig"

    @property
    def nodes(self) -> tuple[str, ...]:
        return (f"{self._name}-worker", f"{self._name}-worker2")

    def missing(self) -> str | None:
        if not shutil.which("kind"):
            return "the kind program is not on PATH"
        return None if self.engine else "no Docker or Podman engine answers"

    def is_up(self) -> bool:
        return self._name in self._kind("get", "clusters").split()

    def up(self, *, detach: bool, user: Process | None) -> None:
        with slot.locked(self._name):
            if self.is_up():
                self._complete(detach=detach, user=user)
                return
            self._require_kwok()  # before minutes are spent
            try:
                self._create()
                self._complete(detach=detach, user=user)
            except BaseException:  # a Ctrl-C, too: nobody is on record for what was created
                self._undo()
                raise

    def leave(self, user: Process) -> None:
        with slot.locked(self._name):
            owner = slot.read_owner(self._record)
            if owner is None:
                return
            left = tuple(u for u in owner.users if u != user and u.alive)
            slot.write_owner(self._record, replace(owner, users=left))
        if not left and not owner.detached:
            self.down()

    def down(self) -> None:
        owner = slot.read_owner(self._record)
        process.stop(owner.processes if owner else (), grace_seconds=5)
        self._forget_routes()
        self._kind("delete", "cluster", "--name", self._name)
        slot.write_owner(self._record, None)
        for folder in (self._folder / "shared").glob("*"):
            if folder.is_mount():
                run(*AS_ROOT, "umount", "--lazy", folder)
        shutil.rmtree(self._folder, ignore_errors=True)

    def status(self) -> list[str]:
        return [
            f"kind cluster {self._name}: {'up' if self.is_up() else 'down'}",
            f"kubeconfig: {self.kubeconfig}",
        ]

    def tool(self, name: str) -> Path:
        return on_path_or_built(name)

    def ensure_image(self, target: str) -> str:
        return images.DockerBuilder(self.engine).ensure(target)

    def on_node(self, name: str, image: str) -> bool:
        listed = self._exec(name, "crictl", "images", "--output=json")
        if image not in listed:
            with step(f"loading {image} into kind"):
                self._kind("load", "docker-image", image, "--name", self._name, "--nodes", name)
        return True

    def set_link(self, name: str, *, up: bool) -> None:
        run(self.engine, "network", "connect" if up else "disconnect", "kind", name)

    def set_path(self, one: str, other: str, *, up: bool) -> None:
        for node in self.nodes:
            for source, target in ((one, other), (other, one)):
                rule = ["FORWARD", "-s", source, "-d", target, "-j", "DROP"]
                self._exec(node, "iptables", "-w", "-D" if up else "-I", *rule)

    def stop_kubelet(self, name: str) -> None:
        self._exec(name, "systemctl", "kill", "--signal=KILL", "kubelet")
        self._exec(name, "systemctl", "stop", "kubelet")

    def start_kubelet(self, name: str) -> None:
        self._exec(name, "systemctl", "start", "kubelet")

    def processes(self, uid: str, node: str) -> list[Process]:
        names = f"pod{uid}|pod{uid.replace('-', '_')}"
        script = f"grep -lE '{names}' /proc/[0-9]*/cgroup | cut -d/ -f3 | sort -n | while read pid; do "
        script += 'echo "$pid $(tr "\\0" " " < /proc/$pid/cmdline)"; done'
        lines = [line.partition(" ") for line in self._exec(node, "sh", "-c", script).splitlines()]
        # Pids are the node container's; the name carries the node so that `signal` finds it.
        return [
            Process(name=f"{node}: {command}", pid=int(pid), start=0)
            for pid, _, command in lines
            if command.strip() and not command.startswith("/pause")
        ]

    def signal(self, one: Process, number: int) -> None:
        self._exec(one.name.partition(":")[0], "kill", f"-{signals.Signals(number).value}", str(one.pid))

    def proc(self, one: Process, name: str) -> str:
        node = one.name.partition(":")[0]
        return run(self.engine, "exec", node, "cat", f"/proc/{one.pid}/{name}", check=False)

    def stop_api_server(self) -> None:
        manifests = "/etc/kubernetes"
        self._exec(
            self._control,
            "mv",
            f"{manifests}/manifests/kube-apiserver.yaml",
            f"{manifests}/kube-apiserver.yaml",
        )
        self._exec(self._control, "sh", "-c", "crictl stop $(crictl ps --quiet --name kube-apiserver)")

    def start_api_server(self) -> None:
        manifests = "/etc/kubernetes"
        self._exec(
            self._control,
            "mv",
            f"{manifests}/kube-apiserver.yaml",
            f"{manifests}/manifests/kube-apiserver.yaml",
        )
        self._kubectl("get", "--raw", "/readyz", timeout=120)

    def enforce_network_policies(self) -> None:
        """kind's own network does (since kind 0.24)."""

    def shared_directory(self, name: str, *, size_mb: int | None = None) -> str:
        folder = self._folder / "shared" / name
        folder.mkdir(parents=True, exist_ok=True)
        if size_mb is not None and not folder.is_mount():
            # On the host, from where it reaches both nodes.
            run(*AS_ROOT, "mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=777", "ddpjob-test", folder)
            return str(folder)
        folder.chmod(0o777)
        return str(folder)

    def _create(self) -> None:
        shared = self._folder / "shared"
        config = self._folder / "kind.yaml"
        with paths.needed(f"a folder for the kind cluster, {self._folder}"):
            shared.mkdir(parents=True, exist_ok=True)
            config.write_text(CONFIG.format(shared=shared, pods=pod_subnet(paths.CLONE)))
        flags = ["--name", self._name, "--config", str(config), "--kubeconfig", str(self.kubeconfig)]
        with step(f"creating the kind cluster {self._name}"):
            self._kind("create", "cluster", "--wait=180s", *flags)
            self._kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=120s")

    def _complete(self, *, detach: bool, user: Process | None) -> None:
        """Add what kind does not bring, and put on record who uses the cluster."""
        self._route_to_pods()
        self._start_kwok()
        owner = slot.read_owner(self._record)
        assert owner is not None
        users = (*(u for u in owner.users if u.alive), *([user] if user else []))
        slot.write_owner(self._record, replace(owner, detached=owner.detached or detach, users=users))

    def _undo(self) -> None:
        try:
            self.down()
        except HarnessError as failure:  # what made it necessary is raised, and says more
            say(
                f"the kind cluster {self._name} is left, `kind delete cluster --name {self._name}`: {failure}"
            )

    @property
    def _control(self) -> str:
        return f"{self._name}-control-plane"

    @property
    def _routes(self) -> Path:
        """Routes to the pods of a node that this machine did not have before, a line each; they go with the cluster."""
        return self._folder / "routes"

    def _route_to_pods(self) -> None:
        """Have this machine reach pods by their addresses, as a Prometheus beside the cluster does.

        Where it cannot (Docker Desktop, no root, a route that is there), the tests that ask for it fail, and only those.
        """
        names = (self._control, *self.nodes)
        wanted = {}
        for node in json.loads(self._kubectl("get", "node", *names, "-o", "json"))["items"]:
            addresses = {each["type"]: each["address"] for each in node["status"]["addresses"]}
            pods = node["spec"]["podCIDR"]
            wanted[pods] = f"{pods} via {addresses['InternalIP']}"
        try:
            self._forget_routes(keep=wanted.values())  # nodes that restarted may have other addresses
            for pods, route in wanted.items():
                there = run("ip", "route", "show", pods).strip()
                if not there:
                    run(*AS_ROOT, "ip", "route", "add", *route.split())
                    self._note_routes([*self._added_routes(), route])
                elif not f"{there} ".startswith(f"{route} "):
                    say(f"pods in {pods} cannot be reached from this machine: it has another route, {there}")
        except CommandFailed as failure:
            say(f"not all pods can be reached from this machine: {failure}")

    def _added_routes(self) -> list[str]:
        return self._routes.read_text().splitlines() if self._routes.exists() else []

    def _note_routes(self, routes: Iterable[str]) -> None:
        with paths.needed(f"to note routes in {self._routes}"):
            self._routes.write_text("\n".join(dict.fromkeys(routes)))

    def _forget_routes(self, keep: Collection[str] = ()) -> None:
        added = self._added_routes()
        for route in added:
            if route not in keep:
                succeeds(*AS_ROOT, "ip", "route", "del", *route.split())
        if added:
            self._note_routes(route for route in added if route in keep)

    def _start_kwok(self) -> None:
        owner = slot.read_owner(self._record)
        if owner and any(p.alive for p in owner.processes):
            return
        self._require_kwok()
        program = KUBERNETES.ensure(["kwok"]) / "kwok"
        flags = [
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        ]
        stages = [f"--config={stage}" for stage in binaries.stages()]
        argv: list[str | Path] = [
            program,
            f"--kubeconfig={self.kubeconfig}",
            *flags,
            "--node-lease-duration-seconds=40",
            *stages,
        ]
        with paths.needed("KWOK to play nodes with GPUs"):
            one = process.start("kwok", argv, self._folder / "kwok.log")
        record = slot.Owner(
            clone=str(paths.CLONE), root=str(self._folder), binaries=KUBERNETES.key(), processes=(one,)
        )
        slot.write_owner(self._record, record)

    def _require_kwok(self) -> None:
        if not KUBERNETES.cached(["kwok"]) and (reason := KUBERNETES.missing()):
            raise CannotRun(f"KWOK, which plays nodes with GPUs, must be built, and {reason}")

    def _exec(self, node: str, *argv: str) -> str:
        return run(self.engine, "exec", node, *argv)

    def _kubectl(self, *argv: str, timeout: float | None = None) -> str:
        return run(self.tool("kubectl"), f"--kubeconfig={self.kubeconfig}", *argv, timeout=timeout)

    def _kind(self, *argv: str) -> str:
        return run("kind", *argv, timeout=900, env={"KIND_EXPERIMENTAL_PROVIDER": self.engine})
