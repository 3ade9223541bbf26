"""`ddpjob run` with small programs that need no torch: starting, refusing, failing, stopping, leaving nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.cli.jobs import COMMAND, TASK, ddpjob, document, last_json, write
from tests.cli.running import Running, alive, processes_with

from ddpjob_cli import main as entry
from ddpjob_cli.document import Document
from ddpjob_cli.lint import Examined

FAILURE = {"type": "object", "required": ["reason"], "properties": {"rank": {"type": "integer"}}}
ENDING = {
    "type": "object",
    "required": [
        "name", "outcome", "exitCode", "ranks", "steps", "loss", "allReduces", "ddp", "restarts", "disruptions",
        "failures", "lastFailure", "result", "seconds", "goodputPercent", "time", "message",
    ],
    "properties": {
        "name": {"type": ["string", "null"]},
        "outcome": {"enum": ["Done", "Stopped", "Failed", "Refused", "Unusable", "Killed"]},
        "exitCode": {"type": "integer"},
        "ranks": {"type": "integer"},
        "steps": {"type": "integer"},
        "loss": {"type": ["number", "null"]},
        "allReduces": {"type": ["integer", "null"]},
        "ddp": {"type": ["object", "null"]},
        "restarts": {"type": "integer"},
        "disruptions": {"type": "integer"},
        "failures": {"type": "array", "items": FAILURE},
        "lastFailure": {"anyOf": [FAILURE, {"type": "null"}]},
        "result": {"type": "object"},
        "seconds": {"type": "number"},
        "goodputPercent": {"type": ["integer", "null"]},
        "time": {"type": ["object", "null"], "additionalProperties": {"type": "number"}},
        "message": {"type": "string", "minLength": 1},
    },
}  # fmt: skip
"""The line of `ddpjob run --json`."""

WAIT = "echo $$ > pid-$NODE_RANK; echo ready; exec sleep 1000"
"""A program that says it runs, and then waits."""


def shell(script: str, **spec: Any) -> dict[str, Any]:
    return {"nodes": 2, "command": ["sh", "-c", script], "recovery": {"gracePeriodSeconds": 5}, **spec}


def one_line(output: str) -> dict[str, Any]:
    """What `--json` printed: a line as documented, and nothing else."""
    assert output.count("\n") == 1, output
    found: dict[str, Any] = json.loads(output)
    jsonschema.validate(found, ENDING)
    return found


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The command in this process; the way out as the shell sees it."""
    monkeypatch.setattr(sys, "argv", ["ddpjob", *map(str, arguments)])
    with pytest.raises(SystemExit) as way_out:
        entry.main()
    assert isinstance(way_out.value.code, int)
    return way_out.value.code


@pytest.mark.timeout(300)
def test_a_program_runs_on_every_node_as_it_would_in_pods(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        shell(
            "echo node $NODE_RANK of $PET_NNODES in $PWD: $GREETING $SECRET $OMP_NUM_THREADS [$RANK_OF_SHELL]",
            env=[
                {"name": "GREETING", "value": "hello"},
                {"name": "SECRET", "valueFrom": {"secretKeyRef": {}}},
            ],
            workspace={"configMap": "code"},
        ),
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    result = ddpjob(
        "run", file, "--json", cwd=elsewhere, SECRET="known", DDPJOB_TERM="9", OMP_NUM_THREADS="1"
    )
    ending = last_json(result)
    assert result.returncode == 0, result.stderr
    jsonschema.validate(ending, ENDING)
    assert (ending["outcome"], ending["ranks"], ending["restarts"]) == ("Done", 2, 0)
    assert f"node 1 of 2 in {tmp_path}: hello known 1 []" in result.stderr
    assert f"only a cluster reads workspace; programs run in {tmp_path}" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("done: 2 ranks, ")
    state = elsewhere / ".ddpjob" / "job"
    assert json.loads((state / "state.json").read_text())["finished"] is True
    assert not (state / "token").exists()
    assert "node 1 of 2" in (state / "node-1" / "log").read_text()


REFUSED: list[tuple[dict[str, Any], list[str], str]] = [
    ({**shell("true"), "nods": 1}, [], "ddpjob.yaml:13 spec.nods: unknown field; did you mean nodes?"),
    (shell("true"), ["--set", "ddp.bucketCapMB=0"], "--set ddp.bucketCapMB spec.ddp.bucketCapMB: must be at least 1"),
    (shell("true"), ["--set", "ddp.bucket=1"], "--set ddp.bucket spec.ddp.bucket: unknown field"),
    (shell("true", suspend=True), [], "spec.suspend: true, so the job is not to run"),
    ({"script": {"args": ["none.py"]}}, [], "spec.script.args[0]: none.py: no such file in"),
    ({"command": ["no-such-program"]}, [], "spec.command[0]: no-such-program: no such program"),
    (
        shell("true", env=[{"name": "NO_SUCH_VARIABLE", "valueFrom": {"secretKeyRef": {}}}]),
        [],
        "export NO_SUCH_VARIABLE before ddpjob run, or give it a value",
    ),
    ({"nodes": 2, "task": {**TASK, "globalBatchSize": 7}}, [], "use 6 or 8"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "options", "sentence"), REFUSED, ids=[case[2][:40] for case in REFUSED])
def test_what_cannot_run_is_refused_in_a_sentence_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spec: dict[str, Any],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main(monkeypatch, "run", write(tmp_path, spec), *options, "--json")
    output, errors = capsys.readouterr()
    ending = one_line(output)
    assert (code, ending["exitCode"], ending["outcome"]) == (86, 86, "Refused")
    assert sentence in errors
    assert sentence in ending["message"]
    assert "Traceback" not in errors


UNUSABLE: list[tuple[list[str], str]] = [
    (["none.yaml"], "none.yaml: no such file"),
    (["two.yaml"], "2 DDPJobs (job, other); choose one with --name"),
    (["ddpjob.yaml", "--set", "ddp.bucketCapMB"], "expected FIELD=VALUE"),
    (["ddpjob.yaml", "--set", "ddp=[1"], "--set ddp:1: not YAML: "),
    (["ddpjob.yaml", "--set", "task.params={a: !!binary aGk=}"], "bytes (!!binary), which JSON cannot carry"),
    (["ddpjob.yaml", "--no-such-option"], "No such option"),
    ([], "Missing argument"),
    (["ddpjob.yaml", "--dir", "ddpjob.yaml/state"], "cannot be written"),
    (["ddpjob.yaml", "--nodes", "0"], "0 is not in the range"),
]


@pytest.mark.parametrize(("arguments", "sentence"), UNUSABLE, ids=[case[1] for case in UNUSABLE])
def test_what_cannot_be_used_is_said_in_a_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, shell("true"))
    both = [json.dumps(document(shell("true"), name)) for name in ("job", "other")]
    (tmp_path / "two.yaml").write_text("\n---\n".join(both))
    assert main(monkeypatch, "run", *arguments, "--json") == 2
    output, errors = capsys.readouterr()
    assert sentence in errors
    assert "Traceback" not in errors
    ending = one_line(output)
    assert (ending["outcome"], ending["exitCode"]) == ("Unusable", 2)
    assert sentence in ending["message"]


