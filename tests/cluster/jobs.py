"""Jobs for the cluster tests, and what a test asks of one.

Why apart: a test should read as a story (apply, wait, break, look), not as JSON.
"""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import TimedOut

ROOT = Path(__file__).parents[2]
SMALL = {"limits": {"cpu": "2", "memory": "3Gi"}, "requests": {"cpu": "200m", "memory": "600Mi"}}


def example(name: str, **changes: Any) -> dict[str, Any]:
    """A file of examples/ as a document; top-level fields of its spec may be replaced."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
    document["spec"].setdefault("resourcesPerNode", copy.deepcopy(SMALL))
    document["spec"].update(copy.deepcopy(changes))
    return document


def script_job(name: str, source: str, **spec: Any) -> list[dict[str, Any]]:
    """A ConfigMap with `train.py` and the job that runs it on two nodes."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-code"},
            "data": {"train.py": source},
        },
        {
            "apiVersion": "ddpjob.dev/v1alpha1",
            "kind": "DDPJob",
            "metadata": {"name": name},
            "spec": {
                "nodes": 2,
                **({} if "command" in spec else {"script": {"args": ["train.py"]}}),
                "workspace": {"configMap": f"{name}-code"},
                "resourcesPerNode": copy.deepcopy(SMALL),
                **copy.deepcopy(spec),
            },
        },
    ]


def condition(job: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The condition of that type; empty while there is none."""
    conditions = job.get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def is_true(kind: str) -> Callable[[dict[str, Any]], bool]:
    return lambda job: condition(job, kind).get("status") == "True"


@dataclass(frozen=True)
class Job:
    """One DDPJob on the cluster."""

    cluster: Cluster
    namespace: str
    name: str

    def get(self) -> dict[str, Any]:
        return self.cluster.get("ddpjob", self.name, namespace=self.namespace)

    def until(
        self, predicate: Callable[[dict[str, Any]], bool], what: str, timeout: float = 180
    ) -> dict[str, Any]:
        """The job once the predicate holds; on a time-out the error shows status, pods and the operator's events."""
        try:
            return self.cluster.wait_until(
                "ddpjob", self.name, predicate, namespace=self.namespace, timeout=timeout, describe=what
            )
        except TimedOut as error:
            raise TimedOut(f"{error}\n{self.describe()}") from None

    def until_true(self, kind: str, timeout: float = 180) -> dict[str, Any]:
        return self.until(is_true(kind), f"{self.name} is {kind}", timeout)

    def until_step(self, step: int, timeout: float = 180) -> dict[str, Any]:
        """Wait until the status says that the training has reached an optimizer step."""
        return self.until(
            lambda job: job.get("status", {}).get("progress", {}).get("step", 0) >= step,
            f"{self.name} is at step {step}",
            timeout,
        )

    def pods(self) -> list[dict[str, Any]]:
        """The job's pods, oldest first."""
        found: list[dict[str, Any]] = self.cluster.get(
            "pods", namespace=self.namespace, selector=f"ddpjob.dev/name={self.name}"
        )["items"]
        return sorted(found, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def live(self) -> dict[int, dict[str, Any]]:
        """Pods that run or will, by index."""
        return {
            int(pod["metadata"]["labels"]["ddpjob.dev/index"]): pod
            for pod in self.pods()
            if pod["status"].get("phase") in ("Pending", "Running")
            and "deletionTimestamp" not in pod["metadata"]
        }

    def logs(self, pod: str) -> str:
        return self.cluster.kubectl("logs", pod, "-c", "trainer", "-n", self.namespace, check=False)

    def events(self) -> list[str]:
        found = self.cluster.get("events", namespace=self.namespace)["items"]
        return [
            f"{e['reason']}: {e['message']}"
            for e in found
            if e["involvedObject"]["name"].startswith(self.name)
        ]

    def patch(self, **spec: Any) -> None:
        self.cluster.kubectl(
            "patch",
            "ddpjob",
            self.name,
            "-n",
            self.namespace,
            "--type=merge",
            "-p",
            json.dumps({"spec": spec}),
        )

    def delete(self) -> None:
        self.cluster.kubectl("delete", "ddpjob", self.name, "-n", self.namespace, "--ignore-not-found")

    def describe(self) -> str:
        """What a person would look at."""
        status = json.dumps(self.get().get("status", {}), indent=1)
        pods = self.cluster.kubectl("get", "pods", "-n", self.namespace, "-o", "wide", check=False)
        tails = "\n".join(
            f"--- {pod['metadata']['name']}\n{self.logs(pod['metadata']['name'])[-1500:]}"
            for pod in self.pods()[-4:]
        )
        events = "\n".join(self.events()[-15:])
        return f"{status}\n{pods}\n{events}\n{tails}"


def submit(cluster: Cluster, namespace: str, *documents: dict[str, Any]) -> Job:
    """Apply documents and hand out the DDPJob among them."""
    cluster.apply(*documents, namespace=namespace)
    job = next(document for document in documents if document["kind"] == "DDPJob")
    return Job(cluster, namespace, job["metadata"]["name"])


def wait_gone(cluster: Cluster, kind: str, *, namespace: str, selector: str, timeout: float = 60) -> None:
    """Wait until no object of the kind with these labels is left."""
    cluster.kubectl(
        "wait",
        kind,
        "-n",
        namespace,
        "-l",
        selector,
        "--for=delete",
        f"--timeout={timeout}s",
        timeout=timeout + 30,
    )
