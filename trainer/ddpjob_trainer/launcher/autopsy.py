"""Where the ranks of a crew stand when their generation is stopped.

Why apart: pages, /proc and stacks are read while the workers still live, and whatever is in them (or is missing) must
not keep the stop from going on. Must not: signal anybody (`crew.py`), compare ranks (`culprit.py`), or keep anything
(`postmortems.py`).

torch's flight recorder is not taken: only the process itself can dump it, from Python, and a hung one runs none.
"""

import contextlib
import math
import os
import re
import sysconfig
from dataclasses import replace
from pathlib import Path

from ddpjob_api.page import Phase, Slot, WorkerState
from ddpjob_api.report import RankView
from ddpjob_trainer.page import Page

MAX_STACKS_BYTES = 256 * 1024
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)$')
PACKAGES = tuple(
    os.path.realpath(path) + os.sep
    for path in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}
)
OURS = str(Path(__file__).resolve().parents[1]) + os.sep
FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<frozen ")
COLLECTIVE = re.compile(r"torch/(?:distributed/|autograd/graph\.py|nn/parallel/distributed\.py)")
DEEP = 8
"""Innermost frames in which a collective is looked for."""


def view(rank: int, page: Page, *, stopped: bool, now: float) -> RankView:
    """One rank, from its page."""
    return RankView(
        rank=rank,
        step=int(page[Slot.STEP]),
        sequence=int(page[Slot.COLLECTIVE_SEQUENCE]),
        micro_batches=int(page[Slot.MICRO_BATCHES]),
        backward_passes=int(page[Slot.BACKWARDS]) + (page[Slot.PHASE] == Phase.BACKWARD),
        joined=page[Slot.PROCESS_GROUP_AT] > 0,
        phase=phase_name(page),
        phase_seconds=round(max(0.0, now - page[Slot.PHASE_SINCE]), 1) if page[Slot.PHASE_SINCE] else 0.0,
        stopped=stopped,
        ended=page[Slot.STATE] == WorkerState.FINISHED and page[Slot.EXIT_CODE] == 0,
    )


def with_stacks(seen: RankView, stacks: Path) -> RankView:
    """And from the newest stacks it wrote."""
    frames = innermost(read(stacks))
    return replace(
        seen,
        place=place(frames),
        in_collective=any(COLLECTIVE.search(file) for file, _, _ in frames[:DEEP]) if frames else None,
    )


def phase_name(page: Page) -> str:
    with contextlib.suppress(ValueError):
        return Phase(int(page[Slot.PHASE])).name.lower()
    return ""


def read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_STACKS_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def innermost(text: str) -> list[tuple[str, int, str]]:
    """The frames of the thread that got the signal, which is the main thread, the innermost first."""
    _, _, block = text.rpartition("Current thread ")
    found: list[tuple[str, int, str]] = []
    for line in block.splitlines()[1:]:
        match = FRAME.match(line)
        if match is None:
            break
        found.append((match["file"], int(match["line"]), match["function"]))
    return found


def place(frames: list[tuple[str, int, str]]) -> str | None:
    """`train.py:20 in load`: the innermost frame that is the user's, else the innermost of all."""
    for file, line, function in frames:
        path = os.path.realpath(file)
        if not FOREIGN.search(file) and not path.startswith((OURS, *PACKAGES)):
            return f"{file}:{line} in {function}"[-256:]
    return "{}:{} in {}".format(*frames[0])[-256:] if frames else None


def spot(found: str | None) -> str | None:
    """`train.py:20` of a place."""
    return found.rpartition(" in ")[0] if found else None


def state_of(pid: int) -> str:
    """The letter of a process's state; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def answered(pid: int, number: int, stacks: Path) -> bool:
    """Whether a process has written the stacks that signal `number` asked for, to the last line, or is gone.

    While the handler runs, the signal is blocked in the main thread, which is the one that takes it.
    """
    begun = bool(read(stacks))
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    fields = dict(line.split(":", 1) for line in status.splitlines())
    gone = fields["State"].strip()[0] in {"Z", "X"}
    busy = any(int(fields[mask], 16) >> (number - 1) & 1 for mask in ("SigPnd", "ShdPnd", "SigBlk"))
    return gone or (begun and not busy)


def numbers(page: Page) -> dict[str, float]:
    """A copy of a page's slots that are neither 0 nor no number."""
    return {slot.name.lower(): value for slot in Slot if (value := page[slot]) and math.isfinite(value)}
