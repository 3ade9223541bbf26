"""`ddpjob lint`: each row of the rules with its line, exit codes, and the JSON that editors and CI read."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from tests.cli.jobs import COMMAND, TASK, ddpjob, write

from ddpjob_api.rules import RULES, Verdict
from ddpjob_cli.errors import Unusable
from ddpjob_cli.main import cli

SCRIPT: dict[str, Any] = {"script": {"args": ["train.py"]}}
GPU: dict[str, Any] = {"resourcesPerNode": {"limits": {"nvidia.com/gpu": 2}}}
ENTRY = {
    "type": "object",
    "additionalProperties": False,
    "required": ["file", "line", "field", "verdict", "rule", "message"],
    "properties": {
        "file": {"type": "string"},
        "line": {"type": ["integer", "null"], "minimum": 1},
        "field": {"type": "string"},
        "verdict": {"enum": ["Refuse", "Warn", "Handle", "Unusable"]},
        "rule": {"enum": ["schema", "file", *(row.id for row in RULES)]},
        "message": {"type": "string", "minLength": 1},
    },
}


def lint(*arguments: str | Path, input: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["lint", *map(str, arguments)], input=input)


def entries(result: Result) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(result.stdout)
    jsonschema.validate(found, {"type": "array", "items": ENTRY})
    return found


def task(**more: Any) -> dict[str, Any]:
    return {"task": {**TASK, **more}}


RULE_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("one-program", {}, "spec"),
    ("one-program", {**SCRIPT, "command": ["x"]}, "spec"),
    ("reserved-env", {**SCRIPT, "env": [{"name": "RANK", "value": "0"}]}, "spec.env"),
    ("env-value", {**SCRIPT, "env": [{"name": "A", "value": "0", "valueFrom": {}}]}, "spec.env"),
    ("command-contradicts", {"command": ["torchrun", "--nnodes=3", "t.py"], "nodes": 2}, "spec.command"),
    ("image-is-missing", {**SCRIPT, "keepEntrypoint": True}, "spec"),
    (
        "hang-of-a-command",
        {"command": ["bash", "run.sh"], "recovery": {"progressTimeoutSeconds": 60}},
        "spec.recovery.progressTimeoutSeconds",
    ),
    (
        "copies-of-a-script",
        {**SCRIPT, "checkpoint": {"inMemoryEverySteps": 5}},
        "spec.checkpoint.inMemoryEverySteps",
    ),
    ("bucket-cap", {**SCRIPT, "ddp": {"bucketCapMB": 0}}, "spec.ddp.bucketCapMB"),
    ("epochs-or-steps", task(maxSteps=3), "spec.task"),
    ("workspace-source", {**SCRIPT, "workspace": {}}, "spec.workspace"),
    ("ports-overlap", {**SCRIPT, "ports": {"metrics": 29500}}, "spec.ports"),
    (
        "reentrant-unused",
        {**task(gradientCheckpointing="Reentrant"), "ddp": {"findUnusedParameters": True}},
        "spec.ddp.findUnusedParameters",
    ),
    ("global-batch", {**task(globalBatchSize=65), "nodes": 2}, "spec.task.globalBatchSize"),
    ("nccl-without-gpu", {**SCRIPT, "ddp": {"backend": "NCCL"}}, "spec.ddp.backend"),
    ("vendor-backend-without-device", {**SCRIPT, "ddp": {"backend": "HCCL"}}, "spec.ddp.backend"),
    (
        "unused-non-reentrant",
        {**task(gradientCheckpointing="NonReentrant"), "ddp": {"findUnusedParameters": True}},
        "spec.ddp.findUnusedParameters",
    ),
    (
        "buffers-and-checkpointing",
        {**task(gradientCheckpointing="NonReentrant"), "ddp": {"broadcastBuffers": True}},
        "spec.ddp.broadcastBuffers",
    ),
    ("gloo-on-gpu", {**SCRIPT, **GPU, "ddp": {"backend": "Gloo"}}, "spec.ddp.backend"),
    ("checkpoint-of-a-script", {**SCRIPT, "checkpoint": {"everySteps": 5}}, "spec.checkpoint"),
    ("bucket-cap-25", {**SCRIPT, "ddp": {"bucketCapMB": 25}}, "spec.ddp.bucketCapMB"),
    (
        "static-graph-overrides-unused",
        {**SCRIPT, "ddp": {"staticGraph": True, "findUnusedParameters": True}},
        "spec.ddp.findUnusedParameters",
    ),
    (
        "static-graph-accumulation",
        {**SCRIPT, "ddp": {"staticGraph": True, "gradientAccumulationSteps": 2}},
        "spec.ddp.staticGraph",
    ),
]


@pytest.mark.parametrize(("rule", "spec", "field"), RULE_CASES, ids=[case[0] for case in RULE_CASES])
def test_a_rule_speaks_with_line_and_field(
    tmp_path: Path, rule: str, spec: dict[str, Any], field: str
) -> None:
    file = write(tmp_path, spec)
    row = next(row for row in RULES if row.id == rule)
    result = lint(file)
    key = field.rpartition(".")[2]
    line = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if text.lstrip().startswith(key))
    prefix = {Verdict.REFUSE: "", Verdict.WARN: "warning: ", Verdict.HANDLE: "note: "}[row.verdict]
    assert f"{file}:{line} {field}: {prefix}" in result.stdout
    assert result.exit_code == (1 if row.verdict is Verdict.REFUSE else 0)
    assert (rule, line, row.verdict.value) in [
        (entry["rule"], entry["line"], entry["verdict"]) for entry in entries(lint(file, "--json"))
    ]


def test_every_rule_that_admission_can_see_has_a_case() -> None:
    assert {rule for rule, _, _ in RULE_CASES} == {row.id for row in RULES if not row.at_run_time} - {"name"}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("ddp: {bucketCapMb: 1}", 5, "spec.ddp.bucketCapMb: unknown field; did you mean bucketCapMB?"),
        (
            "ddp: {ddp_bucket_cap_mb: 1}",
            5,
            "spec.ddp.ddp_bucket_cap_mb: unknown field; did you mean bucketCapMB?",
        ),
        ("ddp:\n    backend: nccl", 6, "spec.ddp.backend: 'nccl' is not one of"),
        ("nodes: two", 5, "spec.nodes: expected a whole number, found a string ('two')"),
        ("nodes: 0", 5, "spec.nodes: 0 is too small; at least 1"),
        ("suspend: 'no'", 5, "spec.suspend: expected true or false"),
        ("env:\n  - {value: x}", 6, "spec.env[0].name: missing; this field is required"),
        ("checkpoint: 5", 5, "spec.checkpoint: expected an object, found a number (5)"),
    ],
)
def test_the_schema_speaks_with_line_and_field(tmp_path: Path, text: str, line: int, problem: str) -> None:
    file = tmp_path / "ddpjob.yaml"
    head = "apiVersion: ddpjob.dev/v1alpha1\nkind: DDPJob\nmetadata: {name: job}\n"
    file.write_text(f"{head}spec:\n  {text}\n  script: {{args: [train.py]}}\n")
    result = lint(file)
    assert f"{file}:{line} {problem}" in result.stdout
    assert result.exit_code == 1
    assert [entry["rule"] for entry in entries(lint(file, "--json"))] == ["schema"]


def test_all_problems_are_said_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, {"nodes": 0, "ddp": {"backend": "x", "bucket": 1}, "suspend": 1})
    found = entries(lint(file, "--json"))
    assert len(found) == 4
    assert [entry["line"] for entry in found] == sorted(entry["line"] for entry in found)


@pytest.mark.parametrize(
    ("strict", "spec", "code"),
    [
        (False, SCRIPT, 0),
        (True, SCRIPT, 0),
        (False, {**SCRIPT, "ddp": {"backend": "NCCL"}}, 0),
        (True, {**SCRIPT, "ddp": {"backend": "NCCL"}}, 1),
        (True, {**SCRIPT, "ddp": {"staticGraph": True, "gradientAccumulationSteps": 2}}, 0),
        (False, {}, 1),
    ],
)
def test_exit_codes(tmp_path: Path, strict: bool, spec: dict[str, Any], code: int) -> None:
    file = write(tmp_path, spec)
    assert lint(file, *(["--strict"] if strict else [])).exit_code == code


def test_the_worst_of_several_files_decides(tmp_path: Path) -> None:
    good = write(tmp_path, SCRIPT, file="good.yaml")
    bad = write(tmp_path, {}, file="bad.yaml")
    missing = tmp_path / "missing.yaml"
    assert lint(good).stdout == f"{good}: fine\n"
    assert lint(good, bad).exit_code == 1
    result = lint(missing, bad, good)
    assert result.exit_code == Unusable.exit_code == 2
    assert f"{missing}: no such file" in result.stdout
    assert f"{bad}: 1 problem" in result.stdout
    verdicts = [entry["verdict"] for entry in entries(lint(missing, bad, good, "--json"))]
    assert verdicts == ["Unusable", "Refuse"]


def test_standard_input_is_a_file(tmp_path: Path) -> None:
    text = write(tmp_path, {**SCRIPT, "nods": 2}).read_text()
    result = lint("-", input=text)
    assert "<stdin>:9 spec.nods: unknown field; did you mean nodes?" in result.stdout
    assert result.exit_code == 1


def test_a_wrong_version_is_a_problem_and_not_a_foreign_kind(tmp_path: Path) -> None:
    file = write(tmp_path, SCRIPT)
    file.write_text(file.read_text().replace("v1alpha1", "v1"))
    result = lint(file)
    assert (
        "expected apiVersion ddpjob.dev/v1alpha1 and kind DDPJob, found ddpjob.dev/v1, DDPJob"
        in result.stdout
    )
    assert result.exit_code == 1


def test_a_reader_that_is_gone_is_not_taken_for_a_refusal(tmp_path: Path) -> None:
    command = [*COMMAND, "lint", str(write(tmp_path, {"command": ["true"]}))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lint:
        assert lint.stdout is not None and lint.stderr is not None
        lint.stdout.close()
        errors = lint.stderr.read()
    assert (lint.returncode, errors) == (141, "")


def test_the_command_prints_no_colours_into_a_pipe_and_no_traceback(tmp_path: Path) -> None:
    file = write(tmp_path, {**SCRIPT, "ddp": {"bucketCapMB": 0}})
    result = ddpjob("lint", file, tmp_path / "none.yaml")
    assert result.returncode == 2
    assert "\x1b" not in result.stdout
    assert "Traceback" not in result.stdout + result.stderr
    wrong = ddpjob("lint", "--no-such-option", file)
    assert (wrong.returncode, "No such option" in wrong.stderr) == (2, True)
