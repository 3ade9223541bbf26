"""Jobs and ranks as tables: what `ddpjob top` shows, and its JSON.

Why apart: how it looks is here, what it is elsewhere; the same values on a terminal, in a file and for programs.
Must not: ask anybody.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpjob_api.codec import render
from ddpjob_cli.explain.observation import Observation
from ddpjob_cli.explain.speed import slow_rank, slowest_words
from ddpjob_cli.local import words
from ddpjob_cli.ranks import Rank

STATES = {
    "Running": "green",
    "Complete": "bold green",
    "Failed": "bold red",
    "Restarting": "yellow",
    "Pending": "yellow",
    "Unknown": "yellow",
    "Suspended": "cyan",
    "Stopped": "cyan",
}
MORE_LINES = 9
"""Lines of a screen that are not jobs or ranks."""
GAP = 2
"""Signs between two columns."""
JOB_COLUMNS = {
    "NAME": 0, "WHERE": 4, "STATE": 1, ">READY": 5, ">PROGRESS": 2, ">ETA": 6, ">SAMPLES/S": 8, ">LOSS": 7,
    ">RESTARTS": 3, ">GOODPUT": 9,
}  # fmt: skip
"""With the order in which they go where there is no room: the highest first, the first column never."""
RANK_COLUMNS = {
    ">RANK": 0, "POD": 6, "NODE": 7, ">STEP": 1, "PHASE": 2, ">STEP TIME": 3, ">DATA": 4, ">EXPOSED COMM": 5,
    ">SAMPLES/S": 9, ">LOSS": 8,
}  # fmt: skip
UNKNOWN = "–"
Cell = str | Text


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All jobs."""

    jobs: Sequence[Observation]
    problem: str = ""
    """Why some may be missing."""

    def json(self) -> list[dict[str, Any]]:
        return [facts(job) for job in self.jobs]

    def render(self, height: int | None = None, width: int | None = None) -> RenderableType:
        columns = JOB_COLUMNS
        if all(job.goodput_percent is None for job in self.jobs):
            columns = {name: order for name, order in columns.items() if name != ">GOODPUT"}
        shown = self.jobs if height is None else self.jobs[: max(4, height - MORE_LINES)]
        rows = [job_cells(job)[: len(columns)] for job in shown]
        parts: list[RenderableType] = [*fitted(columns, rows, width)] if self.jobs else [Text("no jobs")]
        if len(shown) < len(self.jobs):
            parts.append(more(len(self.jobs) - len(shown), "jobs"))
        return Group(*parts, *([Text(self.problem, style="yellow")] if self.problem else []))


@dataclass(frozen=True, kw_only=True)
class RanksView:
    """One job's ranks."""

    job: Observation

    def json(self) -> dict[str, Any]:
        return {
            **facts(self.job),
            "ranks": [rank_facts(rank, self.job.now) for rank in self.job.ranks],
            "notSeen": list(self.job.blind),
        }

    def render(self, height: int | None = None, width: int | None = None) -> RenderableType:
        job = self.job
        slow = slow_rank(job)
        told = job.efficiency.slowest_rank if job.efficiency else None
        yellow = told if told is not None else slow[0].rank if slow is not None else None
        shown = job.ranks if height is None else job.ranks[: max(4, height - MORE_LINES)]
        head = Text.assemble((job.name, "bold"), f" ({job.place})  ", state(job), f"  {summary(job)}")
        parts: list[RenderableType] = [head]
        if job.time is not None and job.time.total:
            parts.append(Text(f"time: {words.uses(job.time)}", style="dim"))
        if job.ranks:
            styles = ["yellow" if rank.rank == yellow else "" for rank in shown]
            parts += fitted(RANK_COLUMNS, [rank_cells(rank) for rank in shown], width, styles)
        else:
            parts.append(Text(unseen(job), style="dim"))
        if len(shown) < len(job.ranks):
            parts.append(more(len(job.ranks) - len(shown), "ranks"))
        if told is not None and job.efficiency is not None:
            parts.append(Text(job.efficiency.sentence(), style="yellow"))
        elif slow is not None:
            parts.append(Text(slowest_words(slow), style="yellow"))
        parts += [Text(text, style="yellow") for text in job.blind]
        return Group(*parts)


def job_cells(job: Observation) -> list[Cell]:
    return [
        Text(job.name, style="bold"),
        job.place.removeprefix("namespace "),
        state(job),
        nodes(job),
        progress(job),
        words.duration(job.eta_seconds) if job.eta_seconds else UNKNOWN,
        number(job.samples_per_second),
        number(job.loss),
        f"{job.restarts}" + (f" +{job.disruptions}" if job.disruptions else ""),
        percent(job.goodput_percent),
    ]


