"""A `ddpjob run` in the background: its lines as they come, its processes, its end."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.cli.jobs import COMMAND

SECONDS = 240.0
"""From the start of a run, all that is waited for: a loaded machine is slow, a hang is a failure, told before pytest's."""


class Running:
    """Started on entry; killed on exit if it is still there."""

    def __init__(
        self, *arguments: str | Path, cwd: Path, under: Sequence[str] = (), seconds: float = SECONDS
    ) -> None:
        """`under`: a command that runs it, as `nohup` does; `seconds`: its deadline, where pytest's is later."""
        self.under = under
        self.seconds = seconds
        self.arguments = [str(argument) for argument in arguments]
        self.cwd = cwd
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        # Tests that run under nohup would hand their deafness to SIGHUP on, and `ddpjob run` respects it.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.process = subprocess.Popen(
            [*self.under, *COMMAND, "run", *self.arguments, "--json"],
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.deadline = time.monotonic() + self.seconds
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line.rstrip("\n"))
        self._queue.put(None)

    @property
    def left(self) -> float:
        """Seconds until its deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def wait_for(self, text: str) -> str:
        """The next line with `text` in it."""
        try:
            while (line := self._queue.get(timeout=self.left)) is not None:
                self.lines.append(line)
                if text in line:
                    return line
        except queue.Empty:
            said = "\n".join(self.lines)
            raise AssertionError(f"not within {self.seconds:.0f} s of its start: {text!r}:\n{said}") from None
        raise AssertionError(f"it ended without {text!r}:\n" + "\n".join(self.lines))

    def until(self, condition: Any, what: str) -> None:
        """Wait for something that the run's lines do not tell."""
        until(condition, what, self.left)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, dict[str, Any]]:
        """Its exit code and the JSON of its one line."""
        output = self._stdout()
        assert output.count("\n") == 1, output + "\n".join(self.lines)
        found: dict[str, Any] = json.loads(output)
        return self.process.returncode, found

    def _stdout(self) -> str:
        assert self.process.stdout is not None
        self.process.wait(self.left)
        self._reader.join()
        while (line := self._queue.get()) is not None:
            self.lines.append(line)
        return self.process.stdout.read()


def until(condition: Any, what: str, seconds: float = SECONDS) -> None:
    """Wait for something that sends no event (a process that vanishes)."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet buried does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def processes_with(**environment: str) -> list[int]:
    """Pids of our processes that have these variables."""
    wanted = {f"{name}={value}".encode() for name, value in environment.items()}
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            given = set((folder / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if wanted <= given and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found
