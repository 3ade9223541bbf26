"""The command line against a real cluster: a script is sent, looked at while it runs, explained and reported."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.jobs import COMMAND
from tests.cluster.installation import Installation
from tests.cluster.jobs import SMALL, Job, condition, script_job, submit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TRAIN = """
import time, torch, torch.distributed as dist
from pkg.model import net
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("hello from", dist.get_rank(), flush=True)
for step in range(60):
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.2)
dist.destroy_process_group()
"""
FAILS = """
import os
if os.environ["RANK"] == "1":
    import no_such_module
"""


class Cli:
    """The command with the cluster's kubeconfig, in one namespace."""

    def __init__(self, installation: Installation, namespace: str, folder: Path) -> None:
        self.environment = {**os.environ, **installation.cluster.environment}
        self.namespace = namespace
        self.folder = folder

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        where = [*COMMAND, *arguments[:1], "-n", self.namespace, *arguments[1:]]
        return subprocess.Popen(
            where,
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def __call__(self, *arguments: str, code: int = 0) -> str:
        process = self.start(*arguments)
        output, errors = process.communicate(timeout=200)
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{output}\n{errors}"
        return output

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    with installation.cluster.namespace("cli") as name:
        yield name


@pytest.fixture
def cli(installation: Installation, namespace: str, tmp_path: Path) -> Cli:
    return Cli(installation, namespace, tmp_path)


def ranks_with_steps(cli: Cli, name: str) -> dict[str, Any]:
    """What `top` says once every rank has made steps."""
    deadline = time.monotonic() + 120
    while True:
        found: dict[str, Any] = cli.json("top", name)
        if len(found["ranks"]) == 2 and all(rank["stepSeconds"] for rank in found["ranks"]):
            return found
        assert time.monotonic() < deadline, found


def test_a_script_is_sent_watched_and_reported(installation: Installation, cli: Cli) -> None:
    program = cli.folder / "program"
    (program / "pkg").mkdir(parents=True)
    (program / "train.py").write_text(TRAIN)
    (program / "pkg" / "__init__.py").touch()
    (program / "pkg" / "model.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(8, 8)\n"
    )
    job = Job(installation.cluster, cli.namespace, "train")
    options = [
        "--folder",
        "program",
        "--nodes",
        "2",
        "--set",
        f"resourcesPerNode={json.dumps(SMALL)}",
        "--json",
    ]
    sending = cli.start("submit", "program/train.py", *options)
    try:
        job.until_step(3)
        live = ranks_with_steps(cli, "train")
        assert [(rank["rank"], rank["pod"]) for rank in live["ranks"]] == [(0, "train-0"), (1, "train-1")]
        assert {rank["hostNode"] for rank in live["ranks"]} <= set(installation.cluster.nodes)
        assert all(rank["samplesPerSecond"] > 0 for rank in live["ranks"])
        assert ("train", "Running") in [(one["name"], one["state"]) for one in cli.json("top")]
        assert cli("logs", "train", "--rank", "1") == "[rank 1] hello from 1\n"
        assert cli.json("explain", "train")["findings"][-1]["weight"] == "fine"
        assert len(cli.json("report", "train")["curves"]["step"]) > 1
        output, errors = sending.communicate(timeout=200)
    finally:
        sending.kill()
        sending.wait()
    assert sending.returncode == 0, errors
    ending = json.loads(output)
    assert (ending["outcome"], ending["steps"], ending["restarts"]) == ("Done", 60, 0)
    assert cli("logs", "train", "--rank", "1") == "[rank 1] hello from 1\n"
    after = cli.json("report", "train")
    assert after["notInThisReport"] == []
    assert [rank["rank"] for rank in after["ranks"]] == [0, 1]
    assert after["curves"]["step"][-1][1] == 60
    assert "out.html" in cli("report", "train", "-o", "out.html")
    assert (cli.folder / "out.html").read_text().count("<svg") == 5
    (code,) = (volume for volume in job.pods()[0]["spec"]["volumes"] if volume["name"] == "code")
    owner = installation.cluster.get("configmap", code["configMap"]["name"], namespace=cli.namespace)
    assert owner["metadata"]["ownerReferences"][0]["uid"] == job.get()["metadata"]["uid"]
    assert "there is a DDPJob train" in refused(
        cli, "submit", "program/train.py", "--folder", "program", code=2
    )


def refused(cli: Cli, *arguments: str, code: int) -> str:
    process = cli.start(*arguments)
    _, errors = process.communicate(timeout=100)
    assert (process.returncode, "Traceback" in errors) == (code, False), errors
    return errors


@pytest.mark.parametrize(
    ("name", "spec", "reason", "what", "do"),
    [
        (
            "gpu",
            {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 1}}},
            "Unschedulable",
            "Insufficient nvidia.com/gpu",
            "no node has enough free nvidia.com/gpu",
        ),
        (
            "image",
            {"image": "localhost:1/no/such:image"},
            "ImagePullFailed",
            "localhost:1/no/such:image",
            "registry",
        ),
    ],
)
def test_a_job_that_does_not_start_is_explained(
    installation: Installation, cli: Cli, name: str, spec: dict[str, Any], reason: str, what: str, do: str
) -> None:
    job = submit(installation.cluster, cli.namespace, *script_job(name, "print('hello')", **spec))
    job.until(
        lambda seen: condition(seen, "PodsReady").get("reason") == reason, f"PodsReady is {reason}", 120
    )
    first = cli.json("explain", name)["findings"][0]
    assert (first["weight"], what in first["what"], do in first["do"]) == ("stops", True, True), first
    assert "there is no pod" in refused(cli, "logs", name, code=2)
    job.delete()


