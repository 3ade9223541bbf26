"""Jobs and ranks as tables: what `ddpjob top` shows, and its JSON.

Why apart: how it looks is here, what it is elsewhere; the same values on a terminal, in a file and for programs.
Must not: ask anybody.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpjob_cli import ranks
from ddpjob_cli.explain.observation import Observation
from ddpjob_cli.local import words
from ddpjob_cli.ranks import Rank

STATES = {
    "Running": "green",
    "Complete": "bold green",
    "Failed": "bold red",
    "Restarting": "yellow",
    "Pending": "yellow",
    "Suspended": "cyan",
    "Stopped": "cyan",
}
MORE_LINES = 9
"""Lines of a screen that are not ranks."""
UNKNOWN = "–"


@dataclass(frozen=True, kw_only=True)
class Overview:
    """All jobs."""

    jobs: Sequence[Observation]
    problem: str = ""
    """Why some may be missing."""

    def json(self) -> list[dict[str, Any]]:
        return [facts(job) for job in self.jobs]

    def render(self, height: int | None = None) -> RenderableType:
        table = new_table(
            "NAME", "WHERE", "STATE", ">READY", ">PROGRESS", ">ETA", ">SAMPLES/S", ">LOSS", ">RESTARTS"
        )
        efficient = any(job.goodput_percent is not None for job in self.jobs)
        if efficient:
            table.add_column("GOODPUT", justify="right")
        for job in self.jobs:
            cells: list[str | Text] = [
                Text(job.name, style="bold"),
                job.place.removeprefix("namespace "),
                state(job),
                f"{job.ready}/{job.nodes}",
                progress(job),
                words.duration(job.eta_seconds) if job.eta_seconds else UNKNOWN,
                number(job.samples_per_second),
                number(job.loss),
                f"{job.restarts}" + (f" +{job.disruptions}" if job.disruptions else ""),
            ]
            table.add_row(*cells, *([percent(job.goodput_percent)] if efficient else []))
        parts: list[RenderableType] = [table if self.jobs else Text("no jobs")]
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

    def render(self, height: int | None = None) -> RenderableType:
        job = self.job
        slow = ranks.straggler(job.ranks)
        shown = job.ranks if height is None else job.ranks[: max(4, height - MORE_LINES)]
        table = new_table(
            ">RANK", "POD", "NODE", ">STEP", "PHASE", ">STEP TIME", ">DATA", ">EXPOSED COMM", ">SAMPLES/S", ">LOSS"
        )  # fmt: skip
        for rank in shown:
            pace = rank.pace
            table.add_row(
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
                style="yellow" if slow is not None and rank is slow[0] else "",
            )
        head = Text.assemble((job.name, "bold"), f" ({job.place})  ", state(job), f"  {summary(job)}")
        parts: list[RenderableType] = [head, table if job.ranks else Text("no rank can be seen", style="dim")]
        if len(shown) < len(job.ranks):
            parts.append(
                Text(f"… {len(job.ranks) - len(shown)} more ranks: a taller window, or --json", style="dim")
            )
        if slow is not None:
            rank, phase, seconds, usual = slow
            sentence = f"rank {rank.rank} is the slowest: {phase} {milliseconds(seconds)} a step, the others {milliseconds(usual)}"
            parts.append(Text(sentence, style="yellow"))
        parts += [Text(text, style="yellow") for text in job.blind]
        return Group(*parts)


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
        "efficiency": dict(job.efficiency),
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


def progress(job: Observation) -> str:
    """`40/180 22 %`, `step 40`."""
    if not job.step:
        return UNKNOWN
    if not job.total_steps:
        return f"step {job.step}"
    return f"{job.step}/{job.total_steps} {100 * job.step // job.total_steps:3d} %"


def summary(job: Observation) -> str:
    parts = [f"nodes {job.ready}/{job.nodes}"] if job.nodes else []
    parts += ["step " + " ".join(progress(job).removeprefix("step ").split())] if job.step else []
    parts += [f"{number(job.samples_per_second)} samples/s"] if job.samples_per_second else []
    parts += [f"loss {number(job.loss)}"] if job.loss is not None else []
    parts += [f"ETA {words.duration(job.eta_seconds)}"] if job.eta_seconds else []
    parts += [f"restarts {job.restarts}"] if job.restarts else []
    parts += [f"goodput {percent(job.goodput_percent)}"] if job.goodput_percent is not None else []
    return " · ".join(parts)


def number(value: float | None) -> str:
    return UNKNOWN if value is None else words.number(round(value, 1) if value >= 100 else value)


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} %"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{100 * value:.0f} %"


def milliseconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:.3g} s" if value >= 1 else f"{1000 * value:.3g} ms"
