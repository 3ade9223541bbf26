"""Prometheus text from the pages of this node's ranks (names and help: `ddpjob_api.metrics`).

Why apart: a scrape reads pages and touches no worker. Counters go on across generations: what earlier workers of this
pod counted is kept and added. The text format is written here, so that the launcher needs no client library.
Must not: keep a page open, or invent a metric that `metrics.METRICS` does not have.
"""

import itertools
import math
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ddpjob_api import __version__, metrics
from ddpjob_api.messages import SUMS
from ddpjob_api.metrics import Metric, MetricKind
from ddpjob_api.page import STEP_BOUNDS, Fact, Phase, Slot, WorkerState
from ddpjob_api.report import JobReport
from ddpjob_trainer.launcher.progress import in_effect
from ddpjob_trainer.launcher.reserve import Held
from ddpjob_trainer.page import Page

PAGE_SIZE = resource.getpagesize()
"""Of the machine's memory, in which /proc counts."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS: dict[Metric, Callable[[Page], float]] = {
    metrics.OPTIMIZER_STEPS: lambda page: page[Slot.GENERATION_STEPS],
    metrics.MICRO_BATCHES: lambda page: page[Slot.MICRO_BATCHES],
    metrics.SAMPLES: lambda page: page[Slot.SAMPLES],
    metrics.TOKENS: lambda page: page[Slot.TOKENS],
    metrics.STEP_SECONDS: lambda page: page[Slot.STEP_SECONDS],
    metrics.COMM_SECONDS: lambda page: page[Slot.REDUCER_COMM_NS] / 1e9,
    metrics.COMM_OVERLAPPED_SECONDS: lambda page: page[Slot.REDUCER_OVERLAP_NS] / 1e9,
    metrics.BACKWARD_COMPUTE_SECONDS: lambda page: page[Slot.REDUCER_BACKWARD_NS] / 1e9,
    metrics.ALL_REDUCES: lambda page: page[Slot.ALL_REDUCES],
    metrics.ALL_REDUCE_BYTES: lambda page: page[Slot.ALL_REDUCE_BYTES],
    metrics.NON_FINITE_STEPS: lambda page: page[Slot.NON_FINITE_STEPS],
    metrics.CHECKPOINTS: lambda page: page[Slot.CHECKPOINTS],
    metrics.CHECKPOINT_FAILURES: lambda page: page[Slot.CHECKPOINT_FAILURES],
    metrics.REPLICA_MISMATCHES: lambda page: page[Slot.REPLICA_MISMATCHES],
    metrics.CUDA_ALLOC_RETRIES: lambda page: page[Slot.DEVICE_ALLOC_RETRIES],
    metrics.CUDA_OOMS: lambda page: page[Slot.DEVICE_OOMS],
    metrics.WARM_STARTS: lambda page: page[Slot.WARM],
}
PHASES = {
    "data_wait": Slot.DATA_SECONDS,
    "h2d": Slot.H2D_SECONDS,
    "forward": Slot.FORWARD_SECONDS,
    "backward_compute": Slot.BACKWARD_SECONDS,
    "comm_exposed": Slot.COMM_EXPOSED_SECONDS,
    "optimizer": Slot.OPTIMIZER_SECONDS,
    "checkpoint": Slot.CHECKPOINT_SECONDS,
    "evaluation": Slot.EVALUATION_SECONDS,
    "other": Slot.OTHER_SECONDS,
}
NAMES = {int(phase): phase.name.lower() for phase in Phase}
STATES = (metrics.STARTING, *NAMES.values())
"""What `state` can be."""
SUM_SLOTS = tuple(
    {"steps": Slot.GENERATION_STEPS, "seconds": Slot.STEP_SECONDS, **PHASES}[name] for name in SUMS
)
GAUGES: dict[Metric, Callable[[Page], float | None]] = {
    metrics.STEP: lambda page: page[Slot.STEP],
    metrics.RESUMED_FROM_STEP: lambda page: known(page[Slot.RESUMED_STEP]),
    metrics.LAST_STEP_TIMESTAMP: lambda page: unix(page[Slot.LAST_STEP_AT]),
    metrics.BUCKETS: lambda page: known(page[Slot.BUCKETS]),
    metrics.LOSS: lambda page: page[Slot.LOSS] if page[Slot.BACKWARDS] or page[Slot.STEP] else None,
    metrics.GRAD_NORM: lambda page: known(page[Slot.GRAD_NORM]),
    metrics.LEARNING_RATE: lambda page: known(page[Slot.LEARNING_RATE]),
    metrics.CHECKPOINT_STEP: lambda page: known(page[Slot.CHECKPOINT_STEP]),
    metrics.CHECKPOINT_TIMESTAMP: lambda page: known(page[Slot.CHECKPOINT_AT]),
    metrics.CHECKPOINT_BYTES: lambda page: known(page[Slot.CHECKPOINT_BYTES]),
    metrics.CHECKPOINT_DURATION: lambda page: known(page[Slot.CHECKPOINT_DURATION_SECONDS]),
    metrics.CHECKPOINT_FAILING: lambda page: float(bool(page.facts().get(Fact.CHECKPOINT))),
    metrics.COLLECTIVE_SEQUENCE: lambda page: known(page[Slot.COLLECTIVE_SEQUENCE]),
    metrics.RESIDENT_BYTES: lambda page: resident_bytes(int(page[Slot.PID])),
    metrics.DEVICE_ALLOCATED_BYTES: lambda page: known(page[Slot.DEVICE_ALLOCATED_BYTES]),
    metrics.DEVICE_RESERVED_BYTES: lambda page: known(page[Slot.DEVICE_RESERVED_BYTES]),
    metrics.DEVICE_PEAK_BYTES: lambda page: known(page[Slot.DEVICE_PEAK_BYTES]),
    metrics.OVERRIDES: lambda page: page[Slot.OVERRIDES],
    metrics.WARNINGS: lambda page: page[Slot.WARNINGS],
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the launcher adds from its own knowledge."""

    restarts: int
    disruptions: int
    generation: int
    fetched_bytes: int
    fetch_seconds: float
    backend: str
    world_size: int
    report: JobReport | None
    """The coordinator's, where it is here."""