def test_a_fault_of_ours_shows_its_traceback_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(entry, "versions", broken)
    assert main(monkeypatch, "version") == 70
    errors = capsys.readouterr().err
    assert "RuntimeError: a mistake" in errors
    assert "this is a bug in ddpjob" in errors


@pytest.mark.parametrize(
    ("error", "code", "outcome", "message"),
    [
        (RuntimeError("a mistake"), 70, "Failed", "a bug in ddpjob: RuntimeError: a mistake"),
        (KeyboardInterrupt(), 130, "Killed", "interrupted"),
    ],
)
def test_a_program_that_waits_for_the_line_gets_one_whatever_happens(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    outcome: str,
    message: str,
) -> None:
    def broken(document: Document) -> Examined:
        raise error

    monkeypatch.setattr(entry, "examine", broken)
    assert main(monkeypatch, "run", write(tmp_path, shell("true")), "--json") == code
    ending = one_line(capsys.readouterr().out)
    assert (ending["name"], ending["outcome"], ending["exitCode"]) == ("job", outcome, code)
    assert ending["message"] == message


FAILING: list[tuple[str, int, dict[str, Any]]] = [
    ("[ $NODE_RANK = 0 ] && exec sleep 1000; exit 7", 7, {"exitCode": 7}),
    ("[ $NODE_RANK = 0 ] && exec sleep 1000; kill -SEGV $$", 139, {"signal": "SIGSEGV"}),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("script", "code", "failure"), FAILING, ids=["exit code", "signal"])
def test_a_failure_ends_with_the_code_of_the_rank_to_blame(
    tmp_path: Path, script: str, code: int, failure: dict[str, Any]
) -> None:
    file = write(tmp_path, shell(script, recovery={"maxRestarts": 0, "gracePeriodSeconds": 5}))
    result = ddpjob("run", file, "--json", cwd=tmp_path)
    ending = last_json(result)
    jsonschema.validate(ending, ENDING)
    assert result.returncode == ending["exitCode"] == code
    assert ending["outcome"] == "Failed"
    assert ending["lastFailure"]["rank"] == 1
    assert failure.items() <= ending["lastFailure"].items()
    assert ending["message"].startswith("failed: rank 1 (node 1): ")
    assert ending["message"].endswith("restarts 0 of 0")


