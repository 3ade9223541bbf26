"""Scripts on a framework, in pods: they go on from their own checkpoints, without a change to them."""

import re
from collections.abc import Iterator

import pytest
from tests.cluster.installation import Installation
from tests.cluster.jobs import ROOT, condition, script_job, submit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.images("frameworks"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    with installation.cluster.namespace("frameworks") as name:
        yield name


def test_a_trainer_script_that_loses_a_pod_goes_on_from_its_own_checkpoint(
    installation: Installation, namespace: str
) -> None:
    cluster = installation.cluster
    cluster.static_volume(namespace, "trainer")
    job = submit(
        cluster,
        namespace,
        *script_job(
            "trainer",
            (ROOT / "examples" / "scripts" / "hf_trainer.py").read_text(),
            image=cluster.images.frameworks,
            script={"args": ["train.py", "--steps", "100000"]},
            checkpoint={"persistentVolumeClaim": "trainer", "everySteps": 5},
            ddp={"backend": "Gloo", "bucketCapMB": 25, "gradientAccumulationSteps": 2},
        ),
    )
    found = job.until(
        lambda job: job.get("status", {}).get("progress", {}).get("checkpointStep", 0) >= 10,
        "the script has saved",
        timeout=300,
    )
    effect = found["status"]["ddp"]
    assert (effect["bucketCapMB"], effect["gradientAccumulationSteps"]) == (25, 2)
    survivor, victim = job.live()[0], job.live()[1]
    cluster.kubectl("delete", "pod", victim["metadata"]["name"], "-n", namespace, "--wait=false")
    job.until(lambda found: found["status"].get("generation", 0) >= 2, "the next generation runs")
    stopped = re.search(r"all ranks save and stop at step (\d+)", job.logs(survivor["metadata"]["name"]))
    assert stopped is not None
    after = job.until_step(int(stopped[1]) + 2, timeout=300)
    assert after["status"]["disruptions"] == 1 and after["status"].get("restarts", 0) == 0
    assert job.live()[0]["metadata"]["uid"] == survivor["metadata"]["uid"]
    assert condition(after, "Running")["reason"] != "NotResuming"
    said = re.search(
        r"Hugging Face's Trainer goes on from /checkpoints/\S+/trainer_output/checkpoint-(\d+)",
        job.logs(survivor["metadata"]["name"]),
    )
    assert said is not None and said[1] == stopped[1]
    job.delete()