class Totals:
    """What this pod's earlier workers counted, by rank."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, str], float] = defaultdict(float)
        self._durations: dict[int, list[float]] = defaultdict(lambda: [0.0] * (len(STEP_BOUNDS) + 1))

    def add(self, rank: int, page: Page) -> None:
        """Keep the counts of a worker that has ended."""
        for metric, value in COUNTERS.items():
            self._before[rank, metric.name] += value(page)
        for phase, slot in PHASES.items():
            self._before[rank, phase] += page[slot]
        self._durations[rank] = self.durations(rank, page)

    def of(self, metric: Metric, rank: int, page: Page | None) -> float:
        """What a rank has counted, its earlier workers' part included."""
        now = COUNTERS[metric](page) if page is not None else 0.0
        return self._before[rank, metric.name] + now

    def phase(self, phase: str, rank: int, page: Page | None) -> float:
        """Seconds that a rank has spent in a phase, likewise."""
        return self._before[rank, phase] + (page[PHASES[phase]] if page is not None else 0.0)

    def durations(self, rank: int, page: Page | None) -> list[float]:
        """Steps by duration, between the bounds."""
        before = self._durations[rank]
        if page is None:
            return list(before)
        first = Slot.STEP_DURATIONS
        now = page.slots[first : first + len(before)]
        return [old + new for old, new in zip(before, now, strict=True)]

    def render(self, pages: Mapping[int, Page], job: Job, standbys: Mapping[int, Held]) -> str:
        """Everything, for one scrape; ranks without a page show what they had counted."""
        ranks = sorted({*pages, *(rank for rank, _ in self._before)})
        families = [
            family(metrics.INFO, [(info_labels(rank, page, job), 1.0) for rank, page in pages.items()]),
            family(metrics.STATE, states(pages)),
            *(self._counter(metric, ranks, pages) for metric in COUNTERS),
            family(
                metrics.PHASE_SECONDS,
                [
                    (
                        {"rank": str(rank), "phase": phase},
                        self.phase(phase, rank, pages.get(rank)),
                    )
                    for rank in ranks
                    for phase in PHASES
                ],
            ),
            self._histogram(ranks, pages),
            *(
                family(metric, [({"rank": str(rank)}, value(page)) for rank, page in pages.items()])
                for metric, value in GAUGES.items()
            ),
            family(
                metrics.STANDBY_READY,
                [({"rank": str(rank)}, float(held.ready)) for rank, held in standbys.items()],
            ),
            family(
                metrics.STANDBY_BYTES,
                [({"rank": str(rank)}, float(held.size)) for rank, held in standbys.items()],
            ),
            family(metrics.STRAGGLER, straggler(job.report)),
            family(metrics.HUNG, [({}, float(job.report.hung))] if job.report is not None else []),
            family(metrics.RESTARTS, [({}, float(job.restarts))]),
            family(metrics.DISRUPTIONS, [({}, float(job.disruptions))]),
            family(metrics.GENERATION, [({}, float(job.generation))]),
            family(metrics.CHECKPOINT_FETCHED_BYTES, [({}, float(job.fetched_bytes))]),
            family(metrics.CHECKPOINT_FETCH_SECONDS, [({}, job.fetch_seconds)]),
        ]
        return "".join(families)

    def _counter(self, metric: Metric, ranks: list[int], pages: Mapping[int, Page]) -> str:
        values = [({"rank": str(rank)}, self.of(metric, rank, pages.get(rank))) for rank in ranks]
        return family(metric, values)

    def _histogram(self, ranks: list[int], pages: Mapping[int, Page]) -> str:
        """Steps by duration; Prometheus counts upwards."""
        name = metrics.STEP_DURATION.name
        lines = [f"# HELP {name} {metrics.STEP_DURATION.help}\n# TYPE {name} histogram\n"]
        for rank in ranks:
            page = pages.get(rank)
            so_far = list(itertools.accumulate(self.durations(rank, page)))
            for bound, count in zip((*STEP_BOUNDS, math.inf), so_far, strict=True):
                labels = {"rank": str(rank), "le": number(bound)}
                lines.append(f"{name}_bucket{labelled(labels)} {number(count)}\n")
            own = labelled({"rank": str(rank)})
            lines.append(f"{name}_sum{own} {number(self.of(metrics.STEP_SECONDS, rank, page))}\n")
            lines.append(f"{name}_count{own} {number(so_far[-1])}\n")
        return "".join(lines) if ranks else ""


