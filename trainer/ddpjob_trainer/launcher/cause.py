"""How a worker's end came about: own failure, victim of another's, or killed by its launcher.

Why apart: blaming the right rank is decided here, from four witnesses: the return code, the error file the worker
left, its page, and the signals this launcher had sent by then. Order in time decides: a failure that was written before
a worker was told to end is its own, whatever it ends with then; what it answers, an exception or an exit code, is none.
A SIGKILL that nobody here sent is nobody's answer, also while the generation is being stopped.
Must not: compare ranks (`halt.py`).
"""

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpjob_api.exits import Exit
from ddpjob_api.page import Slot, WorkerState
from ddpjob_api.report import Cause, WorkerExit, out_of_memory
from ddpjob_trainer.cgroup import quantity
from ddpjob_trainer.last_words import LATE, PEER_LOST, PEER_LOST_TYPES, line_of, tells_of_itself
from ddpjob_trainer.launcher.halt import signal_name
from ddpjob_trainer.page import Page

STACKS_SIGNAL = signal.SIGRTMIN + 3
"""The worker's faulthandler writes all stacks on it; USR1 and USR2 belong to Slurm, submitit and Lightning."""
MAX_ERROR_FILE_BYTES = 1024 * 1024
WATCHDOG = re.compile(r"Watchdog caught collective operation timeout|watchdog got stuck")
TERMINATE = re.compile(
    r"terminate called (?:after throwing an instance of '(?P<type>[^']+)'|without|recursively)"
)
WHAT = re.compile(r"^\s*what\(\):\s*")
WHAT_LINES = 6
"""So many may a message have; NCCL's has four."""
LIBRARY = re.compile(
    r"Assertion .* failed|double free|free\(\): |malloc\(\): |stack smashing detected|corrupted "
)
CRASHES = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)
)
"""Return codes of signals on which the worker wrote its stacks."""


@dataclass(frozen=True, kw_only=True)
class ErrorFile:
    """What a worker wrote about its exception."""

    type: str = ""
    message: str = ""
    location: str | None = None
    step: int | None = None
    peer_lost: bool = False
    late: bool = False
    """Its error is a time-out: the peer may be alive and stuck."""
    refused: bool = False
    at: float | None = None
    """When it was written, by the monotonic clock; None where only stderr tells."""
    last: bool = False
    """The program ended with it; torchelastic's `@record` writes also what the program may catch."""
    exit_code: int = 1
    """What the process was going to end with."""


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """What the launcher had done to a worker by the time it ended."""

    signals: Mapping[int, float] = field(default_factory=dict)
    """Signals sent, and when first, by the monotonic clock."""
    stop_asked: bool = False
    """A stop step was named, so `Exit.STOPPED` is an answer."""
    oom: bool = False
    """The kernel killed for memory in this container."""
    memory_limit: int | None = None
    """Bytes that the container may have, where there is a limit."""
    stderr: tuple[str, ...] = ()
    """Its newest lines."""
    place: str | None = None
    """The innermost frame of the user's code, as the worker wrote it when it died of a signal."""

    @property
    def told_at(self) -> float | None:
        """When it was first told to end."""
        ends = (signal.SIGTERM, signal.SIGKILL)
        return min((self.signals[number] for number in ends if number in self.signals), default=None)


def worker_exit(
    *, rank: int, returncode: int, page: Page, error: ErrorFile | None, circumstances: Circumstances
) -> WorkerExit:
    """The whole finding about one worker."""
    finished = page[Slot.STATE] == WorkerState.FINISHED
    if finished and returncode < 0:
        # It had ended already; what killed it on its way out (C++ destructors) is no failure.
        returncode = int(page[Slot.EXIT_CODE])
    if error is None and page[Slot.ERROR_AT]:
        error = ErrorFile(at=page[Slot.ERROR_AT], last=True, exit_code=int(page[Slot.EXIT_CODE]))
    if error is not None and error.at is not None and page[Slot.LAST_STEP_AT] > error.at:
        error = None  # the program dealt with it, and trained on
    first = error is not None and failed_first(returncode, error, circumstances)
    if returncode == 0 and not first:
        error = None
    step = int(page[Slot.STEP])
    if error is not None and error.step is not None:
        step = max(step, error.step)
    if returncode == -signal.SIGABRT and error is None:
        error = aborted(circumstances.stderr)
    location = error.location if error is not None else None
    if location is None and returncode in CRASHES:
        location = circumstances.place
    cause = cause_of(returncode, error, circumstances, first=first)
    if error is not None and first and is_substitute(returncode, circumstances):
        returncode = error.exit_code
    oom = circumstances.oom and returncode == -signal.SIGKILL and cause is Cause.OWN
    return WorkerExit(
        rank=rank,
        returncode=returncode,
        cause=cause,
        error_type=(error.type[:256] or None) if error is not None else None,
        message=words(returncode, error, oom=oom, limit=circumstances.memory_limit)[:1024],
        location=location[:512] if location else None,
        step=step,
        oom_killed=oom,
        refused=error is not None and error.refused,
        late=cause is Cause.VICTIM and error is not None and error.late,
    )


