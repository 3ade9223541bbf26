"""`kubectl apply` refuses in the words of `ddpjob lint`: the API server itself, from the CRD alone."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.errors import CommandFailed
from tests.cluster.installation import Installation

from ddpjob_api import parse
from ddpjob_api.rules import facts_of, judge, message_of, rule

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
SCRIPT: dict[str, Any] = {"script": {"args": ["train.py"]}}
TASK: dict[str, Any] = {"entrypoint": "a.b:c", "epochs": 1, "globalBatchSize": 64}


def job(name: str = "admission", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": name},
        "spec": copy.deepcopy(spec),
    }


@pytest.fixture(scope="module")
def namespace(installation: Installation, cluster: Cluster) -> Iterator[str]:
    with cluster.namespace("admission") as name:
        yield name


def refusal(cluster: Cluster, namespace: str, document: dict[str, Any]) -> str:
    """The API server's words, white space folded."""
    with pytest.raises(CommandFailed) as caught:
        cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", input=json.dumps(document))
    return " ".join(caught.value.stderr.split())


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("one-program", job(**SCRIPT, command=["x"])),
    ("one-program", job()),
    ("bucket-cap", job(**SCRIPT, ddp={"bucketCapMB": 0})),
    ("reserved-env", job(**SCRIPT, env=[{"name": "MASTER_ADDR", "value": "x"}])),
    ("reserved-env", job(**SCRIPT, env=[{"name": "DDPJOB_X", "value": "x"}])),
    ("name", job(name="d" * 41, **SCRIPT)),
    ("name", job(name="9digits", **SCRIPT)),
    ("reentrant-unused", job(task={**TASK, "gradientCheckpointing": "Reentrant"}, ddp={"findUnusedParameters": True})),
    ("epochs-or-steps", job(task={**TASK, "maxSteps": 3})),
    ("workspace-source", job(**SCRIPT, workspace={})),
    ("env-value", job(**SCRIPT, env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}])),
    ("ports-overlap", job(**SCRIPT, ports={"metrics": 29510})),
]  # fmt: skip


@pytest.mark.parametrize(("row", "document"), REFUSED, ids=[row for row, _ in REFUSED])
def test_apply_refuses_in_the_words_of_lint(
    cluster: Cluster, namespace: str, row: str, document: dict[str, Any]
) -> None:
    found = next(finding for finding in judge(facts_of(parse(document))) if finding.rule == row)
    sentence = message_of(rule(row))
    assert sentence in found.message
    assert sentence in refusal(cluster, namespace, document)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (job(**SCRIPT, nodes=0), "spec.nodes"),
        (job(**SCRIPT, ddp={"backend": "nccl"}), 'supported values: "Auto", "NCCL"'),
        (job(**SCRIPT, ddp={"bucketCapMb": 1}), 'unknown field "spec.ddp.bucketCapMb"'),
        (job(script={"args": []}), "spec.script.args"),
        (job(**SCRIPT, resourcesPerNode={"limits": {"cpu": "lots"}}), "spec.resourcesPerNode.limits.cpu"),
        (job(**SCRIPT, resourcesPerNode={"requests": {"cpu": 0.5}}), "spec.resourcesPerNode.requests.cpu"),
    ],
    ids=["bound", "enum", "unknown-field", "empty-list", "no-quantity", "bare-fraction"],
)
def test_apply_refuses_what_the_schema_rules_out(
    cluster: Cluster, namespace: str, document: dict[str, Any], words: str
) -> None:
    assert words in refusal(cluster, namespace, document)


def test_apply_takes_quantities_with_and_without_quotes(cluster: Cluster, namespace: str) -> None:
    limits = {"cpu": 2, "memory": "1.5Gi", "ephemeral-storage": "2e9", "example.com/fpga": "1"}
    document = job(**SCRIPT, resourcesPerNode={"limits": limits, "requests": {"cpu": "500m"}})
    assert parse(document).spec.resources_per_node.limits["cpu"] == "2"
    cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", "-", input=json.dumps(document))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_admitted(cluster: Cluster, namespace: str, path: Path) -> None:
    cluster.kubectl("apply", "--dry-run=server", "-n", namespace, "-f", str(path))


def test_a_spec_changes_only_while_it_is_suspended(cluster: Cluster, namespace: str) -> None:
    name = "immutable"
    cluster.apply(job(name=name, **SCRIPT, suspend=False), namespace=namespace)
    try:
        changed = job(name=name, **SCRIPT, suspend=False, ddp={"bucketCapMB": 5})
        assert "ddp may only change while the job is suspended" in refusal(cluster, namespace, changed)
        variables = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
        assert "env may only change" in refusal(
            cluster, namespace, job(name=name, **SCRIPT, suspend=True, env=variables)
        )
        cluster.apply(job(name=name, **SCRIPT, suspend=True), namespace=namespace)
        cluster.apply(job(name=name, **SCRIPT, suspend=False, env=variables), namespace=namespace)
        cluster.apply(job(name=name, **SCRIPT, suspend=False, env=variables[::-1]), namespace=namespace)
        edited = job(name=name, **SCRIPT, suspend=False, env=variables[:1])
        assert "env may only change while the job is suspended" in refusal(cluster, namespace, edited)
        cluster.apply(job(name=name, **SCRIPT, suspend=True, env=variables), namespace=namespace)
        cluster.apply(job(name=name, **SCRIPT, suspend=True, ddp={"bucketCapMB": 5}), namespace=namespace)
        cluster.apply(
            job(name=name, **SCRIPT, suspend=False, ddp={"bucketCapMB": 5}, activeDeadlineSeconds=9),
            namespace=namespace,
        )
    finally:
        cluster.kubectl("delete", "ddpjob", name, "-n", namespace, "--ignore-not-found")
