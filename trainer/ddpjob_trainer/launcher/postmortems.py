"""What this node keeps of hangs: files for people, and lines of the log, which can be read when the pod has ended.

Why apart: stacks are taken before anybody knows who is to blame (`examination.py`), and the verdict comes from the
coordinator when all have ended. Must not: fail the launcher; what cannot be written is said.

Files: `post-mortem/generation-N/` beside the checkpoints, which outlive the pod more often, with `rank-R.txt` (stacks),
`rank-R.json` (where it stood, its page) and on node 0 `verdict.json`; the newest five generations.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ddpjob_api.codec import render
from ddpjob_api.conditions import Reason
from ddpjob_api.postmortem import LOG_MARK, VERDICT_FILE, PostMortem, RankKept, pack
from ddpjob_api.report import Failure
from ddpjob_trainer.launcher.memory import wall

KEPT = 5
"""Generations whose stacks are kept."""
NO_STACKS = "no stacks: the process had ended, or did not answer within the time for it\n"


class PostMortems:
    """Of one launcher."""

    def __init__(self, folder: Path, *, in_log: bool, say: Callable[[str], None]) -> None:
        """`in_log`: whoever wants to read them may have nothing but the log."""
        self._folder = folder
        self._in_log = in_log
        self._say = say
        self._lines: list[str] = []
        """Those of the newest generation."""
        self._newest = 0
        self._judged: set[int] = set()

    def examined(self, generation: int, ranks: Sequence[RankKept]) -> None:
        """Keep where the ranks of this node stood."""
        target = self._folder / f"generation-{generation}"
        try:
            target.mkdir(parents=True, exist_ok=True)
            if generation not in self._judged and any(rank.node == 0 for rank in ranks):
                # A run that is started again counts from 1, and is not judged by what the one before left.
                (target / VERDICT_FILE).unlink(missing_ok=True)
            for rank in ranks:
                name = f"rank-{rank.view.rank}"
                (target / f"{name}.txt").write_text(rank.stacks or NO_STACKS)
                write(target / f"{name}.json", replace(rank, stacks=""))
            self._say(f"stacks and pages of the ranks here are kept in {target}")
        except OSError as error:
            self._say(f"stacks and pages cannot be kept in {target}: {error}")
        prune(self._folder)
        self._tell(PostMortem(generation=generation, at=wall(), ranks=tuple(ranks)))

    def judged(self, failures: Iterable[Failure]) -> None:
        """Keep the verdicts about hangs that are new; of node 0 only, which hears them."""
        for failure in failures:
            if failure.reason is not Reason.NO_PROGRESS or failure.generation in self._judged:
                continue
            self._judged.add(failure.generation)
            target = self._folder / f"generation-{failure.generation}"
            try:
                target.mkdir(parents=True, exist_ok=True)
                write(target / VERDICT_FILE, failure)
            except OSError as error:
                self._say(f"the verdict cannot be kept in {target}: {error}")
            at = failure.at or wall()
            self._tell(PostMortem(generation=failure.generation, at=at, verdict=failure))

    def repeat(self) -> None:
        """Say the newest again: these are the last words, and a log is turned over."""
        for line in self._lines:
            self._say(line)

    def _tell(self, found: PostMortem) -> None:
        if not self._in_log or found.generation < self._newest:
            return
        if found.generation > self._newest:
            self._newest, self._lines = found.generation, []
        line = LOG_MARK + pack(found)
        self._lines.append(line)
        self._say(line)


def write(path: Path, value: RankKept | Failure) -> None:
    path.write_text(json.dumps(render(value), indent=1) + "\n")


def prune(folder: Path) -> None:
    """Keep the newest generations; by time, for a run that is started again counts from 1."""
    found = []
    for path in folder.glob("generation-*"):
        try:
            found.append((path.stat().st_mtime_ns, path))
        except OSError:
            continue  # another node of a shared folder was first
    for _, path in sorted(found)[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
