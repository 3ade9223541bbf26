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
from ddpjob_api.names import WorkerEnv
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
    ) -> None:
        self.folder = folder
        port = free_port()
        before = ["-m", "ddpjob_trainer.bootstrap"] if bootstrap else []
        self.processes = [
            subprocess.Popen(
                [sys.executable, *before, *args],
                env={**environment(folder, rank, world_size, port, ddp or DDP()), **(extra or {})},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world_size)
        ]

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
