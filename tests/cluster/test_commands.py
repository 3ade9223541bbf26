"""The commands of the operator's pages, on a real cluster."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cluster.installation import NAMESPACE, Installation
from tests.cluster.jobs import script_job, submit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kubectl explain ddpjob.spec.ddp", "bucketCapMB"),
        ("kubectl get ddpjob --all-namespaces", "STATE"),
        (
            "kubectl auth can-i --list --as=system:serviceaccount:ddpjob-system:ddpjob",
            "ddpjobs.ddpjob.dev/status",
        ),
    ],
)
def test_a_command_of_the_docs(installation: Installation, command: str, words: str) -> None:
    with installation.cluster.namespace("commands") as namespace:
        submit(installation.cluster, namespace, *script_job("shown", "print('hello')", suspend=True))
        assert words in installation.cluster.kubectl(*shlex.split(command)[1:])


def test_helm_test_finds_a_whole_installation(installation: Installation) -> None:
    assert "Phase:          Succeeded" in installation.cluster.helm(
        "test", "ddpjob", "--namespace", NAMESPACE
    )


def test_the_operator_has_only_the_rights_it_lists(installation: Installation) -> None:
    """What docs/threat-model.md says it may not do."""
    kubectl = installation.cluster.kubectl
    who = "--as=system:serviceaccount:ddpjob-system:ddpjob"
    for words in (
        ("list", "secrets"),
        ("get", "configmaps"),
        ("create", "pods", "--subresource=exec"),
        ("update", "clusterroles"),
    ):
        assert kubectl("auth", "can-i", *words, who, "-A", check=False).strip().startswith("no"), words


def test_the_operator_runs_outside_of_the_cluster(installation: Installation, tmp_path: Path) -> None:
    cluster = installation.cluster
    installation.scale(0)
    log = tmp_path / "log"
    with cluster.namespace("outside") as namespace, log.open("w") as output:
        told = {
            "DDPJOB_TRAINER_IMAGE": cluster.images.trainer,
            "DDPJOB_OPERATOR_IMAGE": cluster.images.operator,
            "DDPJOB_HEALTH_PORT": "0",
        }
        operator = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_operator"],
            env={**os.environ, **cluster.environment, **told},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            job = submit(cluster, namespace, *script_job("outside", "print('hello')"))
            job.until_true("Complete")
        finally:
            operator.terminate()
            operator.wait(30)
            installation.scale(1)
    assert operator.returncode == 0, log.read_text()[-2000:]
