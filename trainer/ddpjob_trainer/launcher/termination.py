"""The last words of a launcher: the termination message, always within what the kubelet keeps.

Why apart: operator and `ddpjob run` judge by it, so it must be valid JSON whatever a program put into its exception,
result or settings. Must not: fail the launcher (a file that cannot be written is a log line).
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ddpjob_api.codec import render
from ddpjob_api.report import MAX_TERMINATION_BYTES, InEffect, TerminationMessage


def fit(message: TerminationMessage) -> bytes:
    """The message as JSON of at most `MAX_TERMINATION_BYTES`; the least needed parts go first."""
    for shorten in (same, few_details, short_texts, no_settings, no_result):
        message = shorten(message)
        text = json.dumps(render(message), separators=(",", ":"), ensure_ascii=False).encode(
            "utf-8", "replace"
        )
        if len(text) <= MAX_TERMINATION_BYTES:
            return text
    # Not reachable with the limits of the types; a reader still learns how it ended.
    bare = replace(message, message="", failure=None, progress=None)
    return json.dumps(render(bare), separators=(",", ":")).encode()


def write(path: Path, message: TerminationMessage, say: Callable[[str], None]) -> None:
    """Leave the message."""
    try:
        path.write_bytes(fit(message))
    except OSError as error:
        say(f"the termination message cannot be written: {error}")


def same(message: TerminationMessage) -> TerminationMessage:
    return message


def few_details(message: TerminationMessage) -> TerminationMessage:
    """Settings without the long lists."""
    ddp = message.ddp
    if ddp is None:
        return message
    return replace(message, ddp=replace(ddp, bucket_bytes=(), overrides=ddp.overrides[:4], warnings=()))


def short_texts(message: TerminationMessage) -> TerminationMessage:
    failure = message.failure
    if failure is not None:
        failure = replace(
            failure,
            message=clip(failure.message, 300),
            location=clip(failure.location, 200) if failure.location else None,
        )
    ddp = replace(message.ddp, overrides=()) if message.ddp is not None else None
    return replace(message, message=clip(message.message, 300), failure=failure, ddp=ddp)


def no_settings(message: TerminationMessage) -> TerminationMessage:
    ddp: InEffect | None = None
    return replace(message, ddp=ddp)


def no_result(message: TerminationMessage) -> TerminationMessage:
    return replace(message, result={})


def clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
