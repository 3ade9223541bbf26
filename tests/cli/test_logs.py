"""`ddpjob logs`: whose lines, from which pods, and from a local run's folder."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.jobs import document, inside

from ddpjob_cli.cluster.logs import choose, placed
from ddpjob_cli.errors import Unusable
from ddpjob_cli.lines import Line, Wanted, read
from ddpjob_cli.local.nodes import Log

OUTPUT = [
    "[rank 2] hello",
    "[rank 3] [rank 2] odd",
    "[ddpjob] done: all workers",
    "[ddpjob] history: eJw=",
    "bare",
]


def pod(name: str, index: int, phase: str, *, started: bool = True) -> dict[str, Any]:
    state = {"running": {}} if started else {"waiting": {"reason": "ContainerCreating"}}
    return {
        "metadata": {"name": name, "uid": f"of-{name}", "labels": {"ddpjob.dev/index": str(index)}},
        "status": {"phase": phase, "containerStatuses": [{"name": "trainer", "state": state}]},
    }


PODS = [
    pod("a-0", 0, "Running"),
    pod("a-1", 1, "Failed"),
    pod("a-1-r2", 1, "Running"),
    pod("a-2", 2, "Pending", started=False),
]
JOB = {
    "metadata": {"name": "a", "namespace": "team", "uid": "j"},
    "spec": {"nodes": 3, "processesPerNode": 2, "script": {"args": ["a.py"]}},
    "status": {"lastFailure": {"rank": 3, "node": 1}},
}


def test_lines_have_a_rank_or_are_the_launchers() -> None:
    found = list(read(OUTPUT, node=1, pod="p", wanted=Wanted()))
    assert [line.head + line.text for line in found] == [
        "[rank 2] hello",
        "[rank 3] [rank 2] odd",
        "[node 1] done: all workers",
        "[node 1] bare",
    ]
    assert list(read(OUTPUT, node=1, pod="p", wanted=Wanted(rank=3))) == [
        Line(node=1, pod="p", rank=3, text="[rank 2] odd")
    ]
    assert [line.text for line in read(OUTPUT, node=1, pod="p", wanted=Wanted(tail=1))] == ["bare"]


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Wanted(), ["a-0", "a-1-r2"]),
        (Wanted(rank=3), ["a-1-r2"]),
        (Wanted(node=0), ["a-0"]),
        (Wanted(failed=True), ["a-1"]),
        (Wanted(previous=True), ["a-1"]),
        (Wanted(node=0, previous=True), []),
    ],
)
def test_the_pods_that_are_meant(wanted: Wanted, names: list[str]) -> None:
    found = choose(PODS, placed(JOB, wanted, "a"))
    assert [one["metadata"]["name"] for one in found] == names


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(rank=6), "a has ranks 0 to 5; there is no rank 6"),
        (Wanted(node=3), "a has nodes 0 to 2"),
    ],
)
def test_what_is_not_there_is_said(wanted: Wanted, words: str) -> None:
    with pytest.raises(Unusable, match=words):
        placed(JOB, wanted, "a")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / ".ddpjob" / "digits"
    for node in range(2):
        (run / f"node-{node}").mkdir(parents=True)
        (run / f"node-{node}" / "log").write_text(f"[ddpjob] node\n[rank {node}] hello\n[rank {node}] bye\n")
        (run / f"node-{node}" / "log.before").write_text(f"[rank {node}] earlier\n")
    (run / "state.json").write_text("{}")
    (run / "last.json").write_text(
        json.dumps({"outcome": "Failed", "lastFailure": {"reason": "Killed", "rank": 1}})
    )
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "[node 0] node\n[rank 0] hello\n[rank 0] bye\n[node 1] node\n[rank 1] hello\n[rank 1] bye\n"),
        (["--rank", "1"], "[rank 1] hello\n[rank 1] bye\n"),
        (["--node", "0", "--tail", "1"], "[rank 0] bye\n"),
        (["--failed"], "[rank 1] hello\n[rank 1] bye\n"),
        (["--previous", "--rank", "0"], "[rank 0] earlier\n"),
        (["-f", "--rank", "1"], "[rank 1] hello\n[rank 1] bye\n"),
        (["--rank", "1", "--tail", "1", "--json"], '{"node": 1, "pod": "node 1", "rank": 1, "line": "bye"}\n'),
    ],
)  # fmt: skip
def test_the_logs_of_a_local_run(folder: Path, arguments: list[str], shown: str) -> None:
    result = inside("logs", "digits", *arguments, cwd=folder)
    assert (result.returncode, result.stdout) == (0, shown), result.stderr


def test_a_rank_that_a_local_run_has_not_is_said(folder: Path) -> None:
    spec = document({"nodes": 2, "script": {"args": ["a.py"]}}, "digits")
    (folder / ".ddpjob" / "digits" / "ddpjob.yaml").write_text(yaml.safe_dump(spec))
    result = inside("logs", "digits", "--rank", "2", cwd=folder)
    assert (result.returncode, result.stdout) == (2, "")
    assert ".ddpjob/digits has ranks 0 to 1; there is no rank 2" in result.stderr


def test_options_that_exclude_each_other_are_refused(folder: Path) -> None:
    result = inside("logs", "digits", "--rank", "1", "--failed", cwd=folder)
    assert (result.returncode, "exclude each other" in result.stderr) == (2, True)


def test_a_long_log_is_turned_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpjob_cli.local.nodes.MAX_LOG_BYTES", 100)
    with Log(tmp_path / "log") as log:
        for number in range(30):
            log.keep(f"line {number:02}\n".encode())
    both = (tmp_path / "log.1").read_text() + (tmp_path / "log").read_text()
    assert both.endswith("line 29\n") and len(both) < 300
