"""The whole line on a real cluster: Helm install, apply, train, look, suspend, resume, delete."""

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from tests.cluster.harness.cluster import Cluster
from tests.cluster.installation import Installation
from tests.cluster.jobs import Job, condition, example, script_job, submit, wait_gone

from ddpjob_api.codec import parse_spec
from ddpjob_api.plan import plan

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PLAIN = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Linear(8, 1), bucket_cap_mb=50, find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).pow(2).mean().backward()
    optimizer.step()
print("world", dist.get_world_size(), "host", os.uname().nodename, flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    with installation.cluster.namespace("training") as name:
        yield name


@pytest.fixture(scope="module")
def digits(installation: Installation, namespace: str) -> Iterator[Job]:
    """The example, applied once for the tests that look at a finished run."""
    job = submit(installation.cluster, namespace, example("digits"))
    yield job
    job.delete()


def test_the_digits_example_trains_on_two_nodes(digits: Job, cluster: Cluster) -> None:
    job = digits.until_true("Complete")
    status = job["status"]
    assert status["result"]["accuracy"] >= 0.95
    assert status["result"]["replicasEqual"] is True
    assert status["ready"] == "2/2" or status["nodes"]["succeeded"] == 2
    assert status["state"] == "Complete"
    assert status["restarts"] == 0
    assert status["progress"]["percent"] in (100, "100 %")
    assert 0 < status["goodputPercent"] <= 100
    time, saved = status["time"], status["progress"]["checkpointAt"]
    began, ended, saved = map(datetime.fromisoformat, (status["startTime"], status["completionTime"], saved))
    assert sum(time.values()) <= (ended - began).total_seconds() + 1  # both are whole seconds
    assert {"usefulSeconds", "startSeconds"} <= time.keys()
    # It saves right after its last step: the rest is its evaluation and its end. Here is also what seven whole numbers
    # leave out (7 s), and the writing of that file, to a whole second (2 s).
    assert time.get("otherSeconds", 0) <= (ended - saved).total_seconds() + 9
    assert status["startup"].keys() == {"podsCreatedAt", "podsRunningAt", "firstStepAt"}
    assert status["observedGeneration"] == job["metadata"]["generation"]
    assert {pod["spec"]["nodeName"] for pod in digits.pods()} == set(cluster.nodes)


def test_the_settings_in_effect_stand_in_the_status(digits: Job) -> None:
    asked = example("digits")["spec"]["ddp"]
    found = digits.until_true("Complete")["status"]["ddp"]
    for name in asked.keys() - {"backend", "overrides"}:
        assert found[name] == asked[name], name
    assert found["backend"] == "gloo"
    assert found["worldSize"] == 2


def test_get_shows_a_line_that_a_person_understands(digits: Job) -> None:
    digits.until_true("Complete")
    header, line = digits.cluster.kubectl("get", "ddpjob", digits.name, "-n", digits.namespace).splitlines()
    assert header.split() == ["NAME", "STATE", "READY", "PROGRESS", "ETA", "RESTARTS", "AGE"]
    assert re.match(r"digits +Complete +\d/2 +100 ?% ", line), line


def test_a_finished_job_leaves_nothing_when_it_is_deleted(installation: Installation) -> None:
    cluster = installation.cluster
    with cluster.namespace("leaves") as namespace:
        job = submit(cluster, namespace, *script_job("brief", "print('hello')"))
        job.until_true("Complete")
        job.delete()
        for kind in ("pods", "services", "secrets"):
            wait_gone(cluster, kind, namespace=namespace, selector="ddpjob.dev/name=brief")


def test_a_running_job_leaves_nothing_when_it_is_deleted(installation: Installation) -> None:
    cluster = installation.cluster
    with cluster.namespace("leaves") as namespace:
        job = submit(cluster, namespace, *script_job("long", "import time; time.sleep(600)"))
        job.until(lambda found: len(job.live()) == 2, "both pods are there")
        job.delete()
        for kind in ("pods", "services", "secrets"):
            wait_gone(cluster, kind, namespace=namespace, selector="ddpjob.dev/name=long")


def test_a_plain_script_from_a_config_map_gets_the_settings(
    installation: Installation, namespace: str
) -> None:
    ddp = {"bucketCapMB": 1, "findUnusedParameters": False, "timeoutSeconds": 77}
    job = submit(installation.cluster, namespace, *script_job("plain", PLAIN, ddp=ddp))
    status = job.until_true("Complete")["status"]
    found = status["ddp"]
    assert {name: found[name] for name in ddp} == ddp
    asked = {one["setting"]: one for one in found["overrides"]}
    assert asked["bucketCapMB"]["asked"] == "50"
    assert re.search(r"train\.py:6$", asked["bucketCapMB"]["where"])
    assert any("world 2 host plain-1" in job.logs(pod["metadata"]["name"]) for pod in job.pods())


def test_suspend_saves_and_resume_goes_on(installation: Installation, namespace: str) -> None:
    cluster = installation.cluster
    cluster.static_volume(namespace, "resume-checkpoints")
    document = example(
        "digits", checkpoint={"persistentVolumeClaim": "resume-checkpoints", "everySteps": 1000}
    )
    document["metadata"]["name"] = "resume"
    document["spec"]["task"]["epochs"] = 40
    job = submit(cluster, namespace, document)
    job.until_step(1)
    job.patch(suspend=True)
    suspended = job.until_true("Suspended")
    assert job.live() == {}
    saved = suspended["status"]["progress"]["checkpointStep"]
    assert saved >= 1
    job.patch(suspend=False)
    job.until(lambda found: condition(found, "Suspended").get("status") == "False", "resumed")
    job.until_step(saved + 1)
    assert any(
        f"resumed from the checkpoint of step {saved}" in job.logs(pod["metadata"]["name"]).lower()
        for pod in job.live().values()
    )
    job.delete()


def test_a_node_with_eight_gpus_gets_eight_ranks(installation: Installation) -> None:
    """KWOK plays the node: scheduling, requests and environment are real, the GPUs are not."""
    cluster = installation.cluster
    cluster.add_fake_node("gpu-node", {"nvidia.com/gpu": "8"})
    template = {"spec": {"tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]}}
    document: dict[str, Any] = {
        "apiVersion": "ddpjob.dev/v1alpha1",
        "kind": "DDPJob",
        "metadata": {"name": "gpus"},
        "spec": {
            "nodes": 1,
            "script": {"args": ["train.py"]},
            "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}},
            "template": template,
        },
    }
    try:
        with cluster.namespace("gpus") as namespace:
            job = submit(cluster, namespace, document)
            job.until(
                lambda _: any(pod["spec"].get("nodeName") == "gpu-node" for pod in job.pods()), "scheduled"
            )
            pod = job.live()[0]
            trainer = next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")
            assert trainer["resources"]["limits"]["nvidia.com/gpu"] == "8"
            spec = next(v["value"] for v in trainer["env"] if v["name"] == "DDPJOB_SPEC")
            assert plan(parse_spec(json.loads(spec))).world_size == 8, "the launcher starts eight ranks"
            job.delete()
    finally:
        cluster.remove_fake_node("gpu-node")
