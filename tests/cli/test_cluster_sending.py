"""`submit`: what is sent is what was meant, and how the line of `--json` ends."""

from pathlib import Path
from typing import Any

import pytest
from tests.cli.api_server import ApiServer
from tests.cli.cluster import JOBS, run
from tests.cli.jobs import inside, last_json, write

from ddpjob_cli.cluster.access import Access, Target
from ddpjob_cli.commands import submit
from ddpjob_cli.errors import CommandError


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
