"""One worker process with its page, its pipes and what it was sent.

Why apart: a crew begins and ends workers, an examination asks them; both need to know what one is.
Must not: start or end anything.
"""

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from ddpjob_api.page import Slot, WorkerState
from ddpjob_api.report import WorkerExit
from ddpjob_trainer.files import Files
from ddpjob_trainer.launcher.children import Process
from ddpjob_trainer.launcher.output import Pump
from ddpjob_trainer.launcher.verdict import Rank, ends
from ddpjob_trainer.page import Page


@dataclass(kw_only=True)
class Worker:
    """One rank; or a `command`, which starts the node's ranks and is called by the first of them."""

    rank: int
    files: Files
    page: Page
    others: tuple[Rank, ...] = ()
    """Ranks below a `command` beside its first."""
    agent: Path | None = None
    """It is a `command`, and a torchrun or accelerate in it leaves word of its ranks here."""
    pumps: tuple[Pump, ...]
    process: Process | None = None
    signals: dict[int, float] = field(default_factory=dict)
    """What we sent it, and when first, by the monotonic clock."""
    exit: WorkerExit | None = None
    foretold: WorkerExit | None = None
    """The failure it has written, where it takes long to end."""

    def is_sent(self, number: int) -> None:
        """Remember a signal, right before it is sent: what it leads to comes after."""
        self.signals.setdefault(number, time.monotonic())

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.returncode is None

    @property
    def may_be_slow(self) -> bool:
        """Whether it has written how it fails, lives, and nobody was told yet."""
        return self.alive and self.agent is None and self.foretold is None and self.page[Slot.ERROR_AT] > 0

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return (Rank(rank=self.rank, files=self.files, page=self.page), *self.others)

    @property
    def present(self) -> tuple[Rank, ...]:
        """Those of its ranks that say where the training stands.

        Which ranks a `command` starts is known of those that have begun; of the others only where a torchrun or
        accelerate is there, and as long as the others wait to meet them.
        """
        begun = tuple(rank for rank in self.ranks if rank.page[Slot.PID])
        met = any(rank.page[Slot.PROCESS_GROUP_AT] or rank.page[Slot.GENERATION_STEPS] for rank in begun)
        if self.agent is None or (self.agent.exists() and not met):
            return self.ranks
        return begun

    def pid_of(self, rank: Rank) -> int | None:
        """The process of one of its ranks, while it may live; below a `command` the page knows it."""
        if not self.alive or self.process is None:
            return None
        if self.agent is None:
            return self.process.pid
        return (int(rank.page[Slot.PID]) or None) if held(rank.files.claim) else None

    def finished(self, rank: Rank) -> bool:
        """Whether a rank below a `command` has certainly ended with 0: no page says so, but torchrun goes on."""
        if self.agent is None or rank.page[Slot.STATE] != WorkerState.EXITING or held(rank.files.claim):
            return False
        if rank.files.error.exists() or rank.rank in ends(self.agent):
            return False
        return self.exit.returncode == 0 if self.exit is not None else self.agent.exists()


def held(claim: Path) -> bool:
    """Whether the process that has claimed a rank lives (`ddpjob_trainer.nested`): its lock ends with it.

    Its pid alone does not say so: another process may have it by now.
    """
    try:
        descriptor = os.open(claim, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.lockf(descriptor, os.F_TEST, 0)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def signal_to(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
