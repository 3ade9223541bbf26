"""`ddpjob explain` as a command: what it prints of a folder, and what it says when nothing can be asked."""

import json
from pathlib import Path

import pytest
from tests.cli.jobs import inside


def test_a_failed_local_run_is_explained_from_its_folder(tmp_path: Path) -> None:
    run = tmp_path / ".ddpjob" / "digits"
    run.mkdir(parents=True)
    (run / "state.json").write_text("{}")
    failure = {"reason": "ProgramFailed", "rank": 1, "message": "ModuleNotFoundError: No module named 'timm'"}
    last = {
        "name": "digits",
        "outcome": "Failed",
        "exitCode": 1,
        "message": "failed: rank 1",
        "lastFailure": failure,
    }
    (run / "last.json").write_text(json.dumps(last))
    result = inside("explain", "digits", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("digits (.ddpjob/digits): Failed\nstops  failed: rank 1")
    assert "the image has no timm" in result.stdout
    found = json.loads(inside("explain", "--dir", str(run), "--json", cwd=tmp_path).stdout)
    assert (found["state"], found["findings"][0]["weight"]) == ("Failed", "stops")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["explain"], 2, "which job? give its NAME"),
        (["explain", "--dir", "nothing"], 2, "nothing has run there"),
        (
            ["explain", "digits", "--kubeconfig", "nothing"],
            2,
            "no cluster to ask: there is no kubeconfig nothing; name one",
        ),
        (["top", "--kubeconfig", "none:nothing"], 2, "there is no kubeconfig none or nothing; name one"),
        (["top", "--kubeconfig", "nothing", "--context", "here"], 2, "there is no kubeconfig nothing; name"),
        (["top", "--kubeconfig", "config:half"], 2, "config or half is no kubeconfig: while parsing"),
        (["explain", "digits", "--kubeconfig", "config", "--context", "other"], 2, "it has here"),
        (["explain", "digits", "--kubeconfig", "config"], 69, "https://127.0.0.1:1 does not answer"),
        (
            ["explain", "digits"],
            2,
            "there is no run digits in .ddpjob of this folder, and no cluster to ask: there is no kubeconfig",
        ),
        (["top"], 2, "no cluster to ask: there is no kubeconfig"),
        (["explain", "../digits"], 2, "'../digits' is no name of a job"),
        (["logs", "", "-n", "team"], 2, "'' is no name of a job: it must start with a lower-case letter"),
        (["logs", "a" * 41], 2, "at most 40 characters long"),
        (["top", "--kubeconfig", "half"], 2, "half is no kubeconfig: while parsing"),
        (["top", "--kubeconfig", "word"], 2, "word is no kubeconfig: "),
        (["top", "--kubeconfig", "."], 2, "Is a directory"),
        (
            ["top", "--kubeconfig", "plugin"],
            2,
            "the kubeconfig's way to log in failed: [Errno 2] No such file",
        ),
        (["report", "digits", "-o", "none/x.html", "--kubeconfig", "half"], 2, "half is no kubeconfig"),
    ],
)
def test_what_cannot_be_asked_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "here", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "current-context": "here",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    (tmp_path / "half").write_text("clusters: [")
    (tmp_path / "word").write_text("hello")
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "no-such-plugin",
        "interactiveMode": "Never",
    }
    (tmp_path / "plugin").write_text(
        json.dumps({**config, "users": [{"name": "me", "user": {"exec": plugin}}]})
    )
    result = inside(*arguments, cwd=tmp_path, KUBECONFIG="")
    assert (result.returncode, words in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr
