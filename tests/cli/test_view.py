"""What a person sees, on a terminal and in a file."""

import io
from collections.abc import Callable

import pytest

from ddpjob_api.conditions import Reason
from ddpjob_api.report import Failure, InEffect, JobReport, Progress, RunState
from ddpjob_cli.local.view import View

DDP = InEffect(backend="gloo", broadcast_buffers=True, gradient_accumulation_steps=1, warnings=("slow",))
FAILURE = Failure(reason=Reason.KILLED, rank=1, node=1, signal="SIGKILL", message="died of SIGKILL")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def report(step: int, **more: object) -> JobReport:
    progress = Progress(step=step, total_steps=200, loss=0.5, samples_per_second=100.0, eta=90.0)
    fixed = {"protocol": 1, "name": "job", "state": RunState.RUNNING, "term": 0, "ranks": 2}
    numbers = {"generation": 1, "nodes_joined": 2, "nodes_expected": 2, "progress": progress}
    return JobReport(**{**fixed, **numbers, **more})


def test_a_file_gets_a_line_of_progress_every_few_seconds_and_settings_once() -> None:
    stream, clock = io.StringIO(), Clock()
    with View(stream, title="job", on_gone=lambda: None, clock=clock) as view:
        view.warned.append("slow")
        for step in range(20):
            clock.now = step * 1.0
            view.report(
                report(step, ddp=DDP, failures=(FAILURE,) if step > 5 else (), restarts=int(step > 5))
            )
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("[ddpjob] DDP settings in effect: backend gloo")
    assert [line for line in lines if "failed" in line] == [
        "[ddpjob] failed: rank 1 (node 1): died of SIGKILL"
    ]
    progress = [line for line in lines if "step" in line and "loss" in line]
    assert progress[0] == "[ddpjob] step 5/200 (2 %), loss 0.5, 100 samples/s, ETA 1 min 30 s"
    assert progress[1].endswith(", restarts 1")
    assert len(progress) == 3
    assert "\x1b" not in stream.getvalue()
    assert "slow" not in stream.getvalue()


def test_a_terminal_gets_a_bar_with_the_output_above(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    with View(stream, title="job", on_gone=lambda: None) as view:
        view.report(report(50, restarts=1))
        view.line(1, "[rank 1] hello")
        view.bar.refresh()
    shown = stream.getvalue()
    assert "50/200 · loss 0.5 · 100 samples/s · ETA 1 min 30 s · restarts 1" in shown
    assert "hello" in shown
    assert "\x1b[" in shown


def test_a_launchers_line_has_its_node_and_what_every_rank_repeats_is_left_out() -> None:
    stream = io.StringIO()
    with View(stream, title="job", on_gone=lambda: None) as view:
        view.line(1, "[ddpjob] node 1 joined")
        view.line(1, "[rank 1] [ddpjob] override bucketCapMB: script 50, resource 1 (x.py:1)")
        view.line(0, "[ddpjob] failed after 1 restart: rank 1 (node 1): ValueError: bad")
        view.line(1, "[ddpjob] done: all workers of 2 nodes ended with 0")
        view.line(1, "[rank 1] [not markup] \x1b[31mred\x1b[0m")
    assert stream.getvalue() == "[node 1] node 1 joined\n[rank 1] [not markup] red\n"


@pytest.mark.parametrize("error", [BrokenPipeError, OSError])
def test_a_stream_that_goes_away_is_reported_once_and_never_raises(error: type[Exception]) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    calls: list[Callable[[], None]] = []
    with View(Gone(), title="job", on_gone=lambda: calls.append(lambda: None)) as view:
        view.say("one")
        view.say("two")
    assert len(calls) == 1
