"""The harness keeps what it promises to the tests that stand on it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness import (
    Cluster,
    CommandFailed,
    TimedOut,
    eventually,
    paths,
    residue,
)
from tests.cluster.harness.gobuilt import GoBuilt
from tests.cluster.harness.slot import SLOTS, Slot, read_owner

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pod(name: str, image: str, script: str, **spec: Any) -> dict[str, Any]:
    """A pod that runs a line of Python under the restricted level."""
    container = {
        "name": "main",
        "image": image,
        "command": ["python", "-c", script],
        "securityContext": RESTRICTED,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            **spec,
        },
    }


def test_two_real_nodes_are_ready(cluster: Cluster) -> None:
    assert len(cluster.nodes) == 2
    for node in cluster.nodes:
        cluster.wait(f"node/{node}", "condition=Ready", timeout=5)


def test_an_error_of_kubectl_carries_its_own_words(cluster: Cluster) -> None:
    with pytest.raises(CommandFailed, match='namespaces "absent" not found'):
        cluster.kubectl("get", "namespace", "absent")


def test_pod_security_is_enforced(cluster: Cluster) -> None:
    with cluster.namespace() as namespace:
        loose = pod("loose", "example.test/none", "")
        del loose["spec"]["containers"][0]["securityContext"]
        with pytest.raises(CommandFailed, match="violates PodSecurity"):
            cluster.apply(loose, namespace=namespace)


def test_a_headless_service_resolves_across_nodes(cluster: Cluster) -> None:
    image = cluster.images.operator
    listen = "import socket; s = socket.create_server(('', 8000)); c, _ = s.accept(); c.sendall(b'hello')"
    call = (
        "import socket, time\n"
        "while True:\n"
        "    try:\n"
        "        print(socket.create_connection(('server.net', 8000), 5).recv(9).decode()); break\n"
        "    except OSError as error: print(error, flush=True); time.sleep(1)\n"
    )
    with cluster.namespace() as namespace:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "net"},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": "server"}},
        }
        server = pod("server", image, listen, nodeName=cluster.nodes[0], hostname="server", subdomain="net")
        cluster.apply(service, server, namespace=namespace)
        cluster.wait("pod/server", "condition=Ready", namespace=namespace)
        cluster.apply(pod("client", image, call, nodeName=cluster.nodes[1]), namespace=namespace)
        cluster.wait("pod/client", "jsonpath={.status.phase}=Succeeded", namespace=namespace, timeout=60)
        assert cluster.kubectl("logs", "client", "-n", namespace).endswith("hello\n")


def test_a_service_address_works_between_pods_of_one_node(cluster: Cluster) -> None:
    image = cluster.images.operator
    listen = "import socket; s = socket.create_server(('', 8000)); c, _ = s.accept(); c.sendall(b'hello')"
    call = (
        "import socket, time\n"
        "while True:\n"
        "    try:\n"
        "        print(socket.create_connection(('vip', 80), 5).recv(9).decode()); break\n"
        "    except OSError as error: print(error, flush=True); time.sleep(1)\n"
    )
    with cluster.namespace() as namespace:
        ports = [{"port": 80, "targetPort": 8000}]
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vip"}}
        service["spec"] = {"selector": {"app": "server"}, "ports": ports}
        pods = [pod("server", image, listen), pod("client", image, call)]
        for one in pods:
            one["spec"]["nodeName"] = cluster.nodes[0]
        cluster.apply(service, *pods, namespace=namespace)
        cluster.wait("pod/client", "jsonpath={.status.phase}=Succeeded", namespace=namespace, timeout=60)
        assert cluster.kubectl("logs", "client", "-n", namespace).endswith("hello\n")


@pytest.mark.slow
def test_a_network_policy_is_enforced(cluster: Cluster) -> None:
    cluster.enforce_network_policies()
    image = cluster.images.operator
    listen = "import socket; s = socket.create_server(('', 8000))\nwhile True: s.accept()"
    call = (
        "import socket, sys, time\n"
        "for attempt in range(30):\n"
        "    try: socket.create_connection((sys.argv[1], 8000), 2); print('reached', flush=True)\n"
        "    except OSError: print('stopped', flush=True)\n"
        "    time.sleep(1)\n"
    )
    with cluster.namespace() as namespace:
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "closed"},
        }
        allowed = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}
        policy["spec"] = {"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [allowed]}
        cluster.apply(policy, pod("server", image, listen, nodeName=cluster.nodes[0]), namespace=namespace)
        cluster.wait("pod/server", "condition=Ready", namespace=namespace)
        address = cluster.get("pod", "server", namespace=namespace)["status"]["podIP"]
        for name in ("friend", "stranger"):
            caller = pod(name, image, call, nodeName=cluster.nodes[1])
            caller["spec"]["containers"][0]["command"].append(address)
            cluster.apply(caller, namespace=namespace)

        def said(name: str, word: str) -> bool:
            lines = cluster.kubectl("logs", name, "-n", namespace, check=False).splitlines()
            return lines[-3:] == [word] * 3  # a new pod is unknown to the firewall for a moment

        for name, word in (("friend", "reached"), ("stranger", "stopped")):
            eventually(lambda: said(name, word), timeout=40, describe=f"{name} {word}")  # noqa: B023


def test_a_fake_node_runs_a_pod_that_asks_for_gpus(cluster: Cluster) -> None:
    cluster.add_fake_node("gpu-node")
    try:
        with cluster.namespace() as namespace:
            tolerations = [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]
            wanted = pod("wants-gpus", "example.test/none", "", tolerations=tolerations)
            wanted["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "8"}}
            cluster.apply(wanted, namespace=namespace)

            def running(seen: dict[str, Any]) -> bool:
                return bool(seen["status"].get("phase") == "Running")

            found = cluster.wait_until("pod", "wants-gpus", running, namespace=namespace)
            assert found["spec"]["nodeName"] == "gpu-node"
    finally:
        cluster.remove_fake_node("gpu-node")


def test_a_static_volume_is_shared_by_both_nodes(cluster: Cluster) -> None:
    image = cluster.images.operator
    with cluster.namespace() as namespace:
        folder = cluster.static_volume(namespace, "shared")
        for node in cluster.nodes:
            one = pod(f"writer-{node}", image, f"open('/data/{node}', 'w')", nodeName=node)
            one["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "shared"}}]
            one["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            cluster.apply(one, namespace=namespace)
        for node in cluster.nodes:
            done = "jsonpath={.status.phase}=Succeeded"
            cluster.wait(f"pod/writer-{node}", done, namespace=namespace, timeout=60)
        assert sorted(path.name for path in folder.iterdir()) == sorted(cluster.nodes)


def test_a_process_in_a_pod_can_be_killed_from_outside(cluster: Cluster) -> None:
    image = cluster.images.operator
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(3600)'])"
    with cluster.namespace() as namespace:
        cluster.apply(pod("victim", image, script), namespace=namespace)
        cluster.wait("pod/victim", "condition=Ready", namespace=namespace)
        found = eventually(
            lambda: [p for p in cluster.containers_of("victim", namespace=namespace) if "3600" in p.name],
            timeout=20,
            describe="the pod's processes are seen",
        )
        cluster.kill(found[-1])
        cluster.wait("pod/victim", "jsonpath={.status.phase}=Succeeded", namespace=namespace)


def test_the_api_server_can_go_and_come_back(cluster: Cluster) -> None:
    with cluster.api_server_down(), pytest.raises(CommandFailed):
        cluster.kubectl("get", "nodes", "--request-timeout=3s")
    cluster.kubectl("get", "nodes")


@pytest.mark.slow
def test_a_node_that_is_cut_off_becomes_not_ready_and_heals(cluster: Cluster) -> None:
    node = cluster.nodes[1]
    cluster.cut(node)
    try:
        cluster.wait(f"node/{node}", "condition=Ready=Unknown", timeout=120)
    finally:
        cluster.heal(node)


def test_waiting_says_what_was_seen_last(cluster: Cluster) -> None:
    with pytest.raises(
        TimedOut, match=r'(?s)not within 1 s: it has a thousand fields; last seen: .*"Active"'
    ):
        cluster.wait_until(
            "namespace", "default", lambda _: False, timeout=1, describe="it has a thousand fields"
        )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A second clone of the project, as far as harness and images go."""
    target = tmp_path / "clone"
    names = [
        "Dockerfile",
        ".dockerignore",
        "pyproject.toml",
        "LICENSE",
        "api",
        "operator",
        "trainer",
        "tests",
    ]
    for name in names:
        source = paths.CLONE / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            target.mkdir(exist_ok=True)
            shutil.copy(source, target / name)
    return target


