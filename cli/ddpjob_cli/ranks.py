"""What each rank is doing, from the metrics of the launchers: two scrapes make rates.

Why apart: `top` shows it, `explain` judges by it, `tune` measures with it; on a cluster and on this machine the same text
comes in. Must not: fetch anything.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddpjob_api import metrics
from ddpjob_api.metrics import Metric, MetricKind
from ddpjob_api.straggler import Work, slowest

SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)",?')
STRAGGLER_STEPS = 20
"""Ranks are compared from so many steps on."""


@dataclass(frozen=True, kw_only=True)
class Scrape:
    """One answer of a launcher's `/metrics`."""

    at: float
    """Seconds of the reader's monotonic clock."""
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]

    def of(self, metric: Metric, **labels: str) -> float | None:
        name = metric.name + ("_total" if metric.kind is MetricKind.COUNTER else "")
        return self.samples.get((name, tuple(sorted(labels.items()))))

    def ranks(self) -> list[int]:
        """Ranks that have a page now."""
        step = metrics.STEP.name
        return sorted(int(dict(labels)["rank"]) for name, labels in self.samples if name == step)

    def by_label(self, metric: Metric, label: str, rank: int) -> dict[str, float]:
        """The values of a metric that has one more label, for one rank."""
        name = metric.name + ("_total" if metric.kind is MetricKind.COUNTER else "")
        found = {}
        for (other, pairs), value in self.samples.items():
            given = dict(pairs)
            if other == name and given.get("rank") == str(rank) and label in given:
                found[given[label]] = value
        return found


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How one rank spent its steps, between two scrapes or since its pod began."""

    steps: float
    seconds: float
    """Wall time of those steps."""
    phases: Mapping[str, float]
    """Seconds by phase (`metrics.PHASES`)."""
    samples: float

    def share(self, phase: str) -> float | None:
        """Part of the wall time, 0 … 1."""
        return self.phases.get(phase, 0.0) / self.seconds if self.seconds > 0 else None

    @property
    def step_seconds(self) -> float | None:
        return self.seconds / self.steps if self.steps > 0 else None

    @property
    def exposed(self) -> float | None:
        """Part of the wall time that waits for other ranks, 0 … 1; None where nothing is known of it."""
        return self.share("comm_exposed") if self.phases.get("comm_exposed") else None

    @property
    def samples_per_second(self) -> float | None:
        return self.samples / self.seconds if self.seconds > 0 and self.samples > 0 else None


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One rank as `top` shows it."""

    rank: int
    node: int
    """Index of its pod."""
    pod: str
    host: str
    """The Kubernetes node."""
    step: int
    phase: str
    loss: float | None = None
    last_step_at: float | None = None
    """Unix time of the newest step."""
    pace: Pace | None = None
    """Of the time between two looks."""
    usual: Pace | None = None
    """Since its pod began: what verdicts are made from, because a second says little on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the ranks of one launcher are."""

    node: int
    pod: str
    host: str = ""
    port: int = 0
    """Of its launcher's metrics."""
    scrapes: Sequence[Scrape] = field(default_factory=tuple)
    """Oldest first."""
    problem: str = ""
    """Why it could not be read."""


def parse(text: str, at: float) -> Scrape:
    """A scrape from the text; lines that are none of ours are passed over."""
    samples = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match is None or not match[1].startswith(metrics.PREFIX):
            continue
        labels = tuple(sorted((name, value) for name, value in LABEL.findall(match[2] or "")))
        try:
            samples[match[1], labels] = float(match[3])
        except ValueError:
            continue
    return Scrape(at=at, samples=samples)


def ranks(places: Sequence[Place]) -> list[Rank]:
    """All ranks that could be read, in order."""
    return sorted((rank for place in places for rank in of_place(place)), key=lambda rank: rank.rank)


def of_place(place: Place) -> Iterator[Rank]:
    if not place.scrapes:
        return
    first, last = place.scrapes[0], place.scrapes[-1]
    for rank in last.ranks():
        label = str(rank)
        stepped_at = last.of(metrics.LAST_STEP_TIMESTAMP, rank=label)
        states = last.by_label(metrics.STATE, "state", rank)
        phase = next((name for name, value in states.items() if value), "ended")
        yield Rank(
            rank=rank,
            node=place.node,
            pod=place.pod,
            host=place.host,
            step=int(last.of(metrics.STEP, rank=label) or 0),
            phase=phase,
            loss=last.of(metrics.LOSS, rank=label) if stepped_at is not None else None,
            last_step_at=stepped_at,
            pace=pace(first, last, rank),
            usual=pace(None, last, rank),
        )


def pace(first: Scrape | None, last: Scrape, rank: int) -> Pace | None:
    """Of the time between; of all time where no step was made between (or the counters began anew)."""
    since = totals(first, rank) if first is not None else {}
    whole = totals(last, rank)
    if whole["steps"] <= 0:
        return None
    between = {name: value - since.get(name, 0.0) for name, value in whole.items()}
    if between["steps"] <= 0 or any(value < 0 for value in between.values()):
        between = whole
    phases = {
        name.removeprefix("phase "): value for name, value in between.items() if name.startswith("phase ")
    }
    return Pace(
        steps=between["steps"],
        seconds=between["seconds"],
        phases=phases,
        samples=between["samples"],
    )


def totals(scrape: Scrape, rank: int) -> dict[str, float]:
    named = {
        "steps": metrics.OPTIMIZER_STEPS,
        "seconds": metrics.STEP_SECONDS,
        "samples": metrics.SAMPLES,
    }
    found: dict[str, float] = defaultdict(float)
    for name, metric in named.items():
        found[name] = scrape.of(metric, rank=str(rank)) or 0.0
    for phase, value in scrape.by_label(metrics.PHASE_SECONDS, "phase", rank).items():
        found[f"phase {phase}"] = value
    return found


def median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def straggler(found: Sequence[Rank]) -> tuple[Rank, str, float, float] | None:
    """The rank that the others wait for, in which phase, its seconds a step there and the median of the others.

    None where no rank stands out, since the pods began.
    """
    compared = {
        rank.rank: rank.usual
        for rank in found
        if rank.usual is not None and rank.usual.steps >= STRAGGLER_STEPS
    }
    slow = slowest({number: per_step(usual) for number, usual in compared.items()})
    if slow is None:
        return None
    each = {number: usual.phases.get(slow.cause, 0.0) / usual.steps for number, usual in compared.items()}
    own = each.pop(slow.rank)
    return (
        next(rank for rank in found if rank.rank == slow.rank),
        slow.cause,
        own,
        median(tuple(each.values())),
    )


def per_step(usual: Pace) -> Work:
    return Work(
        own={phase: usual.phases.get(phase, 0.0) / usual.steps for phase in metrics.LOCAL_PHASES},
        exposed=usual.phases.get("comm_exposed", 0.0) / usual.steps,
    )
