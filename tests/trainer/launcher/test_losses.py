"""Real launchers on loopback: losses that nobody announces, and deaths without an exception."""

import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.trainer.launcher.local import LocalJob, Running
from tests.trainer.launcher.test_scenarios import LONG, script, step_reached

from ddpjob_api.conditions import Reason

pytestmark = pytest.mark.timeout(120)
MakeJob = Callable[..., LocalJob]
RECOVERY = {"gracePeriodSeconds": 10}
SEEN_SECONDS = 5.0
SLOW_SECONDS = 10.0
"""What a loaded machine may add; a time-out of TCP itself would take minutes."""


class Wire:
    """A TCP hop that can be cut: then nothing passes, and neither end hears of it."""

    def __init__(self, port: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self._to = port
        self._cut = threading.Event()
        self._closing = threading.Event()
        self._sockets: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with selectors.DefaultSelector() as chosen:
            chosen.register(self.listener, selectors.EVENT_READ, None)
            while not self._closing.is_set():
                for key, _ in chosen.select(0.05):
                    if self._cut.is_set():
                        time.sleep(0.05)
                    elif key.data is None:
                        self._accept(chosen)
                    else:
                        self._pass(chosen, key.fileobj, key.data)  # type: ignore[arg-type]

    def _accept(self, chosen: selectors.BaseSelector) -> None:
        near, _ = self.listener.accept()
        self._sockets.append(near)
        try:
            far = socket.create_connection(("127.0.0.1", self._to))
        except OSError:
            near.close()
            return
        self._sockets.append(far)
        chosen.register(near, selectors.EVENT_READ, far)
        chosen.register(far, selectors.EVENT_READ, near)

    def _pass(self, chosen: selectors.BaseSelector, source: socket.socket, target: socket.socket) -> None:
        try:
            data = source.recv(65536)
            target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (source, target):
                chosen.unregister(each)
                each.close()

    def cut(self) -> None:
        self._cut.set()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for each in (self.listener, *self._sockets):
            each.close()


@pytest.fixture
def wires() -> Iterator[list[Wire]]:
    made: list[Wire] = []
    yield made
    for wire in made:
        wire.close()


def seconds_until(launcher: Running, text: str, since: float) -> float:
    launcher.wrote(text)
    return time.monotonic() - since


def test_a_stopped_launcher_is_seen_and_no_generation_starts_beside_its_workers(job: MakeJob) -> None:
    run = job(2, script(LONG), recovery=RECOVERY)
    first, second = run.launch_all()
    step_reached(run, 3)
    second.process.send_signal(signal.SIGSTOP)
    waited = seconds_until(first, "the launcher of node 1 is lost", time.monotonic())
    assert waited <= SEEN_SECONDS + SLOW_SECONDS
    assert "generation 2 starts" not in first.output
    second.process.send_signal(signal.SIGCONT)
    first.wrote("[rank 0] generation 2")
    report = run.report()
    assert (report.restarts, report.disruptions) == (0, 1)
    assert report.last_failure is not None and report.last_failure.reason is Reason.POD_LOST


def test_a_link_that_is_cut_without_a_word_is_seen_by_both_ends(job: MakeJob, wires: list[Wire]) -> None:
    run = job(2, script(LONG), recovery=RECOVERY)
    wires.append(Wire(run.coordinator_port))
    first = run.launch(0)
    second = run.launch(1, DDPJOB_COORDINATOR=f"127.0.0.1:{wires[0].port}")
    step_reached(run, 3)
    wires[0].cut()
    cut_at = time.monotonic()
    waited = seconds_until(first, "the launcher of node 1 is lost", cut_at)
    assert waited <= SEEN_SECONDS + SLOW_SECONDS
    alone = seconds_until(second, "the coordinator is gone: the workers are stopped", cut_at)
    assert alone <= SEEN_SECONDS + SLOW_SECONDS
    assert "generation 2 starts" not in first.output


DEATHS = [
    ("crash", "died of SIGSEGV", 139),
    ("terminate", "std::terminate", 134),
    ("throw", "std::runtime_error: no such kernel", 134),
    ("exit 3", "SystemExit: 3", 3),
]


@pytest.mark.parametrize(("fault", "message", "code"), DEATHS)
def test_a_death_without_an_exception_has_a_cause_a_place_and_a_step(
    job: MakeJob, fault: str, message: str, code: int
) -> None:
    run = job(2, script(LONG, faults={"1": {"1": fault}}), recovery={**RECOVERY, "maxRestarts": 0})
    first, second = run.launch_all()
    assert [first.code(), second.code()] == [88, code]
    failure = first.message.failure
    assert failure is not None
    assert (failure.rank, failure.step, failure.exit_code) == (1, 2, code)
    assert message in failure.message
    assert failure.signal == {139: "SIGSEGV", 134: "SIGABRT"}.get(code)
    if failure.signal:
        assert "program.py:" in str(failure.location)


def test_aborts_of_all_ranks_without_a_word_are_nobodys_own(job: MakeJob, tmp_path: Path) -> None:
    """As NCCL's watchdog ends them, of which only the collective sequence tells anything."""
    faults = {"1": {"0": "abort", "1": "abort"}}
    program = script(5, faults=faults, state=str(tmp_path), together=30)
    run = job(1, program, recovery={**RECOVERY, "maxRestarts": 0}, processesPerNode=2)
    (launcher,) = run.launch_all()
    launcher.code()
    failure = launcher.message.failure
    assert failure is not None
    assert (failure.reason, failure.rank) == (Reason.NO_PROGRESS, None)
    assert "the fabric or a collective is stuck" in failure.message


def test_a_program_that_always_fails_alike_is_given_up_although_budget_is_left(job: MakeJob) -> None:
    faults = {str(generation): {"0": "raise"} for generation in range(1, 9)}
    run = job(1, script(20, faults=faults), recovery={**RECOVERY, "maxRestarts": 50})
    (launcher,) = run.launch_all()
    assert launcher.code() == 1
    failure = launcher.message.failure
    assert failure is not None
    assert failure.reason is Reason.REPEATED_FAILURE
    assert failure.message == "ValueError: bad sample 2 (3 times in a row at step 2)"
    assert launcher.message.restarts == 2


@pytest.mark.slow
def test_a_stopped_rank_does_not_sit_out_the_grace_period(job: MakeJob) -> None:
    run = job(2, script(LONG, faults={"1": {"0": "stop"}, "2": {}}), recovery={"gracePeriodSeconds": 60})
    first, second = run.launch_all()
    step_reached(run, 2)
    second.wrote("[rank 1] generation 1")
    pids = children_of(second.process.pid)
    begun = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    first.wrote("[rank 0] generation 2")
    assert time.monotonic() - begun < 30


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]
