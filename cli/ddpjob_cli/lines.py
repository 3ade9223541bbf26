"""Lines of a launcher's output: which rank said them, and which of them somebody wants.

Why apart: pods and local runs have the same output. Must not: read anything.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ddpjob_api import history, postmortem

RANK = re.compile(r"^\[rank (\d+)\] ")
OWN = "[ddpjob] "
"""Begins the lines of the launcher itself."""
PACKED = (OWN + history.LOG_MARK, OWN + postmortem.LOG_MARK)
"""Begin those that no person reads."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line; `rank` is None where the launcher says it."""

    node: int
    pod: str
    rank: int | None
    text: str

    @property
    def head(self) -> str:
        """`[rank 3] `, or the node where no rank said it."""
        return f"[node {self.node}] " if self.rank is None else f"[rank {self.rank}] "

    def json(self) -> dict[str, Any]:
        return {"node": self.node, "pod": self.pod, "rank": self.rank, "line": self.text}


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What was asked for."""

    rank: int | None = None
    node: int | None = None
    failed: bool = False
    pod: str | None = None
    """That of the failure: its uid, or its name where that is all that is known."""
    previous: bool = False
    tail: int | None = None

    def takes(self, line: Line) -> bool:
        return self.rank is None or line.rank == self.rank


def read(texts: Iterable[str], *, node: int, pod: str, wanted: Wanted) -> Iterator[Line]:
    """The lines wanted of one node; the launcher's history is for `ddpjob report`."""
    lines = (line for text in texts if (line := parse(text, node, pod)) is not None and wanted.takes(line))
    if wanted.tail is None:
        return lines
    return iter(deque(lines, maxlen=wanted.tail))


def parse(text: str, node: int, pod: str) -> Line | None:
    """One line; None for what no person reads."""
    text = text.rstrip("\r")
    match = RANK.match(text)
    if match is not None:
        return Line(node=node, pod=pod, rank=int(match[1]), text=text[match.end() :])
    if text.startswith(PACKED):
        return None
    return Line(node=node, pod=pod, rank=None, text=text.removeprefix(OWN))
