"""One standby: a process of this node that imports ahead and waits to become a rank of the next generation.

Why apart: the launcher's side of `ddpjob_trainer.standby`: its start, its pace, its order, and what becomes of it where
it does not obey. Must not: decide when one is started (`reserve.py`), or be waited for longer than a fresh start takes.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddpjob_api.names import GENERATION_ENV, WorkerEnv
from ddpjob_trainer.launcher.children import Children, Process
from ddpjob_trainer.launcher.pressure import Pressure
from ddpjob_trainer.launcher.timing import (
    IMPORTING_SECONDS,
    PACE_SECONDS,
    PACE_SHARE,
    TAKE_OVER_SECONDS,
)
from ddpjob_trainer.page import Page

CHANNEL = 3
"""Descriptor of the socket in the standby."""
MAX_MESSAGE_BYTES = 65536
TICKS = os.sysconf("SC_CLK_TCK")


class Standby:
    """One waiting process."""

    def __init__(
        self,
        *,
        rank: int,
        command: list[str],
        environment: Mapping[str, str],
        page: Path,
        without: Sequence[str],
        children: Children,
    ) -> None:
        """Start it; `environment` is a worker's, of which it gets what is not of a generation.

        Raises:
            OSError: it cannot be started.
        """
        self.rank = rank
        self.ready = False
        self.unfit = ""
        """Why it must not become a worker, where it said so."""
        self.package = ""
        """What it was importing then."""
        self._page = page
        self._environment = {name: value for name, value in environment.items() if name not in GENERATION_ENV}
        self._taken = asyncio.Event()
        page.unlink(missing_ok=True)
        Page(page, create=True).close()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.setblocking(False)
        told = json.dumps({"fd": CHANNEL, "without": list(without)})
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            self.process: Process = children.spawn(
                command,
                {**self._environment, WorkerEnv.PAGE: str(page), WorkerEnv.STANDBY: told},
                nowhere,
                nowhere,
                channel=(theirs.fileno(), CHANNEL),
            )
        except OSError:
            self._channel.close()
            raise
        finally:
            os.close(nowhere)
            theirs.close()
        asyncio.get_running_loop().add_reader(self._channel, self._read)
        self._pace: asyncio.Task[None] | None = None
        self._hurried = False
        self._begun = False
        """It has mapped its page and is tied to us."""

    def order(self, environment: Mapping[str, str], page: Path, outputs: Sequence[int]) -> bool:
        """Tell it to become the worker of this environment, with these pipes; False where it cannot.

        Its page is `page` from now on. One that has not mapped its page yet would not find it under its old name, make
        another, and be deaf and dumb: it is no use yet.
        """
        self._read()
        set_ = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        unset = sorted(self._environment.keys() - environment.keys())
        if not self._begun or self._lost or (set_.keys() | set(unset)) - GENERATION_ENV:
            return False
        try:
            self._page.replace(page)
            socket.send_fds(self._channel, [json.dumps({"set": set_, "unset": unset}).encode()], outputs)
        except OSError:
            return False
        self._hurry()
        return True

    async def took_over(self) -> bool:
        """Whether it is the worker now; if not, it does not live any more."""
        seconds = TAKE_OVER_SECONDS if self.ready else IMPORTING_SECONDS
        waits = [
            asyncio.ensure_future(self._taken.wait()),
            asyncio.ensure_future(self.process.ended.wait()),
        ]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._read()  # the last word of one that has ended already
        taken = self._taken.is_set()
        if not taken:
            self.kill()
            await self.process.ended.wait()
        self.close()
        return taken

    def kill(self) -> None:
        self.process.send_group(signal.SIGKILL)

    def close(self) -> None:
        """Let go of it; what it left is taken away."""
        self._hurried = True
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None
        if self._channel.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
        with contextlib.suppress(OSError):
            self._page.unlink()

    @property
    def _lost(self) -> bool:
        return self.process.returncode is not None or bool(self.unfit)

    def _read(self) -> None:
        while self._channel.fileno() >= 0:
            try:
                data = self._channel.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                asyncio.get_running_loop().remove_reader(self._channel)
                return
            with contextlib.suppress(ValueError, AttributeError):
                self._heard(json.loads(data))

    def _heard(self, message: Mapping[str, object]) -> None:
        if message.get("taken"):
            self._taken.set()
        elif message.get("begun"):
            self._begun = True
            if not self._hurried:
                # Stopped any earlier, it would outlive a launcher that is killed: it is tied to us only now.
                self._pace = asyncio.ensure_future(self._import_gently())
        elif "unfit" in message:
            self.unfit = str(message["unfit"])[:256] or "it does not say why"
            self.package = str(message.get("package") or "")[:256]
        elif "ready" in message:
            self.ready = True
            self._hurry()

    async def _import_gently(self) -> None:
        """On a part of one core, stopped whenever it has had more; freely while nobody waits for a core.

        No priority does this: an unprivileged process cannot leave a nice value or SCHED_IDLE again.
        """
        loop = asyncio.get_running_loop()
        at, had, credit = loop.time(), 0.0, 0.0
        pressure = Pressure()
        while self.process.returncode is None:
            await asyncio.sleep(PACE_SECONDS)
            before_at, before_had = at, had
            at, had = loop.time(), cpu_seconds(self.process.pid)
            credit = min(credit + (at - before_at) * PACE_SHARE, PACE_SECONDS) - (had - before_had)
            if pressure.low(at):
                credit = 0.0
            self.process.send(signal.SIGSTOP if credit < 0 else signal.SIGCONT)

    def _hurry(self) -> None:
        self._hurried = True
        if self._pace is not None:
            self._pace.cancel()
            self._pace = None
        self.process.send(signal.SIGCONT)


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has had; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
