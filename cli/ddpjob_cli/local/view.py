"""What a person sees while a job runs: a bar with the output above it, or plain lines where there is no terminal.

Why apart: the session knows what happened, this knows how it looks. Must not: fail; a terminal that is closed in the
middle of a run is noted (`Output.gone`), and the session ends the job in order.
"""

import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from ddpjob_api.report import InEffect, JobReport
from ddpjob_cli.local import words

PLAIN_SECONDS = 5.0
"""Between two lines of progress where there is no terminal."""
MARK = "[ddpjob] "
"""Begins the launchers' own lines; ours too, where theirs are shown with their node."""
SAID_BY_RANK = re.compile(r"^\[(rank|node) \d+\] \[ddpjob\] (override|warning)")
"""What every rank says of the settings; shown once, from the report. The node's log has each rank's."""

SAID_AT_THE_END = re.compile(
    r"^\[ddpjob\] (done: all workers|failed(:| after)|the configuration was refused: |stopped on request$)"
)
"""What every launcher says last; our own last line says it once. The nodes' logs have theirs."""


class Output:
    """A stream that may go away: writing to it never fails, and `gone` says that it did."""

    def __init__(self, stream: TextIO, on_gone: Callable[[], None]) -> None:
        self._stream = stream
        self._on_gone = on_gone
        self.gone = False

    def write(self, text: str) -> int:
        if not self.gone:
            try:
                return self._stream.write(text)
            except (OSError, ValueError):
                self._lose()
        return len(text)

    def flush(self) -> None:
        if not self.gone:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._lose()

    def isatty(self) -> bool:
        return not self.gone and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return self._stream.encoding

    def _lose(self) -> None:
        self.gone = True
        self._on_gone()


class View:
    """Shows lines and reports on one stream."""

    def __init__(
        self,
        stream: TextIO,
        *,
        title: str,
        on_gone: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.output = Output(stream, on_gone)
        # rich asks for a full IO object and uses these methods of it.
        self.console = Console(file=self.output, highlight=False)  # type: ignore[arg-type]
        # In a file a line stays a line; on a terminal words stay whole.
        self.console.soft_wrap = not self.console.is_terminal
        self.clock = clock
        self.warned: list[str] = []
        """Messages of warnings that were shown before the job ran; the ranks find the same."""
        self.settled: set[str] = set()
        """Lines about settings that were shown; the next generation has the same."""
        self.last: JobReport | None = None
        self.said_at = clock()
        self.said = ""
        self.bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            transient=True,
            expand=True,
            refresh_per_second=4,
        )
        self.task = self.bar.add_task(title, total=None, status="starting")

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away; what is said after this is the end."""
        if self.bar.live.is_started:
            self.bar.stop()

    def line(self, node: int, text: str) -> None:
        """A line of a launcher: its own, shown with its node, or a worker's with its rank before it."""
        if text.startswith(MARK):
            if SAID_AT_THE_END.match(text):
                return
            self._print(Text(f"[node {node}] {text.removeprefix(MARK)}", style="dim"))
            return
        if SAID_BY_RANK.match(text):
            return
        shown = Text.from_ansi(text)
        if text.startswith(("[rank ", "[node ")) and (end := text.find("] ")) > 0:
            shown.stylize("cyan", 0, end + 1)
        self._print(shown)

    def say(self, text: str, style: str = "") -> None:
        """A line of ours."""
        self._print(Text.assemble((MARK, "dim"), (text, style)))

    def end(self, text: str, *, good: bool) -> None:
        """A line of the summary, bare so that the last one stands alone."""
        self._print(Text(text, style="bold green" if good else "bold red"))

    def report(self, report: JobReport) -> None:
        """Where the job stands now."""
        for line in words.failures(self.last, report):
            self.say(line, "red")
        if report.ddp is not None:
            self.settings(report.ddp)
        self.last = report
        if self.console.is_terminal:
            self._move(report)
            return
        text = words.progress(report)
        now = self.clock()
        if text and text != self.said and now - self.said_at >= PLAIN_SECONDS:
            self.said, self.said_at = text, now
            self.say(text)

    def settings(self, ddp: InEffect) -> None:
        """The settings in effect, overrides and warnings, each once."""
        for line in words.about(ddp):
            if line in self.settled or any(message in line for message in self.warned):
                continue
            self.settled.add(line)
            self.say(line, "yellow" if line.startswith(words.WARNING) else "")

    def _move(self, report: JobReport) -> None:
        now = report.progress
        steps = f"{now.step}/{now.total_steps}" if now.total_steps else f"step {now.step}" if now.step else ""
        parts = [part for part in (steps, *words.rates(report)) if part]
        if report.missing_nodes:
            parts = [f"waiting for {words.missing(report)}"]
        elif report.restoring:
            parts = [report.restoring]
        if report.restarts:
            parts.append(f"restarts {report.restarts}")
        self.bar.update(
            self.task,
            total=now.total_steps,
            completed=now.step,
            status=" · ".join(parts) or report.state.value.lower(),
        )

    def _print(self, text: Text) -> None:
        self.console.print(text)
