"""Waiting with a deadline: for a predicate, or for a Kubernetes object through a watch."""

from __future__ import annotations

import json
import selectors
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .errors import TimedOut

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T],
    timeout: float,
    describe: str | Callable[[], str],
    *,
    every: float = 0.2,
    error: Callable[[str], Exception] = TimedOut,
) -> T:
    """The first truthy value of the predicate; for things that cannot be watched.

    `describe` names what is waited for; a function is asked at the end, so that it can say what was seen instead.

    Raises:
        error: it stayed falsy until the deadline.
    """
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            text = describe if isinstance(describe, str) else describe()
            raise error(f"not within {timeout:.0f} s: {text}")
        time.sleep(every)
    return value


def watch(
    argv: Sequence[str], predicate: Callable[[dict[str, Any] | None], bool], timeout: float, describe: str
) -> dict[str, Any] | None:
    """Follow `kubectl get … --watch --output-watch-events -o json` until the predicate holds.

    The predicate is asked with each state of the object, and with None while it does not exist or once it is deleted.

    Raises:
        TimedOut: it never held; the message shows the object's last status.
    """
    deadline = time.monotonic() + timeout
    seen: dict[str, Any] | None = None
    while time.monotonic() < deadline:  # a watch ends when the API server goes away; then start again
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
        ) as child:
            try:
                for event in _events(child, deadline):
                    seen = None if event["type"] == "DELETED" else event["object"]
                    if predicate(seen):
                        return seen
            finally:
                child.kill()
        time.sleep(0.2)
    last = json.dumps(seen.get("status", seen), indent=1)[-3000:] if seen else "it does not exist"
    raise TimedOut(f"not within {timeout:.0f} s: {describe}; last seen: {last}")


def _events(child: subprocess.Popen[bytes], deadline: float) -> Any:
    decoder, text = json.JSONDecoder(), ""
    assert child.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        pending = b""
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = child.stdout.read1(1 << 20)  # type: ignore[attr-defined]
            if not chunk:
                return
            pending += chunk
            try:
                text += pending.decode()
            except UnicodeDecodeError:
                continue  # a character was cut in two; the rest comes with the next chunk
            pending = b""
            while text := text.lstrip():
                try:
                    event, end = decoder.raw_decode(text)
                except ValueError:
                    break
                text = text[end:]
                yield event
