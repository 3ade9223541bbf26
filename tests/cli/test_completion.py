"""Shell completion: commands, options, and the names of runs that are there."""

import tomllib
from pathlib import Path

import pytest
from tests.cli.jobs import inside

from ddpjob_cli.completion import offered

ROOT = Path(__file__).parents[2]
CASES = [
    # what is typed, what is offered, whether names of files are welcome beside it
    ("ex", ["explain"], False),
    ("logs --pre", ["--previous"], False),
    ("explain di", ["digits"], False),
    ("top none", [], False),
    ("report --output ", [], True),
]


@pytest.fixture(autouse=True)
def _a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / ".ddpjob" / "digits"
    run.mkdir(parents=True)
    (run / "state.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", "/nowhere")


@pytest.mark.parametrize(("typed", "wanted", "files"), CASES)
def test_names_and_options_are_offered_to_bash(typed: str, wanted: list[str], files: bool) -> None:
    words = f"ddpjob {typed}"
    told = {"_DDPJOB_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    result = inside(**told)
    assert result.stderr == ""
    found = [line.split(",") for line in result.stdout.splitlines() if line]
    assert [value for kind, value in found if kind == "plain"] == wanted
    assert any(kind != "plain" for kind, _ in found) == files


@pytest.mark.parametrize(("typed", "wanted", "files"), CASES)
def test_and_to_kubectl(typed: str, wanted: list[str], files: bool) -> None:
    *lines, directive = offered(typed.split(" "))
    assert [line.partition("\t")[0] for line in lines] == wanted
    assert directive == (":0" if files else ":4")


def test_kubectl_finds_the_command_and_its_completion_by_their_names() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts["kubectl-ddpjob"] == scripts["ddpjob"]
    assert scripts["kubectl_complete-ddpjob"] == "ddpjob_cli.completion:main"