def rank_cells(rank: Rank) -> list[Cell]:
    pace = rank.pace
    return [
        str(rank.rank),
        rank.pod,
        rank.host or "this machine",
        str(rank.step),
        rank.phase,
        milliseconds(pace.step_seconds if pace else None),
        share(pace.share("data_wait") if pace else None),
        share(pace.exposed if pace else None),
        number(pace.samples_per_second if pace else None),
        number(rank.loss),
    ]


def fitted(
    columns: Mapping[str, int], rows: Sequence[Sequence[Cell]], width: int | None, styles: Sequence[str] = ()
) -> Iterator[RenderableType]:
    """The table without the columns that a window of this width has no room for, and a line that names them."""
    names = list(columns)
    shown = list(range(len(names)))

    def needed() -> int:
        widest = [max(cell_len(str(text)) for text in (names[i].removeprefix(">"), *(row[i] for row in rows))) for i in shown]  # fmt: skip
        return sum(widest) + GAP * (len(widest) - 1)

    while width is not None and needed() > width and (last := max(shown, key=lambda i: columns[names[i]])):
        shown.remove(last)
    table = new_table(*(names[i] for i in shown))
    for index, row in enumerate(rows):
        table.add_row(*(row[i] for i in shown), style=styles[index] if styles else "")
    yield table
    if len(shown) < len(names):
        gone = ", ".join(name.removeprefix(">") for i, name in enumerate(names) if i not in shown)
        yield Text(f"no room for {gone}", style="dim")


def more(count: int, what: str) -> Text:
    return Text(f"… {count} more {what}: a taller window, or --json", style="dim")


def unseen(job: Observation) -> str:
    """Why there is no rank to show."""
    if job.finished or job.state == "Stopped":
        return f"it has ended: ddpjob report {job.argument} shows where its time went"
    return f"no rank can be seen: ddpjob explain {job.argument} says why"


def new_table(*names: str) -> Table:
    """Columns without lines between them; `>` puts one to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for name in names:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", no_wrap=True)
    return table


def facts(job: Observation) -> dict[str, Any]:
    """A job for programs."""
    return {
        "name": job.name,
        "place": job.place,
        "local": job.local,
        "state": job.state,
        "ready": job.ready,
        "nodes": job.nodes,
        "step": job.step,
        "totalSteps": job.total_steps,
        "etaSeconds": job.eta_seconds,
        "samplesPerSecond": job.samples_per_second,
        "loss": job.loss,
        "restarts": job.restarts,
        "disruptions": job.disruptions,
        "goodputPercent": job.goodput_percent,
        "time": render(job.time) if job.time else {},
        "efficiency": render(job.efficiency) if job.efficiency else {},
    }


def rank_facts(rank: Rank, now: float) -> dict[str, Any]:
    """A rank for programs; shares are parts of the wall time."""
    pace = rank.pace
    return {
        "rank": rank.rank,
        "node": rank.node,
        "pod": rank.pod,
        "hostNode": rank.host,
        "step": rank.step,
        "phase": rank.phase,
        "loss": rank.loss,
        "stepSeconds": pace.step_seconds if pace else None,
        "dataShare": pace.share("data_wait") if pace else None,
        "exposedCommunicationShare": pace.exposed if pace else None,
        "samplesPerSecond": pace.samples_per_second if pace else None,
        "lastStepAgeSeconds": max(0.0, round(now - rank.last_step_at, 3)) if rank.last_step_at else None,
    }


def state(job: Observation) -> Text:
    return Text(job.state or "unseen", style=STATES.get(job.state, ""))


def nodes(job: Observation) -> str:
    """`1/2` while ranks run or will, `2` afterwards."""
    ended = job.finished or job.state == "Stopped"
    return (str(job.nodes) if job.nodes else UNKNOWN) if ended else f"{job.ready}/{job.nodes}"


def progress(job: Observation) -> str:
    """`40/180 22 %`, `step 40`."""
    if not job.step:
        return UNKNOWN
    if not job.total_steps:
        return f"step {job.step}"
    return f"{job.step}/{job.total_steps} {100 * job.step // job.total_steps:3d} %"


def summary(job: Observation) -> str:
    parts = [f"nodes {nodes(job)}"] if job.nodes else []
    parts += ["step " + " ".join(progress(job).removeprefix("step ").split())] if job.step else []
    parts += [f"{number(job.samples_per_second)} samples/s"] if job.samples_per_second else []
    parts += [f"loss {number(job.loss)}"] if job.loss is not None else []
    parts += [f"ETA {words.duration(job.eta_seconds)}"] if job.eta_seconds else []
    parts += [f"restarts {job.restarts}"] if job.restarts else []
    parts += [f"goodput {percent(job.goodput_percent)}"] if job.goodput_percent is not None else []
    efficiency = job.ddp_efficiency_percent
    parts += [f"DDP efficiency {percent(efficiency)}"] if efficiency is not None else []
    return " · ".join(parts)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else words.number(round(value, 1) if value >= 100 else value)


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} %"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else words.milliseconds(value)
