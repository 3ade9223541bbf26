"""How a `command` ended: its own exit code says little, so the ranks below it are asked.

Why apart: torchrun and accelerate end with 1 whatever happened, also when they are told to end. Witnesses are what
they left about their ranks (`ddpjob_trainer.nested`), the ranks' error files and pages, and the signals sent.
Must not: judge between nodes (`halt.py`).
"""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ddpjob_api.exits import Exit
from ddpjob_api.page import Slot
from ddpjob_api.report import Cause, WorkerExit
from ddpjob_trainer.files import Files, agent_file, command_error_file
from ddpjob_trainer.launcher.cause import Circumstances, ErrorFile, read_error, worker_exit
from ddpjob_trainer.page import Page

MAX_AGENT_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank's witnesses."""

    rank: int
    files: Files
    page: Page


def command_exit(
    ranks: tuple[Rank, ...], returncode: int, *, run_dir: Path, generation: int, circumstances: Circumstances
) -> WorkerExit:
    """The finding about the command of one node; it is about the rank to blame, if one is known."""
    first = ranks[0]
    if returncode == 0:
        stopped = circumstances.stop_asked and any(
            rank.page[Slot.EXIT_CODE] == Exit.STOPPED for rank in ranks
        )
        return worker_exit(
            rank=first.rank,
            returncode=Exit.STOPPED if stopped else 0,
            page=first.page,
            error=None,
            circumstances=circumstances,
        )
    known = {rank.rank: rank for rank in ranks}
    codes = ends(agent_file(run_dir, generation))
    failed = [known[rank] for rank in codes if rank in known] or [
        rank for rank in ranks if rank.files.error.exists()
    ]
    found = [about(rank, codes.get(rank.rank, returncode), circumstances) for rank in failed]
    # When one has failed, torchrun ends the others with SIGTERM: those are not to blame.
    own = [
        item
        for number, item in enumerate(found)
        if item.cause is Cause.OWN and not (number and item.returncode == -signal.SIGTERM)
    ]
    item = next(iter(own or found), None)
    if item is None:
        error = read_error(command_error_file(run_dir, generation))
        item = about(first, returncode, circumstances, error)
    said = item.error_type is not None or item.cause is Cause.VICTIM
    if signal.SIGTERM in circumstances.signals and not said:
        # Launchers end with 1 when they are told to end, and so may a shell.
        return replace(item, cause=Cause.KILLED)
    return item


def about(
    rank: Rank, returncode: int, circumstances: Circumstances, error: ErrorFile | None = None
) -> WorkerExit:
    return worker_exit(
        rank=rank.rank,
        returncode=returncode,
        page=rank.page,
        error=read_error(rank.files.error) or error,
        circumstances=circumstances,
    )


def ends(agent: Path) -> Mapping[int, int]:
    """Exit codes of the ranks that failed, by rank, the first one first; empty where nobody left word."""
    try:
        with agent.open("rb") as file:
            told = json.loads(file.read(MAX_AGENT_FILE_BYTES))
        return {int(end["rank"]): int(end["exitCode"]) for end in told}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
