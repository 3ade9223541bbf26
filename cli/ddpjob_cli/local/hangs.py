"""What the launchers of a run on this machine have left in its folder about hangs.

Why apart: files here, lines of a log on a cluster. Must not: judge.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ddpjob_api.codec import Invalid, load
from ddpjob_api.postmortem import FOLDER, VERDICT_FILE, PostMortem, RankKept
from ddpjob_api.report import Failure
from ddpjob_cli.local.look import LocalRun

PLACES = (f"node-*/checkpoints/{FOLDER}", f"checkpoints/{FOLDER}", f"node-*/{FOLDER}")
"""Beside each node's checkpoints, beside those of all, and in a node's folder where the job has none."""


def collect(run: LocalRun) -> list[PostMortem]:
    """All that are kept."""
    found = [path for place in PLACES for path in run.path.glob(f"{place}/generation-*")]
    return [part for path in found if (part := read(path)) is not None]


def read(folder: Path) -> PostMortem | None:
    """What one folder has of one generation; None where it can no longer be read, or is empty."""
    number = folder.name.removeprefix("generation-")
    ranks = tuple(ranks_in(folder))
    verdict = parsed(Failure, folder / VERDICT_FILE)
    if not number.isdecimal() or not (ranks or verdict):
        return None
    return PostMortem(generation=int(number), at=changed(folder), ranks=ranks, verdict=verdict)


def ranks_in(folder: Path) -> Iterator[RankKept]:
    for path in sorted(folder.glob("rank-*.json")):
        rank = parsed(RankKept, path)
        if rank is not None:
            yield load_stacks(rank, path.with_suffix(".txt"))


def load_stacks(rank: RankKept, path: Path) -> RankKept:
    try:
        return replace(rank, stacks=path.read_text(errors="replace"))
    except OSError:
        return rank


def parsed(kind: type[Any], path: Path) -> Any:
    try:
        return load(kind, json.loads(path.read_text()))
    except (OSError, ValueError, Invalid):
        return None


def changed(folder: Path) -> str:
    try:
        moment = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
    except OSError:
        return ""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
