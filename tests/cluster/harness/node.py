"""One real node: a network namespace with containerd, kubelet and kube-proxy of its own.

Works with cgroup v1 and v2 and without CAP_SYS_RESOURCE. Pods are attached with the CNI plugin `ptp` (as kind does):
every packet is routed through the node's own iptables, so service addresses work between pods of one node too,
whether or not the kernel filters bridges.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from . import process
from .control import spawn
from .errors import Unhealthy
from .images import HOST, PAUSE
from .process import Process
from .shell import run, succeeds
from .slot import Node, Slot
from .waiting import eventually


@dataclass(kw_only=True)
class RealNode:
    """Starts one node of a slot."""

    place: Slot
    node: Node
    binaries: Path
    kubelet: Process | None = None
    """The one started last."""

    def connect(self) -> None:
        """Its network: a namespace on the slot's bridge, routes to the pods of all nodes."""
        node, place = self.node, self.place
        run("ip", "netns", "add", node.unique)
        run("ip", "link", "add", node.veth, "type", "veth", "peer", "name", "eth0", "netns", node.unique)
        run("ip", "link", "set", node.veth, "master", place.bridge, "up")
        for command in (
            "ip link set lo up",
            f"ip address add {node.address}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {place.gateway}",
            "sysctl -qw net.ipv4.ip_forward=1",
            *(f"ip route add {peer.pods} via {peer.address}" for peer in place.nodes if peer != node),
        ):
            run(*node.inside(*command.split()))
        run("ip", "route", "add", node.pods, "via", node.address)

    def start_containerd(self) -> None:
        """containerd, with the images of earlier clusters and none of their containers."""
        config = self._write("containerd.toml", _containerd(self.place, self.node))
        self._write("cni/10-ddpjob.conflist", json.dumps(_cni(self.node)))
        self._write(f"registries/{HOST}/hosts.toml", _registry(self.place))
        one = self._start_containerd(config)
        if left := self.ctr("containers", "list", "-q").split():
            self.ctr("containers", "delete", *left)
            process.stop([one], grace_seconds=5)  # its CRI side still knows them: start it again without
            self._start_containerd(config)

    def start_kubelet(self) -> None:
        """kubelet (written for a supervisor: see `keep_kubelet`) and kube-proxy."""
        node, place = self.node, self.place
        _create_cgroups(node.unique)
        for folder in ("kubelet", "pod-logs"):
            (node.run / folder).mkdir(parents=True, exist_ok=True)
        self._spawn_kubelet(self._write("kubelet.yaml", _kubelet(place, node)))
        config = self._write("kube-proxy.yaml", _kube_proxy(place, node))
        spawn(
            place, f"kube-proxy-{node.index}", node.inside(self.binaries / "kube-proxy", f"--config={config}")
        )

    def keep_kubelet(self) -> None:
        """Start kubelet again if it has ended.

        It gives up at once where containerd's CRI side is not up yet ("server is not initialized yet"), which answers
        later than containerd does and has no client here to be asked with.
        """
        if self.kubelet is not None and not self.kubelet.alive:
            self._spawn_kubelet(self.node.run / "kubelet.yaml")

    def resume_kubelet(self) -> None:
        """Start a kubelet that was ended by a test."""
        self._spawn_kubelet(self.node.run / "kubelet.yaml")

    def _spawn_kubelet(self, config: Path) -> None:
        node, place = self.node, self.place
        self.kubelet = spawn(
            place,
            f"kubelet-{node.index}",
            node.inside(
                self.binaries / "kubelet",
                f"--config={config}",
                f"--kubeconfig={place.run}/{node.name}.kubeconfig",
                f"--hostname-override={node.name}",
                f"--node-ip={node.address}",
                f"--root-dir={node.run}/kubelet",
            ),
        )

    def ctr(self, *argv: str) -> str:
        """containerd's own client, in Kubernetes' namespace."""
        return run("ctr", "--address", self.node.containerd, "--namespace", "k8s.io", *argv)

    def _start_containerd(self, config: Path) -> Process:
        node = self.node
        one = spawn(self.place, f"containerd-{node.index}", node.inside("containerd", "--config", config))
        log = self.place.logs / f"{one.name}.log"

        def answers() -> bool:
            return succeeds("ctr", "--address", node.containerd, "version")

        eventually(answers, timeout=30, describe=f"{one.name} answers (its log: {log})", error=Unhealthy)
        return one

    def _write(self, name: str, text: str) -> Path:
        path = self.node.run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


