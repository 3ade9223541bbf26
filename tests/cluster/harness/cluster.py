"""`Cluster`: what tests do with a real Kubernetes.

Why apart from the providers: a test must read the same on kind, on a given context and on the Go-built cluster.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import process, waiting
from .errors import CommandFailed, TimedOut, Unhealthy
from .process import Process
from .progress import say
from .provider import Provider
from .shell import run

NAMESPACE_LABEL = "ddpjob.dev/test"


@dataclass(frozen=True)
class Images:
    """References of the project's images; each is built, and is on both real nodes, once it is asked for."""

    cluster: Cluster

    @property
    def operator(self) -> str:
        return self.cluster.ensure_image("operator")

    @property
    def trainer(self) -> str:
        return self.cluster.ensure_image("trainer")

    @property
    def frameworks(self) -> str:
        """The trainer image with accelerate and transformers."""
        return self.cluster.ensure_image("frameworks")

    @property
    def foreign(self) -> str:
        """Torch and frameworks and nothing of ours; its entrypoint is a wrapper."""
        return self.cluster.ensure_image("foreign")

    @property
    def pythonless(self) -> str:
        """A shell and no Python."""
        return self.cluster.ensure_image("pythonless")


@dataclass(frozen=True)
class Cluster:
    """A real Kubernetes with two real nodes."""

    provider: Provider
    _ready: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def kubeconfig(self) -> Path:
        return self.provider.kubeconfig

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the two real nodes."""
        return self.provider.nodes

    @property
    def images(self) -> Images:
        return Images(self)

    @property
    def environment(self) -> dict[str, str]:
        """The environment for programs that should talk to this cluster."""
        folder = self.provider.tool("kubectl").parent
        return {"KUBECONFIG": str(self.kubeconfig), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}

    # ---- talking to it

    def kubectl(self, *args: str, input: str | None = None, check: bool = True, timeout: float = 300) -> str:
        """kubectl's standard output.

        Raises:
            CommandFailed: with kubectl's own words.
        """
        return run(*self._kubectl(), *args, input=input, check=check, timeout=timeout)

    def get(
        self, kind: str, name: str = "", *, namespace: str = "default", selector: str = ""
    ) -> dict[str, Any]:
        """One object, or without a name the list, as the API server shows it."""
        chosen = [name] if name else []
        labels = ["--selector", selector] if selector else []
        found: dict[str, Any] = json.loads(
            self.kubectl("get", kind, *chosen, *labels, "-n", namespace, "-o", "json")
        )
        return found

    def apply(self, *objects: Mapping[str, Any], namespace: str = "default") -> str:
        """`kubectl apply` of objects, with kubectl's words."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.kubectl("apply", "-n", namespace, "-f", "-", input=json.dumps(listed))

    def helm(self, *args: str, timeout: float = 600) -> str:
        """helm's standard output; its own files lie beside the kubeconfig, not in the user's home."""
        home = self.kubeconfig.parent / "helm"
        env = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        tool = self.provider.tool("helm")
        return run(tool, f"--kubeconfig={self.kubeconfig}", *args, env=env, timeout=timeout)

    # ---- places for a test

    @contextmanager
    def namespace(
        self,
        prefix: str = "test",
        *,
        pod_security: str = "restricted",
        labels: Mapping[str, str] | None = None,
    ) -> Iterator[str]:
        """A fresh namespace under the given Pod Security level, deleted at the end with all that is in it."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        marks = {
            NAMESPACE_LABEL: "true",
            "pod-security.kubernetes.io/enforce": pod_security,
            **(labels or {}),
        }
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": marks}})
        try:
            # Pods are refused until the controller manager has given the namespace its service account.
            self.wait("serviceaccount/default", "create", namespace=name, timeout=30)
            yield name
        finally:
            self._delete_namespace(name)

    def static_volume(
        self, namespace: str, name: str, size: str = "1Gi", *, limit_mb: int | None = None
    ) -> Path:
        """A PersistentVolumeClaim of that name, bound, ReadWriteMany, shared by the real nodes; its folder on them.

        With a limit it can be filled: it is a memory disk of that size then.
        """
        folder = self.provider.shared_directory(f"{namespace}-{name}", size_mb=limit_mb)
        volume = f"{namespace}-{name}"
        access = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": volume, "labels": {NAMESPACE_LABEL: namespace}},
                "spec": {
                    **access,
                    "capacity": {"storage": size},
                    "hostPath": {"path": folder},
                    "claimRef": {"namespace": namespace, "name": name},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {**access, "volumeName": volume, "resources": {"requests": {"storage": size}}},
            },
            namespace=namespace,
        )
        self.wait(f"pvc/{name}", "jsonpath={.status.phase}=Bound", namespace=namespace, timeout=30)
        return Path(folder)

    def ensure_image(self, target: str) -> str:
        """Build the target's image if its content is new, and have both real nodes pull it; its reference.

        Asked once per session, so that a file saved while tests run does not change the image under them.
        """
        if target not in self._ready:
            image = self.provider.ensure_image(target)
            if cold := [name for name in self.nodes if not self.provider.on_node(name, image)]:
                self._pull(image, cold)
                if lacking := [name for name in cold if not self.provider.on_node(name, image)]:
                    raise Unhealthy(f"{image} was pulled and is not on {', '.join(lacking)}")
            self._ready[target] = image
        return self._ready[target]

    # ---- waiting

    def wait(self, resource: str, condition: str, *, namespace: str = "default", timeout: float = 60) -> None:
        """`kubectl wait --for`: `condition=Ready`, `delete`, `jsonpath={.status.phase}=Bound`, `create`.

        Raises:
            TimedOut: it did not become true; the message carries kubectl's words.
        """
        flags = ["-n", namespace, f"--for={condition}", f"--timeout={timeout}s"]
        try:
            self.kubectl("wait", resource, *flags, timeout=timeout + 30)
        except CommandFailed as failure:
            raise TimedOut(f"{resource} in {namespace}: {condition}: {failure.stderr.strip()}") from None

    def wait_until(
        self,
        kind: str,
        name: str,
        predicate: Callable[[dict[str, Any]], bool],
        *,
        namespace: str = "default",
        timeout: float = 60,
        describe: str = "",
    ) -> dict[str, Any]:
        """Watch one object, which need not exist yet, until the predicate holds; that state of it."""
        found = waiting.watch(
            [
                *(str(part) for part in self._kubectl()),
                *("get", kind, "-n", namespace, f"--field-selector=metadata.name={name}"),
                *("--watch", "--output-watch-events", "-o", "json"),
            ],
            lambda seen: seen is not None and predicate(seen),
            timeout,
            describe or f"{kind}/{name} in {namespace} is as wanted",
        )
        assert found is not None
        return found

    # ---- breaking it

    def cut(self, node: str) -> None:
        """Pull the node's network cable: it stays alive and nobody reaches it."""
        self.provider.set_link(node, up=False)

    def heal(self, node: str, *, timeout: float = 90) -> None:
        """Plug it in again, and wait until the node is Ready."""
        self.provider.set_link(node, up=True)
        self.wait(f"node/{node}", "condition=Ready", timeout=timeout)

    def part(self, one: str, other: str) -> None:
        """Two pods, by their addresses, reach each other no more: packets are dropped, no connection is reset."""
        self.provider.set_path(one, other, up=False)

    def join(self, one: str, other: str) -> None:
        """End of `part`."""
        self.provider.set_path(one, other, up=True)

    def end_kubelet(self, node: str) -> None:
        """The node's kubelet crashes and stays away; its pods run on."""
        self.provider.stop_kubelet(node)

    def restart_kubelet(self, node: str, *, timeout: float = 90) -> None:
        """Start it again, and wait until the node is Ready."""
        self.provider.start_kubelet(node)
        self.wait(f"node/{node}", "condition=Ready", timeout=timeout)

    @contextmanager
    def api_server_down(self) -> Iterator[None]:
        """The API server is gone inside the block and ready again after it."""
        self.provider.stop_api_server()
        try:
            yield
        finally:
            self.provider.start_api_server()

    def enforce_network_policies(self) -> None:
        """From now on NetworkPolicy objects have effect, on all of the cluster and for its life."""
        self.provider.enforce_network_policies()

    def containers_of(self, pod: str, *, namespace: str) -> list[Process]:
        """All processes in the pod's containers, oldest first (the first is the container's PID 1).

        Each has `pid` on its node and `name`, its command line.
        """
        found = self.get("pod", pod, namespace=namespace)
        return self.provider.processes(found["metadata"]["uid"], found["spec"].get("nodeName", ""))

    def kill(self, one: Process, signal: int = 9) -> None:
        """Send a signal (SIGKILL) to a process of a pod, from outside of it."""
        self.provider.signal(one, signal)

    def proc(self, one: Process, name: str) -> str:
        """A file of the folder in /proc of a process of a pod; empty if the process is gone."""
        return self.provider.proc(one, name)

    def add_fake_node(self, name: str, capacity: Mapping[str, str] | None = None) -> None:
        """A node that KWOK plays: Ready, runs any pod that tolerates `kwok.x-k8s.io/node`; 8 GPUs unless told."""
        room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8", **(capacity or {})}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "annotations": {"kwok.x-k8s.io/node": "fake", "node.alpha.kubernetes.io/ttl": "0"},
                    "labels": {"type": "kwok", "kubernetes.io/hostname": name, NAMESPACE_LABEL: "true"},
                },
                "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
                "status": {"capacity": room, "allocatable": room},
            }
        )
        self.wait(f"node/{name}", "condition=Ready", timeout=60)

    def remove_fake_node(self, name: str) -> None:
        """Take the fake node away, with the pods on it."""
        self.kubectl("delete", "node", name, "--ignore-not-found", "--wait=false")

    # ---- inside

    def _kubectl(self) -> list[str | Path]:
        return [self.provider.tool("kubectl"), f"--kubeconfig={self.kubeconfig}"]

    def _pull(self, image: str, nodes: list[str]) -> None:
        """A pod per node that only has the image: kubelet's own pull, so its registry and disk settings hold."""
        say(f"pulling {image} onto {', '.join(nodes)} …")
        mark = secrets.token_hex(3)
        names = {node: f"pull-{mark}-{number}" for number, node in enumerate(nodes)}
        security = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        container = {
            "name": "pull",
            "image": image,
            "command": ["true"],
            "securityContext": security,
        }
        spec = {"restartPolicy": "Never", "containers": [container], "tolerations": [{"operator": "Exists"}]}
        self.apply(
            *(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {"name": pod},
                    "spec": {**spec, "nodeName": node},
                }
                for node, pod in names.items()
            )
        )
        try:
            for node, pod in names.items():
                self.wait(f"pod/{pod}", "jsonpath={.status.phase}=Succeeded", timeout=600)
                say(f"{image} is on {node}")
        finally:
            self.kubectl("delete", "pod", *names.values(), "--grace-period=0", "--force", check=False)

    def _delete_namespace(self, name: str) -> None:
        """Nothing runs in it when this returns; the rest of the namespace goes in the background."""
        self.kubectl(
            "delete", "namespace", name, "--wait=false", check=False
        )  # first: nothing new is created now
        pods = ["delete", "pods", "--all", "-n", name, "--grace-period=1"]
        try:
            self.kubectl(*pods, "--timeout=30s")
        except CommandFailed:
            self._strip_finalizers(name)
            self.kubectl(*pods, "--timeout=60s")
        self.kubectl("delete", "pv", "--selector", f"{NAMESPACE_LABEL}={name}", "--wait=false", check=False)

    def _strip_finalizers(self, name: str) -> None:
        """Nobody removes a finalizer once its operator is gone with the test; say which ones held the namespace."""
        for pod in self.get("pods", namespace=name)["items"]:
            if held := pod["metadata"].get("finalizers"):
                where = ["pod", pod["metadata"]["name"], "-n", name]
                say(f"namespace {name} was held by pod {where[1]}: finalizers {', '.join(held)}")
                self.kubectl(
                    "patch", *where, "--type=merge", '-p={"metadata":{"finalizers":null}}', check=False
                )


def session() -> Process:
    """This test session, as a user of the cluster."""
    return process.current("test session")