def aborted(stderr: tuple[str, ...]) -> ErrorFile | None:
    """What a C++ runtime, a library or NCCL's watchdog wrote before SIGABRT; None where it is nothing known."""
    for number in range(len(stderr) - 1, -1, -1):
        line = stderr[number]
        if WATCHDOG.search(line):
            return ErrorFile(message=WHAT.sub("", line).strip(), peer_lost=True, late=True)
        thrown = TERMINATE.search(line)
        if thrown is not None:
            what = next((at for at in range(number, len(stderr)) if WHAT.match(stderr[at])), len(stderr))
            said = WHAT.sub("", "\n".join(stderr[what : what + WHAT_LINES])).strip()
            late = WATCHDOG.search(said) is not None
            return ErrorFile(
                type=thrown["type"] or "std::terminate",
                message=said,
                peer_lost=late or (thrown["type"] == "c10::DistBackendError" and not tells_of_itself(said)),
                late=late,
            )
        if LIBRARY.search(line):
            return ErrorFile(message=line.strip())
    return None


def cause_of(returncode: int, error: ErrorFile | None, circumstances: Circumstances, *, first: bool) -> Cause:
    """Whose failure an end is.

    Args:
        first: whether the error is a failure that was written before the worker was told to end.
    """
    if error is not None and error.refused:
        return Cause.OWN
    if error is not None and error.peer_lost:
        return Cause.VICTIM
    if first:
        return Cause.OWN
    return Cause.KILLED if is_answer(returncode, circumstances) else Cause.OWN


def failed_first(returncode: int, error: ErrorFile, circumstances: Circumstances) -> bool:
    """Whether a failure was written before the worker was told to end."""
    told = circumstances.told_at
    if error.at is None or (told is not None and error.at >= told):
        return False
    # What the program may have caught, and gone on, counts only for a program that ended with an error of its own.
    return error.last or not (returncode in {0, Exit.STOPPED} or is_signals(returncode, circumstances))


def is_answer(returncode: int, circumstances: Circumstances) -> bool:
    """Whether a worker ended so because of what we sent it; it may handle SIGTERM, and end as it likes."""
    if is_signals(returncode, circumstances):
        return True
    by_others = returncode in {-signal.SIGKILL, 128 + signal.SIGKILL}
    return circumstances.told_at is not None and not by_others


def is_substitute(returncode: int, circumstances: Circumstances) -> bool:
    """Whether a worker that was told to end would have ended with another code."""
    told = circumstances.told_at is not None
    return told and (
        returncode < 0 or returncode in {0, Exit.STOPPED} or is_signals(returncode, circumstances)
    )


def is_signals(returncode: int, circumstances: Circumstances) -> bool:
    """Whether a signal that we sent ended it, or a shell says so."""
    return -returncode in circumstances.signals or returncode - 128 in circumstances.signals


def is_failure(item: WorkerExit, *, stop_asked: bool) -> bool:
    """Whether an end is one that must end the generation."""
    return item.returncode != 0 and not (stop_asked and item.returncode == Exit.STOPPED)


def words(returncode: int, error: ErrorFile | None, *, oom: bool, limit: int | None) -> str:
    """The program's last words, or what can be said without them."""
    if error is not None and (error.type or error.message):
        first = line_of(error.message)
        if not error.type or first.startswith(error.type):
            return first
        return f"{error.type}: {first}" if first else error.type
    if oom:
        return out_of_memory(None if limit is None else quantity(limit))
    if returncode < 0:
        return f"died of {signal_name(-returncode)}"
    return f"ended with exit code {returncode}"


def read_error(path: Path) -> ErrorFile | None:
    """A worker's error file; None where there is none or it is no JSON of torchelastic's form."""
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(MAX_ERROR_FILE_BYTES))
            at = time.monotonic() - (time.time() - os.fstat(file.fileno()).st_mtime)
        message = document["message"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    if isinstance(document.get("ddpjob"), dict):
        return ours(document["ddpjob"], at)
    # a script with @record: its message is `{"message": "ValueError: …", "extraInfo": …}` or a bare string
    text = str(message.get("message", "")) if isinstance(message, dict) else str(message)
    name, _, rest = text.partition(":")
    kind = name.strip() if name.strip().isidentifier() else ""
    return ErrorFile(
        type=kind,
        message=rest.strip() if kind else text,
        # The program's own sockets say the same words: torch raises RuntimeError.
        peer_lost=not tells_of_itself(text)
        and (
            kind in PEER_LOST_TYPES or (kind in {"", "RuntimeError"} and PEER_LOST.search(text) is not None)
        ),
        late=LATE.search(text) is not None,
        at=at,
    )


def ours(document: dict[str, Any], at: float) -> ErrorFile:
    location, step, code = document.get("location"), None, 1
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        step = int(document["step"]) if document.get("step") is not None else None
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        at, code = float(document.get("at", at)), int(document.get("exitCode", 1))
    return ErrorFile(
        type=str(document.get("type") or ""),
        message=str(document.get("message") or ""),
        location=str(location) if location else None,
        step=step,
        peer_lost=document.get("peerLost") is True,
        late=document.get("late") is True,
        refused=document.get("refused") is True,
        at=at,
        last=True,
        exit_code=code,
    )
