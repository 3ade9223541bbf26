"""What is wrong with a job is said in the condition it belongs to, in the cluster's own words."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.installation import Installation
from tests.cluster.jobs import Job, condition, script_job, submit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

BAD_SAMPLE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    raise ValueError("bad sample 17")
dist.barrier()
"""


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    with installation.cluster.namespace("conditions") as name:
        yield name


def apply(installation: Installation, namespace: str, name: str, **spec: Any) -> Job:
    return submit(installation.cluster, namespace, *script_job(name, "print('hello')", **spec))


CAUSES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("image", {"image": "localhost:1/no/such:image"}, "ImagePullFailed", ["localhost:1/no/such:image"]),
    (
        "gpu",
        {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}},
        "Unschedulable",
        ["Insufficient nvidia.com/gpu"],
    ),
    (
        "claim",
        {"checkpoint": {"persistentVolumeClaim": "not-there"}},
        "Unschedulable",
        ["not-there", "not found"],
    ),
    ("code", {"workspace": {"configMap": "not-there"}}, "VolumeNotReady", ["not-there", "not found"]),
    (
        "config",
        {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "not-there", "key": "a"}}}]},
        "ContainerConfigError",
        ["not-there", "not found"],
    ),
]


@pytest.mark.parametrize(("name", "spec", "reason", "words"), CAUSES, ids=[cause[0] for cause in CAUSES])
def test_a_pod_that_cannot_start_has_a_reason(
    installation: Installation, namespace: str, name: str, spec: dict[str, Any], reason: str, words: list[str]
) -> None:
    job = apply(installation, namespace, name, **spec)
    found = job.until(
        lambda seen: condition(seen, "PodsReady").get("reason") == reason, f"PodsReady is {reason}", 120
    )
    assert condition(found, "PodsReady")["status"] == "False"
    for word in words:
        assert word in condition(found, "PodsReady")["message"]
    job.delete()


@pytest.mark.parametrize(
    ("name", "template", "words"),
    [
        ("template-type", {"spec": {"tolerations": "all"}}, "tolerations"),
        ("template-value", {"spec": {"dnsPolicy": "Sometimes"}}, "dnsPolicy"),
        ("template-ours", {"spec": {"hostname": "mine"}}, "hostname"),
    ],
)
def test_a_bad_template_is_an_invalid_spec_with_the_api_servers_words(
    installation: Installation, namespace: str, name: str, template: dict[str, Any], words: str
) -> None:
    job = apply(installation, namespace, name, template=template)
    found = condition(job.until_true("Failed", 60), "Failed")
    assert found["reason"] == "InvalidSpec"
    assert words in found["message"]
    assert job.pods() == []
    job.delete()


def test_a_failing_script_names_rank_exception_and_place(installation: Installation, namespace: str) -> None:
    job = submit(
        installation.cluster,
        namespace,
        *script_job("sample", BAD_SAMPLE, recovery={"maxRestarts": 1, "gracePeriodSeconds": 5}),
    )
    found = job.until_true("Failed")
    assert condition(found, "Failed")["reason"] == "MaxRestartsExceeded"
    failure = found["status"]["lastFailure"]
    assert failure["rank"] == 1
    assert failure["message"] == "ValueError: bad sample 17"
    assert failure["exitCode"] == 1
    assert failure["location"].endswith("train.py:5")
    assert failure["pod"] == "sample-1"
    assert failure["hostNode"] in installation.cluster.nodes
    assert "also" not in failure or failure["also"] == []
    assert found["status"]["restarts"] == 1
    who = f"rank 1 (pod sample-1 on node {failure['hostNode']}): ValueError: bad sample 17"
    told = [event for event in job.events() if f"{who} ({failure['location']}), exit code 1" in event]
    assert any(event.startswith("MaxRestartsExceeded: ") for event in told), job.events()
    job.delete()


def test_a_refused_configuration_is_not_tried_again(installation: Installation, namespace: str) -> None:
    source = "import torch.distributed as dist; dist.init_process_group()"
    job = submit(installation.cluster, namespace, *script_job("nccl", source, ddp={"backend": "NCCL"}))
    found = job.until_true("Failed")
    assert condition(found, "Failed")["reason"] == "ConfigurationRefused"
    assert "NCCL needs a GPU and torch sees none" in condition(found, "Failed")["message"]
    assert found["status"].get("restarts", 0) == 0
    job.delete()


def test_an_object_of_the_same_name_that_is_not_ours_is_left_alone(
    installation: Installation, namespace: str
) -> None:
    cluster = installation.cluster
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "taken", "labels": {"owner": "somebody"}},
        "spec": {"ports": [{"port": 80}]},
    }
    cluster.apply(foreign, namespace=namespace)
    job = apply(installation, namespace, "taken")
    found = job.until(
        lambda seen: condition(seen, "Admitted").get("reason") == "NameConflict",
        "Admitted is NameConflict",
        60,
    )
    assert "Service" in condition(found, "Admitted")["message"]
    assert job.pods() == []
    assert cluster.get("service", "taken", namespace=namespace)["metadata"]["labels"]["owner"] == "somebody"
    job.delete()
    cluster.kubectl("delete", "service", "taken", "-n", namespace)