@pytest.mark.timeout(300)
def test_a_script_that_raises_again_and_again_ends_with_its_own_words(tmp_path: Path) -> None:
    program = "import os, time\nif os.environ['RANK'] == '1':\n    raise ValueError('bad sample 17')\ntime.sleep(999)\n"
    (tmp_path / "train.py").write_text(program)
    spec = {
        "nodes": 2,
        "script": {"args": ["train.py"]},
        "recovery": {"maxRestarts": 2, "gracePeriodSeconds": 5},
    }
    result = ddpjob("run", write(tmp_path, spec), "--json", cwd=tmp_path)
    ending = last_json(result)
    assert result.returncode == 1
    assert ending["restarts"] == 2
    assert [failure["rank"] for failure in ending["failures"]] == [1, 1, 1]
    assert result.stderr.splitlines()[-1] == (
        "failed: rank 1 (node 1): ValueError: bad sample 17 (train.py:3), exit code 1, restarts 2 of 2"
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_the_job_in_order(tmp_path: Path, number: signal.Signals) -> None:
    with Running(write(tmp_path, shell(WAIT)), cwd=tmp_path) as run:
        run.wait_for("] ready")
        run.wait_for("] ready")
        pids = [int((tmp_path / f"pid-{node}").read_text()) for node in (0, 1)]
        assert all(map(alive, pids))
        run.signal(number)
        run.wait_for("saving and stopping")
        code, ending = run.end()
    jsonschema.validate(ending, ENDING)
    assert (code, ending["outcome"]) == (85, "Stopped")
    assert not any(map(alive, pids))


@pytest.mark.timeout(300)
def test_a_second_ctrl_c_kills_what_does_not_want_to_end_and_what_hides(tmp_path: Path) -> None:
    deaf = "trap '' TERM; setsid sh -c 'echo $$ > hidden; exec sleep 1000' & echo $$ > own; echo ready; while :; do sleep 1; done"
    spec = shell(deaf, nodes=1, recovery={"gracePeriodSeconds": 600})
    with Running(write(tmp_path, spec), cwd=tmp_path) as run:
        run.wait_for("] ready")
        run.until((tmp_path / "hidden").exists, "the program's child has started")
        run.signal(signal.SIGINT)
        run.wait_for("saving and stopping")
        run.signal(signal.SIGINT)
        code, ending = run.end()
    assert (code, ending["outcome"]) == (130, "Killed")
    pids = [int((tmp_path / name).read_text()) for name in ("own", "hidden")]
    assert not any(map(alive, pids))


@pytest.mark.timeout(300)
def test_a_directory_has_one_run_at_a_time_and_is_free_once_that_is_killed(tmp_path: Path) -> None:
    file = write(tmp_path, shell(WAIT))
    with Running(file, cwd=tmp_path) as run:
        run.wait_for("] ready")
        run.wait_for("] ready")
        second = ddpjob("run", file, "--json", cwd=tmp_path)
        assert second.returncode == 2
        assert last_json(second)["outcome"] == "Unusable"
        assert (
            f".ddpjob/job: another run of this job has it (ddpjob run, pid {run.process.pid})"
            in second.stderr
        )
        pids = [int((tmp_path / f"pid-{node}").read_text()) for node in (0, 1)]
        run.signal(signal.SIGKILL)
        run.until(lambda: not any(map(alive, pids)), "the programs end with their ddpjob run")
        state = str(tmp_path / ".ddpjob/job/token")
        run.until(lambda: not processes_with(DDPJOB_TOKEN_FILE=state), "the launchers end too")
    write(tmp_path, shell("true"))
    assert ddpjob("run", file, cwd=tmp_path).returncode == 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("nodes", [[0], [1], [0, 1]])
def test_killed_launchers_come_back_and_count_as_one_disruption(tmp_path: Path, nodes: list[int]) -> None:
    script = f"[ -e again ] && exit 0; {WAIT}"
    with Running(write(tmp_path, shell(script)), cwd=tmp_path) as run:
        run.wait_for("] ready")
        run.wait_for("] ready")
        (tmp_path / "again").touch()
        token = str(tmp_path / ".ddpjob/job/token")
        for node in nodes:
            (launcher,) = processes_with(DDPJOB_TOKEN_FILE=token, DDPJOB_NODE_INDEX=str(node))
            os.kill(launcher, signal.SIGKILL)
        lines = [run.wait_for("; starting it again") for _ in nodes]
        for node in nodes:  # in whichever order they were found
            assert any(f"the launcher of node {node} died of SIGKILL" in line for line in lines), lines
        code, ending = run.end()
    assert (code, ending["outcome"], ending["restarts"]) == (0, "Done", 0)
    assert ending["disruptions"] == 1


@pytest.mark.timeout(300)
def test_under_nohup_a_closed_terminal_stops_nothing(tmp_path: Path) -> None:
    spec = shell("echo ready; while [ ! -e go ]; do sleep 0.1; done", nodes=1)
    with Running(write(tmp_path, spec), cwd=tmp_path, under=("nohup",)) as run:
        run.wait_for("] ready")
        run.signal(signal.SIGHUP)
        (tmp_path / "go").touch()
        code, ending = run.end()
    assert (code, ending["outcome"]) == (0, "Done")


@pytest.mark.timeout(300)
def test_a_reader_that_goes_away_stops_the_job(tmp_path: Path) -> None:
    spec = shell("echo $$ > pid-$NODE_RANK; while :; do echo line; sleep 0.2; done", nodes=1)
    command = [*COMMAND, "run", str(write(tmp_path, spec))]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert any("] line" in line for line in run.stdout)
        pid = int((tmp_path / "pid-0").read_text())
        run.stdout.close()
        assert run.wait(120) == 85
    assert not alive(pid)
