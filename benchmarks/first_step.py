"""From `kubectl apply` to the first optimizer step: a DDPJob, and the same script in an Indexed Job with torchrun.

    .venv/bin/python -m benchmarks.first_step [--rounds 5]

Both run in turn on the same cluster with the same image, script, nodes and resources, so that a busy machine slows
both. The time is from before the apply to the moment the last rank has made its first step (its own clock; the nodes
share the machine's). Printed: each round, both medians, and the ratio of the medians.
"""

import argparse
import json
import re
import statistics
import time
from typing import Any

from tests.cluster.harness.cluster import Cluster, session
from tests.cluster.harness.provider import choose
from tests.cluster.harness.waiting import eventually
from tests.cluster.installation import Installation
from tests.cluster.jobs import SMALL, script_job

NODES = 2
SCRIPT = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if step == 0:
        print("FIRST_STEP", time.time(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def indexed_job(name: str, image: str) -> list[dict[str, Any]]:
    """What a user without an operator writes: ConfigMap, headless Service, Indexed Job, torchrun."""
    torchrun = (
        f"exec torchrun --nnodes {NODES} --nproc-per-node 1 --node-rank $JOB_COMPLETION_INDEX "
        f"--master-addr {name}-0.{name} --master-port 29500 train.py"
    )
    restricted = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "trainer",
        "image": image,
        "command": ["sh", "-c", torchrun],
        "workingDir": "/workspace",
        "resources": SMALL,
        "securityContext": restricted,
        "volumeMounts": [{"name": "code", "mountPath": "/workspace"}],
    }
    spread = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": name}}}
            ]
        }
    }
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "subdomain": name,
            "restartPolicy": "Never",
            "affinity": spread,
            "containers": [container],
            "volumes": [{"name": "code", "configMap": {"name": f"{name}-code"}}],
        },
    }
    return [
        script_job(name, SCRIPT)[0],
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"app": name}},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {
                "completionMode": "Indexed",
                "completions": NODES,
                "parallelism": NODES,
                "template": pod,
            },
        },
    ]


def first_step(cluster: Cluster, namespace: str, selector: str) -> float | None:
    """Wall-clock time at which the last rank made its first step, once all have."""
    text = cluster.kubectl("logs", "-n", namespace, "-l", selector, "--tail=-1", check=False)
    times = [float(found) for found in re.findall(r"FIRST_STEP ([\d.]+)", text)]
    return max(times) if len(times) == NODES else None


def measure(cluster: Cluster, namespace: str, documents: list[dict[str, Any]], selector: str) -> float:
    """Seconds from apply to the first step of the last rank; the objects are deleted afterwards."""
    start = time.time()
    cluster.apply(*documents, namespace=namespace)
    try:
        end = eventually(lambda: first_step(cluster, namespace, selector), 180, f"first step of {selector}")
    finally:
        listed = {"apiVersion": "v1", "kind": "List", "items": documents}
        cluster.kubectl("delete", "-n", namespace, "-f", "-", "--wait=true", input=json.dumps(listed))
        cluster.kubectl("wait", "pods", "-n", namespace, "-l", selector, "--for=delete", check=False)
    return end - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    provider = choose()
    provider.up(detach=False, user=session())
    cluster = Cluster(provider)
    Installation(cluster).upgrade()
    ours: list[float] = []
    theirs: list[float] = []
    with cluster.namespace("first-step") as namespace:
        for number in range(rounds):
            name = f"ours-{number}"
            ours.append(measure(cluster, namespace, script_job(name, SCRIPT), f"ddpjob.dev/name={name}"))
            name = f"theirs-{number}"
            image = cluster.images.trainer
            theirs.append(measure(cluster, namespace, indexed_job(name, image), f"app={name}"))
            print(
                f"round {number + 1}: DDPJob {ours[-1]:.2f} s, Indexed Job with torchrun {theirs[-1]:.2f} s",
                flush=True,
            )
    ratio = statistics.median(ours) / statistics.median(theirs)
    print(
        f"apply → first step, median of {rounds}: DDPJob {statistics.median(ours):.2f} s, "
        f"Indexed Job with torchrun {statistics.median(theirs):.2f} s, ratio {ratio:.2f}"
    )


if __name__ == "__main__":
    main()