def set_link(node: Node, *, up: bool) -> None:
    """Plug or pull the node's network cable."""
    run("ip", "link", "set", node.veth, "up" if up else "down")


def set_path(node: Node, source: str, target: str, *, up: bool) -> None:
    """Pass or drop on this node, without a word to either side, what one pod sends another (addresses)."""
    rule = ["FORWARD", "-s", source, "-d", target, "-j", "DROP"]
    dropped = succeeds(*node.inside("iptables", "-w", "-C", *rule))
    if dropped == up:
        run(*node.inside("iptables", "-w", "-D" if up else "-I", *rule))


def processes_of_pod(uid: str) -> list[Process]:
    """The host's processes in the pod's cgroups, oldest first; the sandbox's own is left out."""
    names = (f"pod{uid}", f"pod{uid.replace('-', '_')}")
    found = []
    for pid in process.pids():
        try:
            cgroup = Path(f"/proc/{pid}/cgroup").read_text()
        except OSError:
            continue
        if any(name in cgroup for name in names) and (one := process.of(pid)) and not _is_pause(one):
            found.append(one)
    return sorted(found, key=lambda one: (one.start, one.pid))


def _is_pause(one: Process) -> bool:
    return process.command_line(one.pid).startswith(("/pause", "/catatonit -P"))


def _create_cgroups(name: str) -> None:
    """The node's cgroup in every hierarchy; kubelet only makes what lies below it."""
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        available = (root / "cgroup.controllers").read_text().split()
        (root / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in available))
        (root / name).mkdir(exist_ok=True)
        return
    for hierarchy in root.iterdir():
        if hierarchy.name != "unified" and hierarchy.is_dir() and not hierarchy.is_symlink():
            (hierarchy / name).mkdir(exist_ok=True)
    for setting in ("cpuset.cpus", "cpuset.mems"):
        for cpuset in root.glob(f"*/{name}/{setting}"):
            cpuset.write_text((cpuset.parents[1] / setting).read_text())


def _containerd(place: Slot, node: Node) -> str:
    return f"""version = 2
root = "{node.root}"
state = "{node.sockets}/state"
[grpc]
  address = "{node.containerd}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    discard_unpacked_layers = true
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{node.run}/registries"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{node.run}/cni"
"""


def _registry(place: Slot) -> str:
    server = f"http://{place.gateway}:5000"
    return f'server = "{server}"\n[host."{server}"]\n  capabilities = ["pull", "resolve"]\n'


def _cni(node: Node) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "dataDir": str(node.run / "ipam"),
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "mtu": 1500, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "1.0.0", "name": node.unique, "plugins": plugins}


def _kubelet(place: Slot, node: Node) -> str:
    return f"""apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: {place.run}/pki/ca.crt}}
authorization: {{mode: Webhook}}
address: {node.address}
tlsCertFile: {place.run}/pki/{node.name}.crt
tlsPrivateKeyFile: {place.run}/pki/{node.name}.key
containerRuntimeEndpoint: unix://{node.containerd}
cgroupDriver: cgroupfs
cgroupRoot: /{node.unique}
failCgroupV1: false
enforceNodeAllocatable: []
failSwapOn: false
oomScoreAdj: 0
localStorageCapacityIsolation: false
clusterDNS: [{place.gateway}]
clusterDomain: cluster.local
resolvConf: /dev/null
podLogsDir: {node.run}/pod-logs
serializeImagePulls: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {{imagefs.available: "1%", nodefs.available: "1%", memory.available: 100Mi}}
"""


def _kube_proxy(place: Slot, node: Node) -> str:
    return f"""apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: {place.pods}
clientConnection: {{kubeconfig: {place.run}/kube-proxy.kubeconfig}}
hostnameOverride: {node.name}
conntrack: {{maxPerCore: 0}}
oomScoreAdj: 0
"""
