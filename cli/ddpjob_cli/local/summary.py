"""How a run ended: the last lines for people, the one line for programs, and the exit code.

Why apart: pure; every ending has a row in a test. Must not: print.
"""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob_api.blame import last_words
from ddpjob_api.codec import render
from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.exits import Exit
from ddpjob_api.fields import Json
from ddpjob_api.goodput import Times, Use, at_least
from ddpjob_api.report import Failure, InEffect, JobReport, Outcome, Progress, TerminationMessage
from ddpjob_cli.errors import KILLED
from ddpjob_cli.local import words

NO_REPORT = 70
"""A launcher ended without a word: a fault of ours or of the machine."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One run, over."""

    name: str
    outcome: Outcome | None
    """None: it was killed before it came to one."""
    exit_code: int
    ranks: int
    progress: Progress
    result: Json
    ddp: InEffect | None
    efficiency: Efficiency | None
    restarts: int
    max_restarts: int
    disruptions: int
    failures: tuple[Failure, ...]
    message: str
    """What a launcher left as its sentence."""
    seconds: float
    times: Times | None = None
    """What the time went to, as far as a launcher said."""

    @property
    def last_failure(self) -> Failure | None:
        return self.failures[-1] if self.failures else None

    def lines(self) -> list[str]:
        """The end, for people; the last line says how it went."""
        if self.outcome is Outcome.DONE:
            survived = counted("survived", self.failures)
            return [*survived, *self.efficient(), *self.time_line(), f"done: {self.facts()}"]
        if self.outcome is Outcome.STOPPED:
            return [*self.time_line(), f"stopped: {self.facts()}"]
        if self.outcome is Outcome.REFUSED:
            failure = self.last_failure
            said = last_words(failure) if failure else self.message
            return [f"refused: {said.removeprefix('Refused: ')}"]
        if self.outcome is None:
            return [f"killed: {self.facts()}"]
        last = words.in_short(self.last_failure) if self.last_failure else self.message
        spent = f"restarts {self.restarts} of {self.max_restarts}"
        return [*counted("before", self.failures[:-1]), *self.time_line(), f"failed: {last}, {spent}"]

    def time_line(self) -> list[str]:
        """`goodput 71 %: useful 8.4 s, start 2.1 s, restart 1.2 s, repeated 0.1 s`; nothing before the first step."""
        if self.times is None or self.times.goodput is None:
            return []
        parts = [f"{use.value} {seconds:.1f} s" for use in Use if (seconds := self.times.of(use)) >= 0.05]
        return [f"goodput {self.times.goodput} %: {', '.join(parts)}"]

    def efficient(self) -> list[str]:
        """How the time was spent at the end, and who made the others wait."""
        found = self.efficiency
        if found is None:
            return []
        waits = (("other ranks", found.exposed_communication_percent), ("data", found.data_wait_percent))
        parts = [f"{percent} % for {name}" for name, percent in waits if percent is not None]
        efficiency = found.ddp_efficiency_percent
        whole = f"; DDP efficiency {efficiency} %" if efficiency is not None else ""
        lines = [f"ranks waited {', '.join(parts)}{whole}"] if parts else []
        return [*lines, found.sentence()] if found.sentence() else lines

    def facts(self) -> str:
        """`180 steps, loss 0.021, accuracy 0.981, 2 ranks, 14.2 s, restarts 0`."""
        parts = [f"{self.progress.step} steps"] if self.progress.step else []
        numbers = {k: v for k, v in self.result.items() if is_number(v) and k not in {"steps", "ranks"}}
        if self.progress.loss is not None:
            numbers = {"loss": self.progress.loss, **{k: v for k, v in numbers.items() if k != "loss"}}
        parts += [f"{name} {words.number(value)}" for name, value in list(numbers.items())[:6]]
        parts += [f"{self.ranks} rank{'s' if self.ranks != 1 else ''}", f"{self.seconds:.1f} s"]
        return ", ".join([*parts, f"restarts {self.restarts}"])

    def json(self) -> dict[str, Any]:
        """The line of `--json`; the program's own results stand beside ours and never replace them."""
        ddp = self.ddp
        ours = {
            "name": self.name,
            "outcome": self.outcome.value if self.outcome else "Killed",
            "exitCode": self.exit_code,
            "ranks": self.ranks,
            "steps": self.progress.step,
            "loss": self.progress.loss,
            "allReduces": ddp.all_reduces if ddp else None,
            "ddp": render(ddp) if ddp else None,
            "efficiency": render(self.efficiency) if self.efficiency else None,
            "restarts": self.restarts,
            "disruptions": self.disruptions,
            "failures": [render(failure) for failure in self.failures],
            "lastFailure": render(self.last_failure) if self.last_failure else None,
            "result": dict(self.result),
            "seconds": round(self.seconds, 3),
            "goodputPercent": self.times.goodput if self.times else None,
            "time": {f"{use.value}Seconds": self.times.of(use) for use in Use} if self.times else None,
            "message": self.lines()[-1],
        }
        return {**{name: value for name, value in self.result.items() if name not in ours}, **ours}


