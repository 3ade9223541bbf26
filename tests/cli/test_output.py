"""Where output goes is the user's choice: a reader that leaves, a full disk, no terminal, another encoding."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.jobs import COMMAND, inside

from ddpjob_cli.output import finite

LAST = '{"name": "digits", "outcome": "Done", "steps": 5, "loss": NaN, "message": "done"}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of this machine that has ended."""
    run = tmp_path / ".ddpjob" / "digits"
    (run / "node-0").mkdir(parents=True)
    (run / "state.json").write_text("{}")
    (run / "last.json").write_text(LAST)
    (run / "node-0" / "log").write_text("[rank 0] a – b\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "shell", "code", "output", "errors"),
    [
        ("logs digits", "{} | true; exit ${{PIPESTATUS[0]}}", 141, "", ""),
        ("logs digits --json", "{} | true; exit ${{PIPESTATUS[0]}}", 141, "", ""),
        ("--help", "{} | true; exit ${{PIPESTATUS[0]}}", 141, "", ""),
        ("top", "{} > /dev/full", 141, "", "standard output cannot be written: No space left on device\n"),
        ("logs digits", "{} >&-", 0, "", ""),
        ("top", "PYTHONIOENCODING=ascii {} | head -n 1 | cut -c 1-4", 0, "NAME\n", ""),
    ],
)
def test_output_that_nobody_takes_ends_the_command_in_order(
    folder: Path, command: str, shell: str, code: int, output: str, errors: str
) -> None:
    line = shell.format(" ".join([*COMMAND, command]))
    result = subprocess.run(
        ["bash", "-c", line], cwd=folder, env={**os.environ, "KUBECONFIG": "/nowhere"}, capture_output=True,
        text=True, check=False, timeout=100,
    )  # fmt: skip
    assert (result.returncode, result.stdout, result.stderr) == (code, output, errors)


def test_a_number_that_is_none_is_null_for_programs_and_has_its_name_for_people(folder: Path) -> None:
    assert finite({"a": [float("nan"), 1.0], "b": (float("inf"),)}) == {"a": [None, 1.0], "b": [None]}
    shown = inside("top", "digits", cwd=folder)
    assert (shown.returncode, "loss NaN" in shown.stdout) == (0, True), shown.stderr
    assert '"loss": null' in inside("top", "digits", "--json", cwd=folder).stdout


def test_for_a_program_too_it_is_said_that_a_clusters_jobs_are_missing(folder: Path) -> None:
    (folder / "config").write_text("{}")
    result = inside("top", "--json", cwd=folder, KUBECONFIG=str(folder / "config"))
    assert [job["name"] for job in json.loads(result.stdout)] == ["digits"]
    assert (result.returncode, result.stderr[:33]) == (0, "jobs of a cluster are not shown: ")


def test_a_program_that_asks_for_a_file_and_for_numbers_is_told_that_it_gets_one(folder: Path) -> None:
    result = inside("report", "digits", "--json", "-o", "out.html", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert "-o and --json exclude each other" in result.stderr


@pytest.mark.parametrize(
    "command",
    [["explain"], ["explain", "--stacks", "none"], ["top", "none"], ["logs", "none"], ["report", "none"], ["tune", "none"]],
)  # fmt: skip
def test_an_error_is_a_sentence_and_no_json(folder: Path, command: list[str]) -> None:
    result = inside(*command, "--json", cwd=folder, KUBECONFIG="/nowhere")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


BROKEN = [
    ("state.json", '{"half'),
    ("last.json", '{"name": "digits", "outcome": "Fai'),
    ("ddpjob.yaml", "spec: [1,"),
    ("ddpjob.yaml", "\x00\xff"),
    ("node-0/history.jsonl", '{"job": "digits"}\n{"row": {"at": 1.0, "gen'),
    ("node-0/log", "[rank 0] no end"),
    ("node-0/log", "\x00\x1b[31m\x07"),
    ("lock", "not a number"),
]


@pytest.mark.parametrize(("file", "text"), BROKEN)
def test_a_folder_with_a_file_that_is_half_written_is_looked_at_all_the_same(
    folder: Path, file: str, text: str
) -> None:
    (folder / ".ddpjob" / "digits" / file).write_text(text, encoding="latin-1")
    for command in (
        ["top"],
        ["top", "digits"],
        ["explain", "digits"],
        ["logs", "digits"],
        ["report", "digits"],
    ):
        result = inside(*command, cwd=folder, KUBECONFIG="/nowhere")
        assert (result.returncode, result.stderr) == (0, ""), command
