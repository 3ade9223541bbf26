"""One worker process with its page, its pipes and what it was sent.

Why apart: a crew begins and ends workers, an examination asks them; both need to know what one is.
Must not: start or end anything.
"""

import contextlib
import os
from dataclasses import dataclass, field

from ddpjob_api.page import Slot
from ddpjob_api.report import WorkerExit
from ddpjob_trainer.files import Files
from ddpjob_trainer.launcher.children import Process
from ddpjob_trainer.launcher.output import Pump
from ddpjob_trainer.launcher.verdict import Rank
from ddpjob_trainer.page import Page


@dataclass(kw_only=True)
class Worker:
    """One rank; or a `command`, which starts the node's ranks and is called by the first of them."""

    rank: int
    files: Files
    page: Page
    others: tuple[Rank, ...] = ()
    """Ranks below a `command` beside its first."""
    nested: bool = False
    """It is a `command`."""
    pumps: tuple[Pump, ...]
    process: Process | None = None
    signals: set[int] = field(default_factory=set)
    """What we sent it."""
    exit: WorkerExit | None = None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return (Rank(rank=self.rank, files=self.files, page=self.page), *self.others)

    def pid_of(self, rank: Rank) -> int | None:
        """The process of one of its ranks, while it may live; below a `command` the page knows it."""
        if not self.alive or self.process is None:
            return None
        return (int(rank.page[Slot.PID]) or None) if self.nested else self.process.pid


def signal_to(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