def counted(word: str, failures: Sequence[Failure]) -> list[str]:
    """`survived: rank 1 (node 1): died of SIGKILL at step 52`; the same again is counted, not repeated."""
    counts = Counter(words.in_short(failure) for failure in failures)
    return [f"{word}{f' ({number} times)' if number > 1 else ''}: {text}" for text, number in counts.items()]


def not_run(name: str | None, outcome: str, code: int, message: str) -> dict[str, Any]:
    """The line of `--json` for a job that was not started: the same keys."""
    nothing: dict[str, Any] = dict.fromkeys(
        ("loss", "allReduces", "ddp", "efficiency", "lastFailure", "goodputPercent", "time")
    )
    zero: dict[str, Any] = dict.fromkeys(("ranks", "steps", "restarts", "disruptions", "seconds"), 0)
    ends = {"name": name, "outcome": outcome, "exitCode": code, "message": message}
    return {**ends, **nothing, **zero, "failures": [], "result": {}}


def summarize(
    *,
    name: str,
    ranks: int,
    max_restarts: int,
    seconds: float,
    last: JobReport | None,
    endings: Sequence[TerminationMessage | None],
    returncodes: Sequence[int | None],
    killed: bool,
) -> Summary:
    """The run as its launchers left it, node 0's word first; `last` fills what their short messages leave out."""
    told = [ending for ending in endings if ending is not None]
    first = told[0] if told else None
    failures = list(last.failures) if last else []
    if first is not None and first.failure is not None and first.failure not in failures:
        failures.append(first.failure)
    outcome = first.outcome if first else None if killed else Outcome.FAILED
    silent = [node for node, ending in enumerate(endings) if ending is None]
    message = first.message if first else ""
    if outcome is Outcome.FAILED and not told and silent:
        message = (
            f"the launcher of node {silent[0]} ended with code {returncodes[silent[0]]} and left no report; "
            "its last lines are above"
        )
    result: Mapping[str, Any] = first.result if first and first.result else last.result if last else {}
    spent = [ending.spent.times for ending in told if ending.spent]
    spent += [last.spent.times] if last and last.spent else []
    restarts = max([ending.restarts for ending in told] + ([last.restarts] if last else []), default=0)
    return Summary(
        name=name,
        outcome=outcome,
        exit_code=exit_code(outcome, failures[-1] if failures else None, told),
        ranks=last.ranks if last and last.ranks else ranks,
        progress=latest(first.progress if first else None, last.progress if last else None),
        result=result,
        ddp=(first.ddp if first else None) or (last.ddp if last else None),
        efficiency=(first.efficiency if first else None) or (last.efficiency if last else None),
        restarts=restarts,
        max_restarts=max_restarts,
        disruptions=max(
            [ending.disruptions for ending in told] + ([last.disruptions] if last else []), default=0
        ),
        failures=tuple(failures),
        message=message,
        seconds=seconds,
        times=functools.reduce(at_least, spent) if spent else None,
    )


def latest(ending: Progress | None, last: Progress | None) -> Progress:
    """The further of the two; the ending's where they are equal, for it was read last."""
    if ending is None or (last is not None and last.step > ending.step):
        return last or Progress()
    return ending


def exit_code(outcome: Outcome | None, failure: Failure | None, endings: Sequence[TerminationMessage]) -> int:
    """docs/command-line.md, exit codes."""
    if outcome is None:
        return KILLED
    fixed = {Outcome.DONE: Exit.DONE, Outcome.STOPPED: Exit.STOPPED, Outcome.REFUSED: Exit.REFUSED}
    if outcome in fixed:
        return int(fixed[outcome])
    if failure is not None and failure.reason is Reason.NO_PROGRESS:
        return int(Exit.HUNG)
    if failure is not None and failure.exit_code:
        return failure.exit_code
    own = [ending.exit_code for ending in endings if ending.exit_code not in {0, int(Exit.PEER_LOST)}]
    if own:
        return own[0]
    return endings[0].exit_code or NO_REPORT if endings else NO_REPORT


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
