"""Shell completion: commands, options, and the names of runs that are there."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.jobs import COMMAND


def completions(words: str, index: int, cwd: Path) -> list[str]:
    """What bash would offer for the word at an index."""
    told = {
        "_DDPJOB_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(index),
        "KUBECONFIG": "/nowhere",
    }
    result = subprocess.run(
        COMMAND, cwd=cwd, env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr, result.stderr
    return [line.partition(",")[2] for line in result.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "index", "offered"),
    [
        ("ddpjob ex", 1, ["explain"]),
        ("ddpjob logs --pre", 2, ["--previous"]),
        ("ddpjob explain di", 2, ["digits"]),
        ("ddpjob top none", 2, []),
    ],
)
def test_names_and_options_are_offered(tmp_path: Path, words: str, index: int, offered: list[str]) -> None:
    run = tmp_path / ".ddpjob" / "digits"
    run.mkdir(parents=True)
    (run / "state.json").write_text("{}")
    assert completions(words, index, tmp_path) == offered
