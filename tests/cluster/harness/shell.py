"""Running commands: one place that turns a failed command into a `CommandFailed` that carries its stderr."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from .errors import CommandFailed, TimedOut


def run(
    *argv: str | Path,
    input: str | None = None,
    check: bool = True,
    timeout: float | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    nice: int = 0,
) -> str:
    """The command's standard output.

    Raises:
        CommandFailed: it exited with an error (unless `check` is false), or could not be started (then always).
        TimedOut: it ran longer than `timeout` seconds; it has been killed.
    """
    command = [*(["nice", "-n", str(nice)] if nice else []), *(str(a) for a in argv)]
    try:
        done = subprocess.run(
            command,
            input=input,
            stdin=None if input is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, **env} if env else None,
        )
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{' '.join(command)}: still running after {timeout:.0f} s") from None
    except OSError as failure:  # no such program or folder, or no right to it; a shell's code for that
        raise CommandFailed(command, 127, f"cannot be started: {failure}") from failure
    if check and done.returncode:
        raise CommandFailed(command, done.returncode, done.stderr or done.stdout)
    return done.stdout


def succeeds(*argv: str | Path, timeout: float | None = 30) -> bool:
    """Whether the command exits with 0 in time."""
    try:
        run(*argv, timeout=timeout)
    except (CommandFailed, TimedOut):
        return False
    return True


def digest(parts: Iterable[bytes | str]) -> str:
    """Twelve hexadecimal digits that name a content."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:12]
