"""The files of one rank in one generation, and of the node they lie on.

Why apart: written by launchers and by ranks that no launcher started itself, so both must find the same names.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of one rank in one generation, on the memory volume."""

    page: Path
    error: Path
    stacks: Path
    imports: Path
    """Of the rank, whatever the generation."""

    @classmethod
    def of(cls, run_dir: Path, generation: int, rank: int) -> "Files":
        name = f"g{generation}-r{rank}"
        return cls(
            page=run_dir / f"page-{name}",
            error=run_dir / f"error-{name}.json",
            stacks=run_dir / f"stacks-{name}.txt",
            imports=run_dir / f"imports-r{rank}",
        )

    @property
    def claim(self) -> Path:
        """Locked by the process that is this rank, where ranks are not started by the launcher."""
        return self.page.with_name(f"{self.page.name}.claim")


def pages_of(run_dir: Path, generation: int) -> list[Path]:
    """The pages of all ranks of this node in one generation."""
    return [each for each in run_dir.glob(f"page-g{generation}-r*") if not each.suffix]


def term_file(run_dir: Path) -> Path:
    """The highest term this node has obeyed."""
    return run_dir / "term"


def agent_file(run_dir: Path, generation: int) -> Path:
    """What a nested launcher (torchrun, accelerate) on this node knows of its ranks' ends."""
    return run_dir / f"agent-g{generation}.json"


def command_error_file(run_dir: Path, generation: int) -> Path:
    """The error file of a `command` itself; its ranks have their own."""
    return run_dir / f"error-g{generation}-command.json"
