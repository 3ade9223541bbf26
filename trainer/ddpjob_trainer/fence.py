"""Who may still publish: a writer whose term is over leaves nothing.

A term is a coordinator's turn, and rises. The highest one seen stands in a file of the launcher's, and in a directory
that nodes share in one beside the steps, which whoever takes over raises.

Why apart: what the loop saves and what a launcher takes from another node are held back by the same rule, however they
are written. Must not: know checkpoints, or decide whose turn it is.
"""

import os
from dataclasses import dataclass
from pathlib import Path


class Fenced(Exception):
    """A newer coordinator is in charge: this writer belongs to the past and leaves no checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Keeps a writer of an older term from publishing."""

    term: int = 0
    files: tuple[Path, ...] = ()
    """Files that hold the highest term seen: the launcher's, and in a shared directory the one beside the steps."""
    raised: Path | None = None
    """The one of them that this writer raises to its own term."""

    def check(self) -> None:
        """Return if this writer may publish.

        Raises:
            Fenced: a higher term has been seen.
        """
        for path in self.files:
            seen = read_term(path)
            if seen > self.term:
                raise Fenced(f"term {seen} has taken over from term {self.term} ({path})")
        self.take_over()

    def take_over(self) -> None:
        """From now on, writers of an older term publish nothing in the shared directory.

        Raises:
            OSError: the term cannot be written.
        """
        if self.raised is not None and read_term(self.raised) < self.term:
            self.raised.parent.mkdir(parents=True, exist_ok=True)
            beside = self.raised.with_name(f"{self.raised.name}.tmp-{os.getpid()}")
            beside.write_text(str(self.term))
            beside.replace(self.raised)


def read_term(path: Path) -> int:
    """The term in a file; 0 where there is none."""
    try:
        return int(path.read_text().strip() or 0)
    except (FileNotFoundError, ValueError):
        return 0
