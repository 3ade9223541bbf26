"""Real launchers on loopback: what must be true when workers, launchers and users do what they do."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.trainer.launcher.conftest import PROGRAM
from tests.trainer.launcher.local import DEADLINE, TOKEN, LocalJob, eventually

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import status_key
from ddpjob_api.report import Outcome, RunState

pytestmark = pytest.mark.timeout(120)
MakeJob = Callable[..., LocalJob]
RECOVERY = {"gracePeriodSeconds": 10}
LONG = 100_000
"""Steps of a training that ends by what happens to it, however slow the machine is."""


def script(steps: int = 5, **plan: Any) -> dict[str, Any]:
    return {"script": {"args": [str(PROGRAM), json.dumps({"steps": steps, **plan})]}}


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def step_reached(job: LocalJob, step: int) -> None:
    eventually(lambda: job.reached(step), f"step {step}")


def test_success_needs_every_worker_of_every_node_and_carries_the_result(job: MakeJob) -> None:
    run = job(2, script(5), processesPerNode=2)
    launchers = run.launch_all()
    assert [each.code() for each in launchers] == [0, 0]
    message = launchers[0].message
    assert message.outcome is Outcome.DONE
    assert message.result == {"accuracy": 0.97}
    assert message.progress is not None and message.progress.step == 5
    assert launchers[1].message.outcome is Outcome.DONE
    assert "[rank 1] finished at 5\n" in launchers[0].output
    assert "[rank 3] finished at 5\n" in launchers[1].output


def test_an_exception_restarts_every_rank_in_the_same_launchers_and_is_blamed_on_its_rank(
    job: MakeJob, tmp_path: Path
) -> None:
    program = script(LONG, faults={"1": {"1": "raise"}}, until=str(tmp_path / "end"))
    run = job(2, program, recovery=RECOVERY)
    first, second = run.launch_all()
    first.wrote("[rank 0] generation 2 from step 0")
    report = run.report()
    (tmp_path / "end").touch()
    assert (report.restarts, report.disruptions, report.generation) == (1, 0, 2)
    failure = report.last_failure
    assert failure is not None
    assert (failure.rank, failure.node, failure.pod) == (1, 1, "test-1")
    assert (failure.reason, failure.exit_code) == (Reason.PROGRAM_FAILED, 1)
    assert failure.message == "ValueError: bad sample 2"
    assert "program.py:" in str(failure.location)
    assert [first.code(), second.code()] == [0, 0]
    assert first.message.restarts == 1


def test_kill_minus_nine_of_a_worker_is_its_own_failure(job: MakeJob) -> None:
    run = job(2, script(100, faults={"1": {"1": "kill"}}), recovery=RECOVERY)
    launchers = run.launch_all()
    assert [each.code() for each in launchers] == [0, 0]
    assert re.search(
        r"rank 1 \(pod test-1\): died of SIGKILL at step \d+; restart 1 of 3", launchers[0].output
    )


def test_the_third_failure_ends_the_job_with_the_programs_own_code_on_its_node_alone(job: MakeJob) -> None:
    faults = {str(generation): {"0": "exit 7"} for generation in (1, 2, 3)}
    run = job(2, script(LONG, faults=faults, after=0), recovery={**RECOVERY, "maxRestarts": 2})
    first, second = run.launch_all()
    assert [first.code(), second.code()] == [7, 88]
    for each in (first, second):
        assert each.message.outcome is Outcome.FAILED
        assert each.message.failure is not None
        assert (each.message.failure.rank, each.message.failure.exit_code) == (0, 7)
    assert "rank 0 (pod test-0): SystemExit: 7 (" in second.message.message


def test_two_ranks_that_fail_at_once_are_one_incident_and_both_are_named(job: MakeJob) -> None:
    run = job(2, script(100, faults={"1": {"0": "kill", "1": "kill"}}), recovery=RECOVERY)
    launchers = run.launch_all()
    assert [each.code() for each in launchers] == [0, 0]
    assert launchers[0].message.restarts == 1


def test_a_refused_configuration_is_not_tried_again(job: MakeJob) -> None:
    run = job(2, script(LONG, faults={"1": {"1": "refuse"}}), recovery=RECOVERY)
    launchers = run.launch_all()
    assert [each.code() for each in launchers] == [86, 86]
    assert launchers[0].message.outcome is Outcome.REFUSED
    assert "this cannot work" in launchers[0].message.message


def test_a_killed_launcher_is_replaced_and_counts_as_disruption(job: MakeJob) -> None:
    run = job(2, script(LONG), recovery=RECOVERY)
    first, second = run.launch_all()
    second.wrote("[rank 1] generation 1")
    second.kill()
    first.wrote("the launcher of node 1 is gone")
    third = run.launch(1, incarnation=1)
    third.wrote("[rank 1] generation 2")
    report = run.report()
    assert (report.restarts, report.disruptions) == (0, 1)
    assert report.last_failure is not None and report.last_failure.reason is Reason.POD_LOST
    first.term()
    assert first.code() == 85


def test_a_killed_coordinator_is_replaced_and_knows_what_was_spent(job: MakeJob, tmp_path: Path) -> None:
    program = script(LONG, faults={"1": {"1": "kill"}}, until=str(tmp_path / "end"))
    run = job(2, program, recovery=RECOVERY)
    first, second = run.launch_all()
    second.wrote("[rank 1] generation 2")
    first.kill()
    second.wrote("the coordinator is gone")
    replacement = run.launch(0, incarnation=1)
    second.wrote("[rank 1] generation 3")
    report = run.report()
    (tmp_path / "end").touch()
    assert (report.term, report.generation, report.restarts) == (2, 3, 1)
    assert (run.folder / "run-n1-i0" / "term").read_text() == "2"
    assert [replacement.code(), second.code()] == [0, 0]


def test_one_launcher_told_to_leave_saves_with_all_and_the_others_keep_their_process(
    job: MakeJob, tmp_path: Path
) -> None:
    run = job(2, script(LONG, state=str(tmp_path)), recovery=RECOVERY)
    first, second = run.launch_all()
    step_reached(run, 3)
    second.term()
    second.term()
    assert second.code() == 85
    assert second.message.outcome is Outcome.STOPPED
    steps = {(tmp_path / f"state-{rank}").read_text() for rank in (0, 1)}
    assert len(steps) == 1, "both ranks saved at one step"
    third = run.launch(1, incarnation=1)
    third.wrote(f"[rank 1] generation 2 from step {steps.pop()}")
    report = run.report()
    assert (report.restarts, report.disruptions) == (0, 1)
    assert first.process.poll() is None
    first.term()
    assert first.code() == 85
    third.wrote("connection to the coordinator lost")
    third.term()
    assert third.code() == 85


def test_a_launcher_told_to_leave_twice_during_a_save_lets_it_end_and_saves_once(
    job: MakeJob, tmp_path: Path
) -> None:
    (launcher,) = job(1, script(LONG, state=str(tmp_path), saves_at=3), recovery=RECOVERY).launch_all()
    launcher.wrote("saving step 3")
    launcher.term()
    launcher.wrote("told to leave")
    launcher.term()
    assert launcher.code() == 85
    assert launcher.message.outcome is Outcome.STOPPED
    assert (tmp_path / "state-0.whole").read_text() == "3"
    assert launcher.output.count("told to leave") == 1
    assert launcher.output.count("saved at") == 1
    assert f"saved at {(tmp_path / 'state-0').read_text()}\n" in launcher.output


def test_a_launcher_told_to_leave_before_the_first_step_has_nothing_to_save(
    job: MakeJob, tmp_path: Path
) -> None:
    program = script(LONG, state=str(tmp_path), faults={"1": {"0": "hang"}}, after=0)
    (launcher,) = job(1, program, recovery=RECOVERY).launch_all()
    launcher.wrote("[rank 0] hang")
    launcher.term()
    assert launcher.code() == 85
    assert launcher.message.outcome is Outcome.STOPPED
    assert "no rank has made a step yet, so there is nothing to save" in launcher.output
    assert not (tmp_path / "state-0").exists()


def test_a_stopped_job_saves_at_one_step_and_every_launcher_exits_85(job: MakeJob, tmp_path: Path) -> None:
    run = job(2, script(LONG, state=str(tmp_path)), recovery=RECOVERY)
    launchers = run.launch_all()
    step_reached(run, 3)
    assert run.http("/stop", method="POST")[0] == 401
    assert run.http("/stop", method="POST", key="wrong")[0] == 401
    assert run.http("/stop", method="GET", key=status_key(TOKEN))[0] == 405
    assert run.http("/stop", method="POST", key=status_key(TOKEN))[0] == 202
    assert [each.code() for each in launchers] == [85, 85]
    assert launchers[0].message.outcome is Outcome.STOPPED
    assert len({(tmp_path / f"state-{rank}").read_text() for rank in (0, 1)}) == 1


def test_a_launcher_told_to_leave_before_it_has_joined_ends_at_once(job: MakeJob) -> None:
    run = job(2, script(5), recovery=RECOVERY)
    alone = run.launch(1)
    alone.wrote("no coordinator")
    alone.term()
    assert alone.code() == 85
    assert alone.message.outcome is Outcome.STOPPED


def test_a_wrong_token_is_refused_in_words_and_does_not_disturb_the_job(job: MakeJob) -> None:
    run = job(2, script(20), recovery={**RECOVERY, "rendezvousTimeoutSeconds": 10})
    stranger = run.launch(1, token=b"another")
    first = run.launch(0)
    first.wrote("node 0 (test-0) joined")
    stranger.wrote("the token is not this job's")
    first.wrote("without the job's token")
    assert run.report().state is RunState.WAITING
    assert run.report().missing_nodes == (1,)
    assert first.code() == 88
    assert "rendezvous timed out after 10 s: node 1 of 2" in first.message.message
    assert stranger.code() == 88
    assert "it refused" in stranger.message.message or "no coordinator" in stranger.message.message


def test_a_worker_deaf_to_sigterm_is_killed_after_the_grace_period(job: MakeJob, tmp_path: Path) -> None:
    faults = {"1": {"0": "deaf", "1": "raise once the others are deaf"}}
    run = job(2, script(20, faults=faults, state=str(tmp_path)), recovery={"gracePeriodSeconds": 1})
    launchers = run.launch_all()
    assert [each.code() for each in launchers] == [0, 0]
    assert "1 worker did not end within 1.0 s of SIGTERM: killed" in launchers[0].output
    assert "rank 1 (pod test-1): ValueError" in launchers[0].output


def test_what_a_worker_left_running_ends_with_its_generation(job: MakeJob) -> None:
    run = job(1, script(30, faults={"1": {"0": "orphan"}}), recovery=RECOVERY)
    (launcher,) = run.launch_all()
    launcher.wrote("[rank 0] generation 2")
    pids = [int(line.split()[-1]) for line in launcher.output.splitlines() if " child " in line]
    assert len(pids) == 2
    eventually(lambda: all(gone(pid) for pid in pids), "the children of the dead worker to be gone")
    assert launcher.code() == 0


def test_a_killed_launcher_takes_its_workers_with_it_in_every_mode(job: MakeJob) -> None:
    code = "import os, time; print('pid', os.getpid(), flush=True); time.sleep(600)"
    run = job(1, {"command": [sys.executable, "-c", code]})
    (launcher,) = run.launch_all()
    launcher.wrote("[rank 0] pid ")
    pid = int(launcher.output.split("pid ")[1].split()[0])
    launcher.kill()
    eventually(lambda: gone(pid), "the worker to die with its launcher")


def test_output_is_forwarded_whole_line_by_line_with_the_rank_in_front(job: MakeJob) -> None:
    code = (
        "import os, sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(b'a\\rb\\r\\n')\n"
        "out.write(b'\\xff\\xfe\\n')\n"
        "out.write(b'x' * 200000 + b'\\n'); out.flush()\n"
        "sys.stderr.write('to stderr\\n')\n"
        "out.write(b'no end')\n"
    )
    run = job(1, {"command": [sys.executable, "-c", code]})
    (launcher,) = run.launch_all()
    assert launcher.code() == 0
    lines = [line for line in b"".join(launcher.raw).split(b"\n") if line.startswith(b"[rank 0] ")]
    bodies = [line.removeprefix(b"[rank 0] ") for line in lines]
    assert bodies.index(b"a") + 1 == bodies.index(b"b")
    assert b"\xff\xfe" in bodies
    assert b"to stderr" in bodies
    assert b"no end" in bodies
    assert sum(len(body) for body in bodies if body.strip(b"x") == b"") == 200000


def test_a_command_that_does_not_exist_fails_with_127_and_says_so(job: MakeJob) -> None:
    run = job(1, {"command": ["no-such-program"]}, recovery={"maxRestarts": 0})
    (launcher,) = run.launch_all()
    assert launcher.code() == 127
    assert "[rank 0] ddpjob: no-such-program: No such file or directory" in launcher.output


def test_metrics_go_on_across_generations_and_a_hanging_rank_is_ended_within_the_grace_period(
    job: MakeJob,
) -> None:
    faults = {"1": {"0": "raise"}, "2": {"0": "hang", "1": "hang"}}
    run = job(1, script(LONG, faults=faults), recovery={"gracePeriodSeconds": 2}, processesPerNode=2)
    (launcher,) = run.launch_all()
    for rank in (0, 1):
        launcher.wrote(f"[rank {rank}] hang")
    assert run.http("/healthz")[0] == 200
    assert run.http("/readyz")[0] == 200
    assert run.http("/nothing")[0] == 404
    status, body = run.http("/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}

    def of(name: str) -> dict[str, float]:
        samples = families[f"ddpjob_trainer_{name}"].samples
        return {sample.labels.get("rank", ""): sample.value for sample in samples}

    assert of("step") == {"0": 2, "1": 2}
    assert of("optimizer_steps")["0"] == 4, "two steps of each generation"
    assert of("restarts") == {"": 1}
    begun = time.monotonic()
    launcher.term()
    assert launcher.code() == 85
    assert "not every rank reached the stop step in time" in launcher.output
    assert time.monotonic() - begun < DEADLINE / 2


def test_a_taken_port_is_named(job: MakeJob) -> None:
    run = job(1, script(LONG))
    first = run.launch(0)
    first.wrote("generation 1")
    second = run.launch(0)
    assert second.code() == 1
    assert "spec.ports.metrics" in second.message.message


def test_an_environment_that_is_no_launchers_is_refused_in_a_sentence(job: MakeJob) -> None:
    run = job(1, script(1))
    launcher = run.launch(0, DDPJOB_NODE_INDEX="3")
    assert launcher.code() == 86
    assert launcher.message.outcome is Outcome.REFUSED
    assert "DDPJOB_NODE_INDEX=3: the job has nodes 0 to 0" in launcher.output
    assert "Traceback" not in launcher.output


def test_what_the_launcher_cannot_do_ends_it_with_a_traceback_and_last_words(job: MakeJob) -> None:
    run = job(1, script(1))
    (run.folder / "run-n0-i0" / "page-g1-r0").mkdir(parents=True)
    launcher = run.launch(0)
    assert launcher.code() == 1
    assert "Traceback" in launcher.output
    assert launcher.message.outcome is Outcome.FAILED
    assert "Start could not be obeyed" in launcher.message.message


def test_ctrl_c_at_a_launcher_stops_the_whole_job(job: MakeJob, tmp_path: Path) -> None:
    run = job(2, script(LONG, state=str(tmp_path)), recovery=RECOVERY)
    launchers = run.launch_all()
    step_reached(run, 3)
    launchers[1].process.send_signal(signal.SIGINT)
    assert [each.code() for each in launchers] == [85, 85]


def test_a_launcher_told_to_go_while_it_still_imports_goes_at_once(tmp_path: Path) -> None:
    """As PID 1 of its own namespace the kernel would drop the signal if nothing had been said yet."""
    slow = tmp_path / "asyncio.py"  # stands in the way of the launcher's first heavy import, and waits there
    slow.write_text("import pathlib, time\npathlib.Path('importing').touch()\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "ddpjob_trainer.launcher"]
    with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}) as launcher:
        end = time.monotonic() + 30
        while not (tmp_path / "importing").exists() and time.monotonic() < end:
            time.sleep(0.01)
        launcher.terminate()
        assert launcher.wait(10) == 85
