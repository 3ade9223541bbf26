"""`submit`: what is sent is what was meant, and how the line of `--json` ends."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.api_server import ApiServer
from tests.cli.cluster import JOB, JOBS, done, run
from tests.cli.jobs import document, inside, last_json, write

from ddpjob_cli.cluster import following
from ddpjob_cli.cluster.access import Access
from ddpjob_cli.cluster.kubeconfig import Target
from ddpjob_cli.commands import submit
from ddpjob_cli.errors import CommandError
from ddpjob_cli.explain.finding import Finding
from ddpjob_cli.explain.observation import Observation


def test_a_script_is_sent_with_its_code_which_is_the_jobs(api: ApiServer, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    apply = "fieldManager=ddpjob-cli&force=true&fieldValidation=Strict"
    for query in (apply, f"{apply}&dryRun=All"):
        api.answers[f"PATCH {JOBS}/train?{query}"] = (200, ...)
    access = Access(Target(kubeconfig=api.kubeconfig(tmp_path)))
    assert access.namespace == "team"
    with pytest.raises(CommandError, match="ConfigMap"):
        run(api, tmp_path, "submit", str(script), "--detach")
    name = next(asked.path for asked in api.asked if "configmaps" in asked.path).partition("?")[0]
    api.answers[f"PATCH {name}?{apply}"] = (200, ...)
    api.asked.clear()
    assert "train in namespace team: sent" in run(api, tmp_path, "submit", str(script), "--detach")
    sent = [(asked.method, asked.path.partition("?")[0], "dryRun" in asked.path) for asked in api.asked]
    assert sent == [
        ("GET", f"{JOBS}/train", False),
        ("PATCH", f"{JOBS}/train", True),
        ("PATCH", name, False),
        ("PATCH", f"{JOBS}/train", False),
        ("PATCH", name, False),
    ]
    assert {asked.content_type for asked in api.asked[1:]} == {"application/apply-patch+yaml"}
    assert api.asked[2].body["data"] == {"train.py": "print('hello')\n"}
    (owner,) = api.asked[4].body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("DDPJob", "train", "1-2-3")


THERE = "/apis/ddpjob.dev/v1alpha1/namespaces/team-b/ddpjobs/digits"
SENT = "fieldManager=ddpjob-cli&force=true&fieldValidation=Strict"


@pytest.fixture
def elsewhere(api: ApiServer, tmp_path: Path) -> Path:
    """A file that names another namespace than the context, whose job fails; one of its name runs in the context's."""
    job = document({"nodes": 2, "script": {"args": ["a.py"]}}, "digits")
    job["metadata"] |= {"namespace": "team-b"}
    file = tmp_path / "digits.yaml"
    file.write_text(yaml.safe_dump(job))
    made = {**job, "metadata": {**job["metadata"], "uid": "mine"}}
    words = "rank 1: ValueError: mine"
    failed = {"type": "Failed", "status": "True", "reason": "MaxRestartsExceeded", "message": words}
    for query in (SENT, f"{SENT}&dryRun=All"):
        api.answers[f"PATCH {THERE}?{query}"] = (200, made)
    made = {**made, "status": {"state": "Failed", "conditions": [failed]}}
    api.then[f"PATCH {THERE}?{SENT}"] = {f"GET {THERE}": (200, made)}
    return file


def test_a_job_in_another_namespace_than_the_contexts_is_the_one_that_is_explained(
    api: ApiServer, tmp_path: Path, elsewhere: Path
) -> None:
    result = inside("submit", elsewhere, "--kubeconfig", api.kubeconfig(tmp_path))
    assert (result.returncode, result.stderr) == (1, "")
    assert "ValueError: mine" in result.stdout
    assert "ddpjob logs -f digits -n team-b" in result.stdout
    namespaces = {asked.path.partition("namespaces/")[2].partition("/")[0] for asked in api.asked}
    assert namespaces == {"team-b"}


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_namespace_that_is_asked_for_is_not_another_than_the_files(
    api: ApiServer, tmp_path: Path, elsewhere: Path, more: tuple[str, ...]
) -> None:
    arguments = ("submit", elsewhere, "--kubeconfig", api.kubeconfig(tmp_path), "--detach", *more)
    result = inside(*arguments, "-n", "team")
    assert (result.returncode, api.asked) == (2, [])
    assert "metadata.namespace is team-b, not team" in result.stderr
    assert inside(*arguments, "-n", "team-b").returncode == 0