def test_a_failed_job_is_explained_with_its_culprit(installation: Installation, cli: Cli) -> None:
    job = submit(
        installation.cluster,
        cli.namespace,
        *script_job("fails", FAILS, recovery={"maxRestarts": 0, "gracePeriodSeconds": 5}),
    )
    job.until_true("Failed")
    found = cli.json("explain", "fails")["findings"]
    assert found[0]["weight"] == "stops"
    assert "the image has no no_such_module" in found[0]["do"]
    assert any("rank 1 (node 1): ModuleNotFoundError" in one["what"] for one in found)
    log = cli("logs", "fails", "--failed")
    assert "ModuleNotFoundError: No module named 'no_such_module'" in log
    assert all(line.startswith("[rank 1] ") for line in log.splitlines())
    job.delete()


def test_who_may_not_is_told_which_right_is_missing(installation: Installation, cli: Cli) -> None:
    """A user who may read jobs and nothing else sees the job, and which rights the rest needs."""
    kubectl = installation.cluster.kubectl
    kubectl("create", "serviceaccount", "reader", "-n", cli.namespace)
    kubectl(
        "create", "role", "reader", "--verb=get,list", "--resource=ddpjobs.ddpjob.dev", "-n", cli.namespace
    )
    binding = ["--role=reader", f"--serviceaccount={cli.namespace}:reader"]
    kubectl("create", "rolebinding", "reader", *binding, "-n", cli.namespace)
    token = kubectl("create", "token", "reader", "-n", cli.namespace).strip()
    config = json.loads(kubectl("config", "view", "--raw", "--minify", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    (cli.folder / "config").write_text(json.dumps(config))
    job = submit(installation.cluster, cli.namespace, *script_job("seen", "print('hello')", suspend=True))
    reader = ["--kubeconfig", "config"]
    found = cli.json("explain", "seen", *reader)["findings"]
    assert "suspended" in found[0]["what"]
    assert any("not allowed to list pods in namespace" in one["what"] for one in found)
    assert "not allowed to list pods" in refused(cli, "logs", "seen", *reader, code=77)
    script = cli.folder / "other.py"
    script.write_text("print('hello')\n")
    assert "not allowed to patch ddpjobs" in refused(cli, "submit", "other.py", *reader, code=77)
    job.delete()
