"""A process that waits, with the program's imports done, to become a rank of the next generation.

How it works: the launcher starts `bootstrap.py` as for a worker, without what only a generation has, and with a socket
(`WorkerEnv.STANDBY`). Before the program would run, `wait` imports what the program has imported by its first step in
an earlier generation, says that it is ready, and sleeps. The launcher's order brings the rest of the environment and
the output pipes; from then on this is the worker, and the program cannot tell it from a fresh one.

A fresh interpreter, no fork: nothing is shared with the worker it stands by for, and no lock or device is inherited.
What an import must not do here, because it would be wrong in the next generation or is not ours to hold meanwhile:
read what only a generation has, import the program's own modules, start a thread of Python or a process, initialise a
device, change the folder. A standby that sees it says which package it was and ends; the next one goes without it.
Must not: outlive its launcher, write to anything before its order, or be trusted by it.
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from ddpjob_api.names import GENERATION_ENV, WorkerEnv
from ddpjob_trainer import learned
from ddpjob_trainer.instrumentation.imports import collector_resting

WITHOUT = frozenset(
    {"mpi4py", "horovod", "habana_frameworks", "torch_npu", "torch_mlu", "torch_xla", "libtpu"}
)
"""Packages whose import takes a device or joins a group of processes."""
DEVICES = ("cuda", "xpu", "npu", "hpu", "mlu")
OOM_SCORE = Path("/proc/self/oom_score_adj")
FIRST_TO_GO = "1000"
MAX_ORDER_BYTES = 65536


class Unfit(Exception):
    """Not to become a worker; the message says why."""


def wait() -> None:
    """Import, say so, and sleep; returns as a worker, its environment and its output those of a generation.

    Ends the process where it is unfit, or not needed any more.
    """
    asked = json.loads(os.environ.pop(WorkerEnv.STANDBY))
    os.environ.pop(WorkerEnv.PAGE, None)
    channel = socket.socket(fileno=asked["fd"])
    channel.set_inheritable(False)
    tell(channel, {"begun": True})
    if gone(channel):
        os._exit(0)  # it was killed before this process was tied to it
    usual = first_to_be_killed()
    here, folder = learned.folders(), os.getcwd()
    environment = dict(os.environ)
    package = ""
    try:
        with watched_environment() as reads, collector_resting():
            for name in learned.read(Path(os.environ[WorkerEnv.IMPORTS_FILE])):
                package = name.partition(".")[0]
                if name in sys.modules or package in WITHOUT or package in asked["without"]:
                    continue
                if import_ahead(name):
                    check(reads, folder)
                if ordered(channel):
                    break
        here = learned.folders() | here
        package = ""
        gc.collect()  # what was left out meanwhile would be made up for in the first steps of the worker
        tell(channel, {"ready": True})
        data, descriptors, _, _ = socket.recv_fds(channel, MAX_ORDER_BYTES, 2)
        if not data:
            os._exit(0)
        if learned.changed(here) != here:
            raise Unfit("packages were installed or removed since it began")
        if usual is not None:
            OOM_SCORE.write_text(usual)
    except (Unfit, OSError) as unfit:
        leave(channel, str(unfit), package)
    # What imports have put there, a program finds only after it has imported them itself.
    os.environ.clear()
    os.environ.update(environment)
    become(json.loads(data), descriptors)
    tell(channel, {"taken": True})
    channel.close()


def import_ahead(name: str) -> bool:
    """Import a module; what cannot be imported is left to the program. True where anything was imported.

    Raises:
        Unfit: it brought a module of the program's own.
    """
    before = set(sys.modules)
    with contextlib.suppress(Exception):
        importlib.import_module(name)
    new = [each for each in list(sys.modules) if each not in before]
    own = learned.foreign(new)
    if own is not None:
        raise Unfit(f"the import of {name} brings {own}, which is the program's own")
    return bool(new)


def check(reads: list[str], folder: str) -> None:
    """
    Raises:
        Unfit: an import did what a waiting process must not do.
    """
    if reads:
        raise Unfit(f"an import reads {reads[0]}, which each generation has another of")
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        raise Unfit(f"an import started the thread {others[0]}")
    if any(path.read_text().strip() for path in Path("/proc/self/task").glob("*/children")):
        raise Unfit("an import started a process")
    torch: Any = sys.modules.get("torch")
    for device in DEVICES:
        initialised = getattr(getattr(torch, device, None), "is_initialized", None)
        if callable(initialised) and initialised():
            raise Unfit(f"an import initialised {device}")
    if os.getcwd() != folder:
        raise Unfit("an import changed the working directory")


@contextlib.contextmanager
def watched_environment() -> Any:
    """The names of `GENERATION_ENV` that somebody asks `os.environ` for meanwhile."""
    kind: Any = type(os.environ)
    reads: list[str] = []

    class Watched(kind):  # type: ignore[misc]
        def __getitem__(self, name: str) -> Any:
            if name in GENERATION_ENV:
                reads.append(name)
            return super().__getitem__(name)

    environ: Any = os.environ
    environ.__class__ = Watched
    try:
        yield reads
    finally:
        environ.__class__ = kind


def first_to_be_killed() -> str | None:
    """Offer this process to the kernel where memory runs out; returns the score before, None where it stays."""
    try:
        usual = OOM_SCORE.read_text().strip()
        OOM_SCORE.write_text(FIRST_TO_GO)
    except OSError:
        return None
    return usual


def gone(channel: socket.socket) -> bool:
    """Whether the launcher is."""
    try:
        return not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def ordered(channel: socket.socket) -> bool:
    """Whether the launcher has an order, or is gone."""
    try:
        return channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) is not None
    except BlockingIOError:
        return False


def become(order: dict[str, Any], descriptors: list[int]) -> None:
    """Take a generation's environment, and its pipes for output."""
    for name in order["unset"]:
        os.environ.pop(name, None)
    os.environ.update(order["set"])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for target, descriptor in enumerate(descriptors, start=1):
        os.dup2(descriptor, target)
        os.close(descriptor)


def tell(channel: socket.socket, message: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        channel.send(json.dumps(message).encode())


def leave(channel: socket.socket, why: str, package: str) -> NoReturn:
    tell(channel, {"unfit": why, "package": package})
    os._exit(1)
