"""Progress lines with elapsed time, so that a long step never looks like a hang.

Why apart: pytest captures output; its plugin redirects these lines past the capture (`sink`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_started = time.monotonic()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


sink: Callable[[str], None] = _to_stderr
"""Where lines go; replaced by the pytest fixture."""


def say(text: str) -> None:
    """One line, stamped with the seconds since the harness was first used."""
    sink(f"[{time.monotonic() - _started:7.1f} s] {text}")


@contextmanager
def step(text: str) -> Iterator[None]:
    """Announce a step and say how long it took."""
    say(f"{text} …")
    began = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - began:.1f} s")
