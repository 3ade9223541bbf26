"""The history of a run, as this launcher keeps it: rows while it runs, thinned by halving as it gets long.

Why apart: what `ddpjob report` shows must be there after the pod's end, and must not grow with the length of a run.
Must not: fail the launcher (a file that cannot be written is said once), or read a page.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ddpjob_api.codec import Invalid, load, render
from ddpjob_api.history import MAX_ROWS, VERSION, History, RankSums, Row, thinned
from ddpjob_api.report import Failure

FIRST_SECONDS = 1.0
"""Between two rows of a young run; doubled whenever the rows are halved."""
MIN_ROWS = 64
MAX_CELLS = 8000
"""Rows × ranks: what bounds the file of a node with many ranks to about a megabyte."""
MAX_INCIDENTS = 64


class Recorder:
    """Keeps one node's history, in memory and, where there is a place for it, in a file of JSON lines."""

    def __init__(
        self, file: Path | None, *, job: str, node: int, ranks: int, say: Callable[[str], None]
    ) -> None:
        """Go on with what an earlier launcher of this job and node left in the file."""
        self._file = file
        self._say = say
        self._interval = FIRST_SECONDS
        self._max_rows = max(MIN_ROWS, min(MAX_ROWS, MAX_CELLS // max(1, ranks)))
        self.history = History(job=job, node=node)
        self._rows: list[Row] = []
        self._incidents: list[Failure] = []
        self._base: dict[int, RankSums] = {}
        """What earlier launchers counted, by rank: ours begin at zero."""
        if file is not None:
            self._resume(file)

    def due(self, now: float) -> bool:
        """Whether it is time for a row."""
        return not self._rows or now - self._rows[-1].at >= self._interval

    def add(self, row: Row) -> None:
        """Keep a row."""
        row = replace(
            row, at=round(row.at, 2), ranks=tuple(self._since_the_beginning(one) for one in row.ranks)
        )
        self._rows.append(row)
        if len(self._rows) > self._max_rows:
            self._rows = thinned(self._rows)
            self._interval *= 2
            self._rewrite()
        else:
            self._append({"row": render(row)})

    def learn(self, failures: Sequence[Failure]) -> None:
        """Keep the incidents that are new."""
        for failure in failures:
            if failure not in self._incidents and len(self._incidents) < MAX_INCIDENTS:
                self._incidents.append(failure)
                self._append({"incident": render(failure)})

    def all(self) -> History:
        """Everything."""
        return replace(self.history, rows=tuple(self._rows), incidents=tuple(self._incidents))

    def public(self) -> bytes:
        """As JSON without the program's own words, as open as the metrics are."""
        bare = tuple(replace(failure, message="", location=None) for failure in self._incidents)
        return json.dumps(render(replace(self.all(), incidents=bare)), separators=(",", ":")).encode()

    def _since_the_beginning(self, one: RankSums) -> RankSums:
        before = self._base.get(one.rank)
        if before is None:
            return one
        return replace(
            one,
            steps=one.steps + before.steps,
            samples=one.samples + before.samples,
            seconds=round(one.seconds + before.seconds, 3),
            phases=tuple(round(a + b, 3) for a, b in zip(one.phases, before.phases, strict=False)),
        )

    def _resume(self, file: Path) -> None:
        """Read what is there; another job's is overwritten."""
        try:
            lines = file.read_text().splitlines()
        except (OSError, ValueError):
            lines = []
        if lines and lines[0] == self._header():
            for line in lines[1:]:
                self._take(line)
        if self._rows:
            self._base = {one.rank: one for row in self._rows for one in row.ranks}
            span = self._rows[-1].at - self._rows[0].at
            while self._interval * self._max_rows < span:
                self._interval *= 2
        self._rewrite()

    def _take(self, line: str) -> None:
        try:
            found = json.loads(line)
            if "row" in found:
                self._rows.append(load(Row, found["row"]))
            else:
                self._incidents.append(load(Failure, found["incident"]))
        except (ValueError, KeyError, TypeError, Invalid):
            return  # the line that a killed launcher was writing

    def _header(self) -> str:
        return json.dumps({"history": VERSION, "job": self.history.job, "node": self.history.node})

    def _rewrite(self) -> None:
        if self._file is None:
            return
        lines = [self._header()]
        lines += [line({"row": render(row)}) for row in self._rows]
        lines += [line({"incident": render(failure)}) for failure in self._incidents]
        beside = self._file.with_name(self._file.name + ".tmp")
        try:
            # The folder of the checkpoints, which is made when the launcher begins to serve: that is later.
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text("\n".join(lines) + "\n")
            beside.replace(self._file)
        except OSError as error:
            self._lose(error)

    def _append(self, entry: object) -> None:
        if self._file is None:
            return
        try:
            with self._file.open("a") as file:
                file.write(line(entry) + "\n")
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._say(f"the history cannot be kept in {self._file}: {error.strerror or error}; training goes on")
        self._file = None


def line(entry: object) -> str:
    return json.dumps(entry, separators=(",", ":"))
