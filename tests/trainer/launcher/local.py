"""A job of real launcher processes on loopback, for the tests beside this file."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddpjob_api.codec import load
from ddpjob_api.messages import status_key
from ddpjob_api.names import LauncherEnv
from ddpjob_api.report import JobReport, TerminationMessage

DEADLINE = 120.0
TOKEN = b"the token of this job"


def free_ports(count: int) -> list[int]:
    """Ports that nobody has."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def eventually(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """The first true value of a condition; fails with what was waited for."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


class Running:
    """One launcher process and what it wrote."""

    def __init__(self, process: subprocess.Popen[bytes], termination: Path) -> None:
        self.process = process
        self.termination_log = termination
        self.raw: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.raw.append(line)

    @property
    def output(self) -> str:
        return b"".join(self.raw).decode(errors="replace")

    def wrote(self, text: str, times: int = 1) -> None:
        """Wait for a text in the output."""
        end = time.monotonic() + DEADLINE
        while self.output.count(text) < times:
            if time.monotonic() > end:
                raise AssertionError(f"no {text!r} (× {times}) in:\n{self.output}")
            time.sleep(0.02)

    def code(self) -> int:
        """The exit code, awaited."""
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the launcher does not end:\n{self.output}") from None
        self._reader.join(5)
        return code

    @property
    def message(self) -> TerminationMessage:
        return load(TerminationMessage, json.loads(self.termination_log.read_text()))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE)

    def term(self) -> None:
        self.process.send_signal(signal.SIGTERM)


class LocalJob:
    """Starts launchers of one job, and ends what is left of them."""

    def __init__(self, folder: Path, *, nodes: int, program: Mapping[str, Any], **spec: Any) -> None:
        self.folder = folder
        self.nodes = nodes
        coordinator, *self.metrics_ports = free_ports(nodes + 1)
        self.coordinator_port = coordinator
        self.rendezvous = random.randrange(20000, 32000)
        self.spec = {"nodes": nodes, **program, **spec}
        self.token_file = folder / "token"
        self.token_file.write_bytes(TOKEN)
        self.started: list[Running] = []

    def launch(self, node: int, *, incarnation: int = 0, token: bytes | None = None, **env: str) -> Running:
        token_file = self.token_file
        if token is not None:
            token_file = self.folder / "other-token"
            token_file.write_bytes(token)
        name = f"n{node}-i{incarnation}"
        ports = {
            "metrics": self.metrics_ports[node],
            "coordinator": self.coordinator_port,
            "rendezvous": self.rendezvous,
        }
        termination = self.folder / f"termination-{name}-{len(self.started)}.json"
        process = subprocess.Popen(
            [sys.executable, "-m", "ddpjob_trainer.launcher"],
            env=os.environ
            | {
                LauncherEnv.NAME: "test",
                LauncherEnv.SPEC: json.dumps(self.spec | {"ports": ports}),
                LauncherEnv.NODE_INDEX: str(node),
                LauncherEnv.INCARNATION: str(incarnation),
                LauncherEnv.COORDINATOR: f"127.0.0.1:{self.coordinator_port}",
                LauncherEnv.BIND_HOST: "127.0.0.1",
                LauncherEnv.ADVERTISE_HOST: "127.0.0.1",
                LauncherEnv.TOKEN_FILE: str(token_file),
                LauncherEnv.RUN_DIR: str(self.folder / f"run-{name}"),
                LauncherEnv.CHECKPOINT_DIR: str(self.folder / "checkpoints"),
                LauncherEnv.TERMINATION_LOG: str(termination),
                LauncherEnv.POD_NAME: f"test-{node}" + (f"-r{incarnation}" if incarnation else ""),
            }
            | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        running = Running(process, termination)
        self.started.append(running)
        return running

    def launch_all(self) -> list[Running]:
        return [self.launch(node) for node in range(self.nodes)]

    def http(
        self, path: str, *, node: int = 0, method: str = "GET", key: str | None = None
    ) -> tuple[int, bytes]:
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        url = f"http://127.0.0.1:{self.metrics_ports[node]}{path}"
        request = urllib.request.Request(url, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def reached(self, step: int) -> bool:
        """Whether the coordinator is up and reports this step."""
        try:
            return self.report().progress.step >= step
        except urllib.error.URLError:
            return False

    def report(self) -> JobReport:
        status, body = self.http("/status", key=status_key(TOKEN))
        assert status == 200
        return load(JobReport, json.loads(body))

    def close(self) -> None:
        for running in self.started:
            if running.process.poll() is None:
                running.process.kill()
            running.process.wait(DEADLINE)
            running._reader.join(5)
            assert running.process.stdout is not None
            running.process.stdout.close()
