"""The table at the end of `make chaos`: a line per row of what was done and what it cost.

`DDPJOB_CHAOS_JSON=file` writes the same as JSON.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.training import Life, Training

HEADER = ("what was done", "s to next step", "repeated", "lost", "counted as", "verdict")


@dataclass
class Row:
    """One line."""

    what: str
    seconds: float | None = None
    """From the fault to the next optimizer step of all ranks; None where none is to come."""
    repeated: int | None = None
    lost: int | None = None
    counted: str = ""
    verdict: str = "FAILED"

    def cells(self) -> tuple[str, ...]:
        seconds = "–" if self.seconds is None else f"{self.seconds:.1f}"
        return (
            self.what,
            seconds,
            "–" if self.repeated is None else str(self.repeated),
            "–" if self.lost is None else str(self.lost),
            self.counted,
            self.verdict,
        )


@dataclass
class Table:
    """All lines of a session."""

    rows: list[Row] = field(default_factory=list)

    @contextmanager
    def row(self, what: str) -> Iterator[Row]:
        """A line that says ok only if the block came to its end."""
        row = Row(what)
        self.rows.append(row)
        yield row
        row.verdict = "ok"

    def lines(self) -> list[str]:
        cells = [HEADER, *(row.cells() for row in self.rows)]
        widths = [max(len(line[column]) for line in cells) for column in range(len(HEADER))]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells
        ]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(row) for row in self.rows], indent=1, ensure_ascii=False))


@dataclass
class Incident:
    """One fault in a training: what was before it, and what followed."""

    training: Training
    row: Row
    life: Life
    restarts: int
    disruptions: int
    pods: dict[int, str]
    """uid by index."""
    at: float = 0.0

    @classmethod
    def before(cls, training: Training, row: Row) -> "Incident":
        """Wait until the training makes steps, and note how it stands."""
        life = training.until_stepping()
        status = training.status()
        return cls(
            training=training,
            row=row,
            life=life,
            restarts=status.get("restarts", 0),
            disruptions=status.get("disruptions", 0),
            pods={index: str(pod["metadata"]["uid"]) for index, pod in training.job.live().items()},
            at=time.time(),
        )

    def begins(self) -> None:
        """The fault comes now."""
        self.at = time.time()

    def recovered(self, *, restarts: int = 0, disruptions: int = 0, timeout: float = 200) -> dict[str, Any]:
        """Wait for the first step of a new generation and for the status that counts it so; that status."""
        first = self.training.until_first_step(self.life, timeout)
        return self.settled(first, restarts=restarts, disruptions=disruptions)

    def undisturbed(self, timeout: float = 60) -> dict[str, Any]:
        """The training went on in the same generation, and nothing was counted."""
        first = self.training.until_next_step(self.at, timeout)
        assert self.training.journal.newest() == self.life, "a new generation began"
        return self.settled(first)

    def settled(self, first: float, *, restarts: int = 0, disruptions: int = 0) -> dict[str, Any]:
        row = self.row
        row.seconds = first - max(self.at, self.training.struck)
        wanted = self.restarts + restarts, self.disruptions + disruptions
        row.counted = "restart" if restarts else "disruption" if disruptions else "nothing"
        found = self.training.job.until(
            lambda job: counts(job) == wanted, f"restarts and disruptions are {wanted}", timeout=40
        )["status"]
        row.repeated, row.lost = self.training.journal.repeated_and_lost()
        assert (row.repeated, row.lost) == (0, 0)
        return dict(found)

    def kept(self, *indexes: int) -> None:
        """These pods are the same as before, and their containers did not restart."""
        live = self.training.job.live()
        for index in indexes:
            assert live[index]["metadata"]["uid"] == self.pods[index], f"pod {index} was replaced"
            assert all(c["restartCount"] == 0 for c in live[index]["status"].get("containerStatuses", []))


def counts(job: dict[str, Any]) -> tuple[int, int]:
    status = job.get("status", {})
    return status.get("restarts", 0), status.get("disruptions", 0)
