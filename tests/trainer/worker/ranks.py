"""Ranks of a job without a launcher: the bootstrap with the environment that a launcher would give it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpjob_api.codec import load, render
from ddpjob_api.names import GENERATION_ENV, WorkerEnv
from ddpjob_api.page import Fact, Slot
from ddpjob_api.report import InEffect
from ddpjob_api.spec import DDP
from ddpjob_trainer.page import Page

DEADLINE_SECONDS = 180


@dataclass(frozen=True, kw_only=True)
class Rank:
    """How one rank ended, and what it left."""

    returncode: int
    stdout: str
    stderr: str
    page: Page
    error_file: Path

    @property
    def effect(self) -> InEffect:
        return load(InEffect, self.page.facts()[Fact.DDP])

    @property
    def facts(self) -> dict[str, Any]:
        return self.page.facts()

    @property
    def printed(self) -> Any:
        """The JSON in the last line of its output."""
        return json.loads(self.stdout.splitlines()[-1])

    @property
    def error(self) -> Any:
        return json.loads(self.error_file.read_text())

    def __getitem__(self, slot: Slot) -> float:
        return self.page[slot]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(folder: Path, rank: int, world_size: int, port: int, ddp: DDP) -> dict[str, str]:
    """torchrun's names and ours, for one node."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("DDPJOB_", "PYTEST_"))
    }
    return {
        **inherited,
        "OMP_NUM_THREADS": "1",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_ERROR_FILE": str(folder / f"error-{rank}.json"),
        WorkerEnv.PAGE: str(folder / f"page-{rank}"),
        WorkerEnv.STACKS_FILE: str(folder / f"stacks-{rank}"),
        WorkerEnv.GENERATION: "1",
        WorkerEnv.JOB_NAME: "test",
        WorkerEnv.SETTINGS: json.dumps(render(ddp)),
    }


def start(
    command: Sequence[str], env: Mapping[str, str], folder: Path, **options: Any
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


class Waiting:
    """A standby for a rank of this environment, without a launcher."""

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        imports: Sequence[str],
        without: Sequence[str] = (),
    ) -> None:
        listed = folder / f"imports-{env['RANK']}"  # another rank's standby reads its own meanwhile
        listed.write_text("\n".join(imports))
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(DEADLINE_SECONDS)
        self.set = {name: value for name, value in env.items() if name in GENERATION_ENV}
        given = {name: value for name, value in env.items() if name not in GENERATION_ENV} | {
            WorkerEnv.PAGE: env[WorkerEnv.PAGE],
            WorkerEnv.IMPORTS_FILE: str(listed),
            WorkerEnv.STANDBY: json.dumps({"fd": theirs.fileno(), "without": list(without)}),
        }
        with theirs:
            self.process = start(command, given, folder, pass_fds=[theirs.fileno()])
        assert self.heard() == {"begun": True}

    def heard(self) -> Any:
        """What it says next; None where it has ended."""
        data = self.channel.recv(65536)
        return json.loads(data) if data else None

    def order(self) -> None:
        """Become the worker, with the output it has."""
        with self.channel:
            self.channel.send(json.dumps({"set": self.set, "unset": []}).encode())
            assert self.heard() == {"taken": True}

    def end(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.communicate()


class Ranks:
    """A running group of ranks; `wait` ends it."""

    def __init__(
        self,
        folder: Path,
        args: Sequence[str],
        *,
        ddp: DDP | None = None,
        world_size: int = 2,
        bootstrap: bool = True,
        extra: Mapping[str, str] | None = None,
        standby: Sequence[str] | None = None,
    ) -> None:
        """`standby`: each rank begins as a standby that imports these modules, and gets its order when it is ready."""
        self.folder = folder
        port = free_port()
        before = ["-m", "ddpjob_trainer.bootstrap"] if bootstrap else []
        command = [sys.executable, *before, *args]
        self.processes = []
        waiting = []
        for rank in range(world_size):
            env = {**environment(folder, rank, world_size, port, ddp or DDP()), **(extra or {})}
            if standby is None:
                self.processes.append(start(command, env, folder))
            else:
                waiting.append(Waiting(command, env, folder, standby))
                self.processes.append(waiting[-1].process)
        for each in waiting:
            assert each.heard() == {"ready": True}
            each.order()

    def page(self, rank: int) -> Page:
        return Page(self.folder / f"page-{rank}", create=True)

    def wait(self) -> list[Rank]:
        try:
            outputs = [process.communicate(timeout=DEADLINE_SECONDS) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.wait()
        return [
            Rank(
                returncode=process.returncode,
                stdout=output,
                stderr=errors,
                page=self.page(rank),
                error_file=self.folder / f"error-{rank}.json",
            )
            for rank, (process, (output, errors)) in enumerate(zip(self.processes, outputs, strict=True))
        ]


def run(folder: Path, args: Sequence[str], **options: Any) -> list[Rank]:
    """Start ranks and wait for their ends. Each folder serves one run."""
    folder.mkdir(parents=True, exist_ok=True)
    return Ranks(folder, args, **options).wait()
