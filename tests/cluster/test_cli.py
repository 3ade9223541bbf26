"""The command line against a real cluster: a script is sent, looked at while it runs, explained and reported."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cli.jobs import COMMAND
from tests.cluster.installation import Installation
from tests.cluster.jobs import SMALL, Job, condition, script_job, submit

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

TRAIN = """
import os, time, torch, torch.distributed as dist
from pkg.model import net
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("hello from", dist.get_rank(), flush=True)
step, over = 0, torch.zeros(1)
while not over:
    loss = model(torch.ones(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step == 5 and dist.get_rank() == 1 and os.environ["DDPJOB_GENERATION"] == "1":
        raise ValueError("bad sample 17")
    time.sleep(0.1)
    over = torch.tensor([float(os.path.exists("/tmp/over"))])
    dist.broadcast(over, 0)
dist.destroy_process_group()
"""
FAILS = """
import os
if os.environ["RANK"] == "1":
    import no_such_module
"""

PENDING: list[tuple[str, dict[str, Any], str, str, str]] = [
    # job, its spec, the reason in PodsReady, what explain says, and what it advises
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
]


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

    def at_once(self, *commands: tuple[str, ...]) -> list[str]:
        """What several print, which do not wait for each other."""
        with ThreadPoolExecutor(len(commands)) as pool:
            return list(pool.map(lambda command: self(*command), commands))


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    """With the jobs that will not start, so that they are as they will be when they are looked at."""
    with installation.cluster.namespace("cli") as name:
        for job, spec, *_ in PENDING:
            submit(installation.cluster, name, *script_job(job, "print('hello')", **spec))
        yield name


@pytest.fixture
def cli(installation: Installation, namespace: str, tmp_path: Path) -> Cli:
    return Cli(installation, namespace, tmp_path)


def again_with_steps(cli: Cli, name: str) -> dict[str, Any]:
    """What `top` says once every rank has made steps after the restart."""
    deadline = time.monotonic() + 120
    while True:
        found: dict[str, Any] = cli.json("top", name)
        # Counters go on over a restart; the time of the last step is of this life of the rank.
        stepped = [rank["lastStepAgeSeconds"] is not None for rank in found["ranks"]]
        if found["restarts"] == 1 and stepped == [True, True]:
            return found
        assert time.monotonic() < deadline, found


def test_a_script_is_sent_watched_through_a_restart_and_reported(
    installation: Installation, cli: Cli
) -> None:
    program = cli.folder / "program"
    (program / "pkg").mkdir(parents=True)
    (program / "train.py").write_text(TRAIN)
    (program / "pkg" / "__init__.py").touch()
    model = "import torch\n\ndef net():\n    return torch.nn.Linear(8, 8)\n"
    (program / "pkg" / "model.py").write_text(model)
    job = Job(installation.cluster, cli.namespace, "train")
    options = ["--folder", "program", "--nodes", "2", "--set", f"resourcesPerNode={json.dumps(SMALL)}"]
    with ExitStack() as stack:
        sending = stack.enter_context(cli.start("submit", "program/train.py", *options, "--json"))
        stack.callback(sending.kill)
        job.until(lambda seen: seen.get("status", {}).get("restarts") == 1, "it was restarted")
        live = again_with_steps(cli, "train")
        assert [(rank["rank"], rank["pod"]) for rank in live["ranks"]] == [(0, "train-0"), (1, "train-1")]
        assert {rank["hostNode"] for rank in live["ranks"]} <= set(installation.cluster.nodes)
        assert all(rank["samplesPerSecond"] > 0 for rank in live["ranks"])
        jobs, log, explained, _ = cli.at_once(
            ("top", "--json"),
            ("logs", "train", "--rank", "1"),
            ("explain", "train", "--json"),
            ("report", "train", "-o", "live.html"),
        )
        states = {one["name"]: (one["state"], one["restarts"]) for one in json.loads(jobs)}
        assert states["train"] == ("Running", 1)
        assert all(line.startswith("[rank 1] ") for line in log.splitlines())
        assert (log.count("hello from 1\n"), log.count("ValueError: bad sample 17\n")) == (2, 1)
        first, *_, last = json.loads(explained)["findings"]
        assert (first["weight"], "rank 1 (node 1): ValueError: bad sample 17" in first["what"]) == (
            "fails",
            True,
        )
        assert (last["weight"], "it runs again" in last["what"]) == ("fine", True)
        following = stack.enter_context(cli.start("logs", "train", "-f", "--rank", "1"))
        stack.callback(following.kill)
        installation.cluster.kubectl(
            "exec", "train-0", "-n", cli.namespace, "-c", "trainer", "--", "touch", "/tmp/over"
        )
        output, errors = sending.communicate(timeout=200)
        followed, _ = following.communicate(timeout=60)
    assert sending.returncode == 0, errors
    ending = json.loads(output)
    assert (ending["outcome"], ending["restarts"]) == ("Done", 1)
    numbers, said, again = cli.at_once(
        ("report", "train", "--json"), ("report", "train", "-o", "out.html"), ("logs", "train", "--failed")
    )
    found = json.loads(numbers)
    assert found["notInThisReport"] == []
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert [(one["rank"], one["reason"]) for one in found["incidents"]] == [(1, "ProgramFailed")]
    assert found["curves"]["step"][-1][1] == ending["steps"] > 5
    assert "out.html" in said
    for page in ("live.html", "out.html"):
        text = (cli.folder / page).read_text()
        assert (text.count("<svg"), "ValueError: bad sample 17" in text) == (6, True)
    assert again == followed == log
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


@pytest.mark.parametrize(("name", "reason", "what", "do"), [(row[0], *row[2:]) for row in PENDING])
def test_a_job_that_does_not_start_is_explained(
    installation: Installation, cli: Cli, name: str, reason: str, what: str, do: str
) -> None:
    job = Job(installation.cluster, cli.namespace, name)
    job.until(
        lambda seen: condition(seen, "PodsReady").get("reason") == reason, f"PodsReady is {reason}", 120
    )
    first = cli.json("explain", name)["findings"][0]
    assert (first["weight"], what in first["what"], do in first["do"]) == ("stops", True, True), first
    assert "there is no pod" in refused(cli, "logs", name, code=2)


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
