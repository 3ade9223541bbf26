"""The last words of a program that failed, in the file where torchelastic would put them.

Why apart: written by the dying worker, read by its launcher; also the place where a victim (its peer is gone) is told
from a culprit. Must not: import torch.
"""

import json
import os
import re
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddpjob_api.page import Slot
from ddpjob_api.plan import Refused as PlanRefused
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.instrumentation import where
from ddpjob_trainer.last_words import LATE, PEER_LOST, PEER_LOST_TYPES, line_of, tells_of_itself
from ddpjob_trainer.worker import Worker

MAX_MESSAGE = 4096
MAX_STACK = 32768

TORCHS = re.compile(r"gloo|nccl|c10d|TCPStore|/torch/", re.IGNORECASE)


def write(path: Path, error: BaseException, worker: Worker | None, *, code: int = 1) -> float:
    """Write the file; where `@record` of the script has written it already, only add our part.

    Args:
        code: what the process is going to end with.

    Returns:
        When, by the monotonic clock: the launcher compares it with when it sent a signal.

    Raises:
        OSError: it cannot be written.
    """
    at = time.monotonic()
    text = text_of(error)
    name = type(error).__name__
    stack = "".join(traceback.format_exception(error))
    document: dict[str, Any] = {
        "message": {
            "message": f"{name}: {text}"[:MAX_MESSAGE],
            "extraInfo": {"py_callstack": stack[-MAX_STACK:], "timestamp": str(int(time.time()))},
        }
    }
    document.update(written(path))
    document["ddpjob"] = {
        "type": name,
        "message": text[:MAX_MESSAGE],
        "location": where.raised_at(error.__traceback__),
        "peerLost": peer_lost(error),
        "late": peer_lost(error) and not peer_gone(error),
        "refused": refused(error),
        "step": int(worker.page[Slot.STEP]) if worker else 0,
        "exitCode": code & 0xFF,
        "at": at,
    }
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(document))
    beside.replace(path)
    return at


def written(path: Path) -> dict[str, Any]:
    """What torchelastic's `@record` left there."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def refused(error: BaseException) -> bool:
    """Whether the configuration is to blame, also where the program caught our refusal and raised its own error."""
    return any(isinstance(each, (Refused, PlanRefused)) for each in chain(error))


def peer_lost(error: BaseException) -> bool:
    """Whether the error, or one that led to it, says that another rank is gone or late."""
    return any(speaks_of_peer(each) for each in chain(error))


def peer_gone(error: BaseException) -> bool:
    """Whether another rank has ended; one that is only late may be a hang, of which no other rank will tell."""
    return peer_lost(error) and not any(LATE.search(text_of(each)) for each in chain(error))


def group_failed(error: BaseException) -> bool:
    """Whether a peer is gone or the process group cannot work here: no fault of whoever used the group."""
    return peer_gone(error) or any(
        type(each).__name__ in PEER_LOST_TYPES and tells_of_itself(text_of(each)) for each in chain(error)
    )


def line(error: BaseException) -> str:
    """`RuntimeError: Connection closed by peer [10.0.0.7]:4711 (train.py:31)`."""
    at = where.raised_at(error.__traceback__)
    return f"{type(error).__name__}: {line_of(text_of(error))}{f' ({at})' if at else ''}"


def text_of(error: BaseException) -> str:
    """What an exception says; some of a program's own cannot."""
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def speaks_of_peer(error: BaseException) -> bool:
    text = text_of(error)
    if tells_of_itself(text):
        return False
    if type(error).__name__ in PEER_LOST_TYPES:
        return True
    # The program's own sockets say the same words: torch raises RuntimeError, from its own files or naming its parts.
    if not isinstance(error, RuntimeError) or not PEER_LOST.search(text):
        return False
    innermost = traceback.extract_tb(error.__traceback__)[-1:]
    return bool(TORCHS.search(text)) or any(TORCHS.search(frame.filename) for frame in innermost)


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, as a traceback would show them."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def related(error: BaseException) -> list[BaseException]:
    """The error and every other one that its traceback may show, those of a group included."""
    found: dict[int, BaseException] = {}
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in found:
            continue
        found[id(each)] = each
        left += [each.__cause__, each.__context__]
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
    return list(found.values())