def test_the_failure_of_a_job_that_is_replaced_before_it_is_explained_is_told(
    api: ApiServer, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleted and sent again in between: the other runs, and is not asked why it failed."""
    explained = following.explained

    def after(access: Access, seen: Observation) -> list[Finding]:
        api.answers[f"GET {THERE}"] = (200, {**JOB, "metadata": {**JOB["metadata"], "namespace": "team-b"}})
        return explained(access, seen)

    monkeypatch.setattr(following, "explained", after)
    result = inside("submit", elsewhere, "--kubeconfig", api.kubeconfig(tmp_path))
    assert result.returncode == 1
    assert "ValueError: mine" in result.stdout


def test_a_job_that_is_replaced_while_it_is_followed_is_gone(
    api: ApiServer, tmp_path: Path, elsewhere: Path
) -> None:
    other = done({**JOB, "metadata": {**JOB["metadata"], "namespace": "team-b"}})
    api.then[f"PATCH {THERE}?{SENT}"] = {f"GET {THERE}": (200, other)}
    result = inside("submit", elsewhere, "--json", "--kubeconfig", api.kubeconfig(tmp_path))
    assert (result.returncode, last_json(result)["outcome"]) == (1, "Deleted")


@pytest.mark.parametrize(
    ("status", "words", "code", "outcome"),
    [
        (None, "", 1, "Deleted"),
        (403, "no", 77, "Forbidden"),
        (503, "down", 69, "Unreachable"),
        (401, "who", 77, "Forbidden"),
    ],
)
def test_a_program_gets_a_line_when_the_job_cannot_be_followed(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    status: int | None, words: str, code: int, outcome: str,
) -> None:  # fmt: skip
    file = write(tmp_path, {"script": {"args": ["train.py"]}}, name="train")
    monkeypatch.setattr("ddpjob_cli.cluster.following.PATIENCE_SECONDS", 0.0)
    apply = "fieldManager=ddpjob-cli&force=true&fieldValidation=Strict"
    for query in (apply, f"{apply}&dryRun=All"):
        api.answers[f"PATCH {JOBS}/train?{query}"] = (200, ...)
    send = submit.send

    def sent(*arguments: Any) -> Any:
        job = send(*arguments)
        if status is not None:
            api.refuse(f"GET {JOBS}/train", status, words)
        return job

    monkeypatch.setattr(submit, "send", sent)
    result = inside("submit", file, "--json", "--kubeconfig", api.kubeconfig(tmp_path))
    assert result.returncode == code, result.stderr
    ending = last_json(result)
    assert (ending["name"], ending["namespace"], ending["outcome"]) == ("train", "team", outcome)
    assert words in ending.get("message", "")


@pytest.mark.parametrize(
    ("status", "code", "outcome"), [(422, 86, "Refused"), (403, 77, "Forbidden"), (503, 69, "Unreachable")]
)
def test_a_program_gets_a_line_when_the_job_cannot_be_sent(
    api: ApiServer, tmp_path: Path, status: int, code: int, outcome: str
) -> None:
    file = write(tmp_path, {"script": {"args": ["train.py"]}}, name="train")
    path = f"{JOBS}/train?fieldManager=ddpjob-cli&force=true&fieldValidation=Strict&dryRun=All"
    api.refuse(f"PATCH {path}", status, "spec.nodes: Invalid value")
    result = inside("submit", file, "--json", "--kubeconfig", api.kubeconfig(tmp_path))
    assert result.returncode == code, result.stderr
    message = result.stderr.rstrip("\n")
    assert last_json(result) == {"name": "train", "namespace": None, "outcome": outcome, "message": message}


def test_a_job_that_the_server_refuses_is_not_sent(api: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    path = f"{JOBS}/train?fieldManager=ddpjob-cli&force=true&fieldValidation=Strict&dryRun=All"
    api.refuse(f"PATCH {path}", 422, "spec.nodes: Invalid value")
    with pytest.raises(CommandError, match=r"refused: spec\.nodes") as caught:
        run(api, tmp_path, "submit", str(tmp_path / "train.py"))
    assert caught.value.exit_code == 86
    assert not any("configmaps" in asked.path for asked in api.asked)
