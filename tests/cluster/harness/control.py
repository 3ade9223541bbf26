"""The control plane of one slot: etcd, API server, controllers, scheduler, DNS, KWOK, as processes of the host.

Defaults are kept wherever a test could notice (Pod Security admission, DNS ttl and cache, node grace periods); what
differs is only what a throw-away cluster on one machine must have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import binaries, process, slot
from .errors import Unhealthy
from .pki import Authority
from .process import Process
from .shell import run, succeeds
from .slot import Slot
from .waiting import eventually

COREFILE = """.:53 {{
    bind {gateway}
    errors
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    cache 30
    loadbalance
}}
"""
"""kubeadm's, with ttl and cache as there (a negative answer lives 30 s, which programs must survive), less `forward`:
these clusters have no world outside."""


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """Starts, checks and stops the control plane of a slot."""

    place: Slot
    binaries: Path

    @property
    def authority(self) -> Authority:
        return Authority(self.place.run / "pki")

    @property
    def server(self) -> str:
        return f"https://{self.place.gateway}:6443"

    def create_identities(self) -> None:
        """Certificates for all, kubeconfigs for the clients."""
        place, authority = self.place, self.authority
        authority.create()
        names = f"IP:127.0.0.1,IP:10.96.0.1,IP:{place.gateway},DNS:localhost,DNS:kubernetes.default.svc"
        authority.issue("apiserver", "/CN=kube-apiserver", names)
        authority.issue("admin", "/O=system:masters/CN=admin")
        for name in ("kube-controller-manager", "kube-scheduler", "kube-proxy"):
            authority.issue(name, f"/CN=system:{name}")
            authority.kubeconfig(name, self.server, place.name, place.run / f"{name}.kubeconfig")
        for node in place.nodes:
            authority.issue(
                node.name, f"/O=system:nodes/CN=system:node:{node.name}", f"DNS:{node.name},IP:{node.address}"
            )
            authority.kubeconfig(node.name, self.server, place.name, place.run / f"{node.name}.kubeconfig")
        authority.kubeconfig("admin", self.server, place.name, place.kubeconfig)

    def start(self) -> None:
        """Start everything and wait until the API server is ready.

        Raises:
            Unhealthy: it did not become ready; the message names its log.
        """
        place = self.place
        self._spawn(
            "etcd",
            f"--data-dir={place.run}/etcd",
            f"--listen-client-urls=http://{place.loopback}:2379",
            f"--advertise-client-urls=http://{place.loopback}:2379",
            f"--listen-peer-urls=http://{place.loopback}:2380",
            f"--initial-advertise-peer-urls=http://{place.loopback}:2380",
            f"--initial-cluster=default=http://{place.loopback}:2380",
            "--unsafe-no-fsync",  # a lost machine loses the cluster with it anyway
        )
        self.start_api_server()
        for name in ("kube-controller-manager", "kube-scheduler"):
            kubeconfig = f"{place.run}/{name}.kubeconfig"
            own = _CONTROLLERS if name == "kube-controller-manager" else []
            self._spawn(
                name,
                *(f"--{kind}kubeconfig={kubeconfig}" for kind in ("", "authentication-", "authorization-")),
                "--leader-elect=false",
                f"--bind-address={place.loopback}",
                *(flag.format(pki=self.authority.folder) for flag in own),
            )
        corefile = place.run / "Corefile"
        corefile.write_text(COREFILE.format(gateway=place.gateway, kubeconfig=place.kubeconfig))
        self._spawn("coredns", "-conf", corefile)
        self._spawn(
            "kwok",
            f"--kubeconfig={place.kubeconfig}",
            "--manage-all-nodes=false",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
            f"--server-address={place.loopback}:10247",
            *(f"--config={stage}" for stage in binaries.stages()),
        )

    def start_api_server(self) -> None:
        """Start the API server alone (again, after a test took it away) and wait until it is ready."""
        place, pki = self.place, self.authority.folder
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers=http://{place.loopback}:2379",
            "--secure-port=6443",
            f"--bind-address={place.gateway}",
            f"--advertise-address={place.gateway}",
            f"--service-cluster-ip-range={place.services}",
            f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key",
            f"--client-ca-file={pki}/ca.crt",
            f"--service-account-key-file={pki}/sa.pub",
            f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--enable-aggregator-routing=true",  # webhooks are called by endpoint: the host has no service addresses
            f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key",
            f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP",
        )
        log = place.logs / "kube-apiserver.log"
        eventually(
            self.ready, timeout=90, describe=f"the API server is ready (its log: {log})", error=Unhealthy
        )

    def ready(self) -> bool:
        """Whether the API server says that it is ready."""
        kubectl = self.binaries / "kubectl"
        return succeeds(
            kubectl,
            f"--kubeconfig={self.place.kubeconfig}",
            "get",
            "--raw",
            "/readyz",
            "--request-timeout=5s",
        )

    def api_server(self) -> Process | None:
        """The API server's process."""
        owner = slot.read_owner(self.place.number)
        return (
            next((p for p in owner.processes if p.name == "kube-apiserver" and p.alive), None)
            if owner
            else None
        )

    def _spawn(self, name: str, *flags: str | Path) -> None:
        spawn(self.place, name, [self.binaries / name, *flags])


def spawn(place: Slot, name: str, argv: Sequence[str | Path]) -> Process:
    """Start a process of this slot and put it on record."""
    one = process.start(name, argv, place.logs / f"{name}.log")
    slot.add_process(place, one)
    return one


def create_network(place: Slot) -> None:
    """The bridge that joins host and nodes, passed by the host's firewall whatever its policy is."""
    run("ip", "link", "add", place.bridge, "type", "bridge")
    run("ip", "address", "add", f"{place.gateway}/24", "dev", place.bridge)
    run("ip", "link", "set", place.bridge, "up")
    comment = ["-m", "comment", "--comment", place.name, "-j", "ACCEPT"]
    run("iptables", "-w", "-I", "FORWARD", "-i", place.bridge, "-o", place.bridge, *comment)
    run("iptables", "-w", "-I", "INPUT", "-i", place.bridge, *comment)


_CONTROLLERS = [
    "--service-account-private-key-file={pki}/sa.key",
    "--root-ca-file={pki}/ca.crt",
    "--cluster-signing-cert-file={pki}/ca.crt",
    "--cluster-signing-key-file={pki}/ca.key",
    "--use-service-account-credentials=true",
]