def sums(page: Page) -> tuple[float, ...]:
    """`SUMS` of one rank."""
    values = (page[slot] for slot in SUM_SLOTS)
    return tuple(round(value, 4) for value in values)


def sums_of(pages: Sequence[Page]) -> tuple[float, ...]:
    """`SUMS` of ranks, one after the other; nothing where none of them is measured."""
    if all(page[Slot.UNMEASURED] for page in pages):
        return ()
    return tuple(value for page in pages for value in sums(page))


def family(metric: Metric, values: Iterable[tuple[Mapping[str, str], float | None]]) -> str:
    """One metric with its help and samples; nothing where there is no sample."""
    name = metric.name + ("_total" if metric.kind is MetricKind.COUNTER else "")
    lines = [f"{name}{labelled(labels)} {number(value)}\n" for labels, value in values if value is not None]
    if not lines:
        return ""
    kind = "counter" if metric.kind is MetricKind.COUNTER else "gauge"
    return f"# HELP {name} {metric.help}\n# TYPE {name} {kind}\n" + "".join(lines)


def labelled(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    body = ",".join(f'{name}="{escape(value)}"' for name, value in labels.items())
    return "{" + body + "}"


def escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value.is_integer() else repr(value)


def info_labels(rank: int, page: Page, job: Job) -> dict[str, str]:
    facts = page.facts()
    ddp = in_effect(facts)
    accumulation = ddp.gradient_accumulation_steps if ddp is not None else None
    return {
        "rank": str(rank),
        "version": __version__,
        "backend": job.backend,
        "world_size": str(job.world_size),
        "torch": str(facts.get(Fact.TORCH) or ""),
        "accumulation": str(accumulation or ""),
    }


def states(pages: Mapping[int, Page]) -> list[tuple[dict[str, str], float]]:
    """One series per state, so that a graph can stack them."""
    return [
        ({"rank": str(rank), "state": state}, float(state == now))
        for rank, now in ((rank, state_of(page)) for rank, page in pages.items())
        for state in STATES
    ]


def state_of(page: Page) -> str | None:
    """What a rank does; None where its program has ended.

    What is between two phases is the start as long as there was no forward pass and no step: a program may never make a
    process group, and may build its model before or after it.
    """
    if page[Slot.STATE] not in {WorkerState.NONE, WorkerState.STARTED, WorkerState.RUNNING}:
        return None
    phase = int(page[Slot.PHASE])
    begun = page[Slot.MICRO_BATCHES] or page[Slot.GENERATION_STEPS]
    return metrics.STARTING if phase == Phase.BETWEEN and not begun else NAMES.get(phase)


def straggler(report: JobReport | None) -> list[tuple[dict[str, str], float]]:
    """The rank that makes the others wait."""
    found = report.efficiency if report is not None else None
    if found is None or found.slowest_rank is None or found.slowest_rank_cause is None:
        return []
    return [({"rank": str(found.slowest_rank), "cause": found.slowest_rank_cause}, 1.0)]


def resident_bytes(pid: int) -> float | None:
    """Memory of a process; None where there is none."""
    if not pid:
        return None
    try:
        return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_SIZE
    except (OSError, IndexError, ValueError):
        return None


def known(value: float) -> float | None:
    """A slot that is 0 or NaN until it is known."""
    return None if math.isnan(value) else value or None


def unix(monotonic: float) -> float | None:
    """A monotonic time of this machine as Unix time."""
    return time.time() - (time.monotonic() - monotonic) if monotonic else None
