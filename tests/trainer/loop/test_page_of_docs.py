"""docs/writing-a-task.md: its task trains, its resource is valid, its table has the fields that there are."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.trainer.loop.jobs import training

from ddpjob_api import parse, render
from ddpjob_api.rules import Verdict, facts_of, judge
from ddpjob_trainer.task import Task

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "writing-a-task.md").read_text()


def block(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]


@pytest.mark.timeout(180)
def test_the_smallest_task_trains_as_its_resource_says(crew, tmp_path):
    (tmp_path / "line.py").write_text(block("python"))
    asked = render(parse(yaml.safe_load(block("yaml"))).spec)["task"]
    outcome = crew.run(
        2,
        training,
        entrypoint=asked.pop("entrypoint"),
        params=asked.pop("params"),
        task=asked,
        page=tmp_path / "page",
        path=tmp_path,
    )[0]
    assert outcome.steps == 160
    assert outcome.losses[-1] < outcome.losses[0] / 10


def test_the_table_has_the_fields_that_there_are():
    table = PAGE[PAGE.index("## The fields") : PAGE.index("## Evaluation")]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == [
        field.name for field in dataclasses.fields(Task)
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_loop_runs_under_torchrun():
    command = next(line[2:] for line in PAGE.splitlines() if "torchrun" in line and line.startswith("$ "))
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(
        ["bash", "-c", command], env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "epoch 1 step 23/23 loss" in ended.stdout


@pytest.mark.parametrize("name", ["digits", "characters"])
def test_the_examples_are_valid(name):
    job = parse(yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text()))
    assert [finding.message for finding in judge(facts_of(job)) if finding.verdict is Verdict.REFUSE] == []