def test_a_change_of_code_moves_only_the_code_layer(
    cluster: Cluster, clone: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    provider = cluster.provider
    if not isinstance(provider, GoBuilt):
        pytest.skip(f"{provider.name} has no registry to look into")
    before = provider.layers(Cluster(provider).images.operator)
    code = clone / "api" / "ddpjob_api" / "__init__.py"
    code.write_text(f"{code.read_text()}\n# {time.time()}\n")
    monkeypatch.setattr(paths, "CLONE", clone)
    began = time.monotonic()
    image = Cluster(provider).images.operator
    took = round(time.monotonic() - began, 1)
    record_property("seconds from the change of a line to the image on both nodes", took)
    moved = {layer: size for layer, size in provider.layers(image).items() if layer not in before}
    assert len(moved) == 1, "one layer, that of the code, is new"
    assert sum(moved.values()) < 2_000_000, "our code and its bytecode, and no package"


def harness(clone: Path, command: str, *flags: str, check: bool = True) -> str:
    """A command of the harness in another clone, as a person would give it."""
    argv = [sys.executable, "-m", "tests.cluster.harness", command, *flags]
    done = subprocess.run(argv, cwd=clone, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def slot_of(clone: Path) -> Slot:
    """The slot that the other clone holds."""
    for number in range(SLOTS):
        owner = read_owner(number)
        if owner and owner.clone == str(clone):
            return Slot(number=number, root=Path(owner.root))
    raise AssertionError(f"{clone} holds no slot")


@pytest.mark.slow
def test_a_second_clone_starts_beside_this_one_and_leaves_nothing(cluster: Cluster, clone: Path) -> None:
    """Started, killed without a chance to clean up, started again, taken down: and this clone's cluster never notices."""
    if not isinstance(cluster.provider, GoBuilt):
        pytest.skip(f"{cluster.provider.name} keeps its own house")
    before = snapshot()
    try:
        harness(clone, "up", "--detach")
        place = slot_of(clone)
        assert place.name != cluster.provider.place.name
        sleeper = json.dumps(pod("sleeper", cluster.images.operator, "import time; time.sleep(3600)"))
        kubectl = [str(cluster.provider.tool("kubectl")), f"--kubeconfig={place.kubeconfig}"]
        subprocess.run([*kubectl, "apply", "-f", "-"], input=sleeper, text=True, check=True)
        output(*kubectl, "wait", "pod/sleeper", "--for=condition=Ready", "--timeout=60s")
        owner = read_owner(place.number)
        assert owner is not None
        for one in owner.processes:
            one.signal(9)
        left = {one.kind for one in residue.find(place)}
        assert {"process", "mount", "cgroup", "link", "iptables rule", "network namespace"} <= left
        began = time.monotonic()
        harness(clone, "up", "--detach")
        assert time.monotonic() - began < 60
        assert output(*kubectl, "get", "pods") == "", "the new cluster is empty"
    finally:
        harness(clone, "down", check=False)
    assert residue.find(place) == []
    assert snapshot() == before
    assert cluster.provider.healthy()


def snapshot() -> dict[str, set[str]]:
    """What a cluster could leave on this machine, as the kernel tells it and not as the harness does."""
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob("**/ddpjob*")}
    return {
        "links": {line.split()[1] for line in output("ip", "-oneline", "link").splitlines()},
        "namespaces": set(output("ip", "netns", "list").split()),
        "rules": set(output("iptables", "-w", "-S").splitlines()),
        "routes": set(output("ip", "route").splitlines()),
        "mounts": {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()},
        "cgroups": {path for path in cgroups if path.count("/") <= 5},
        "servers": {
            line
            for line in output("ps", "-eo", "args").splitlines()
            if "/ddpjob/" in line and "slots" in line
        },
    }


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
