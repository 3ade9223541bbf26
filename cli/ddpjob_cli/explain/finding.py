"""A finding: one thing to know about a job, and how much it matters.

Why apart: what finds and what shows them share it. Must not: know what a job is.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Weight(IntEnum):
    """How much a finding matters; the first is shown first."""

    STOPS = 0
    """Why it does not run."""
    FAILS = 1
    """Why it failed on the way."""
    SLOWS = 2
    NOTES = 3
    """Worth knowing."""
    FINE = 4

    @property
    def word(self) -> str:
        return {0: "stops", 1: "fails", 2: "slows", 3: "note", 4: "fine"}[self.value]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know."""

    weight: Weight
    what: str
    where: str = ""
    do: str = ""

    def json(self) -> dict[str, Any]:
        return {"weight": self.weight.word, "what": self.what, "where": self.where, "do": self.do}
