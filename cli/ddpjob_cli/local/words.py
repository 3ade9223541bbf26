"""Reports as sentences: settings in effect, what changed since the last report, who failed of what.

Why apart: pure functions of typed values, the same words on a terminal, in a log and in the summary.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpjob_api.blame import culprit, last_words, what
from ddpjob_api.codec import Shape, shapes
from ddpjob_api.goodput import Times, Use
from ddpjob_api.report import Failure, InEffect, JobReport, Override, RunState

SETTINGS: tuple[Shape, ...] = tuple(
    shape
    for shape in shapes(InEffect)
    if shape.name not in {"bucketBytes", "worldSize", "allReduces", "overrides", "warnings"}
)
"""The fields of `InEffect` that are settings."""
WARNING = "warning: "


def settings(ddp: InEffect) -> str:
    """`backend gloo, timeoutSeconds 120, bucketCapMB 1, …`: what was read back, in the resource's words."""
    parts = []
    for shape in SETTINGS:
        value = getattr(ddp, shape.field.name)
        if value is not None:
            parts.append(f"{shape.name} {plain(value)}")
        elif shape.name == "bucketCapMB" and ddp.broadcast_buffers is not None:
            parts.append("bucketCapMB default (25, first bucket 1)")
    if ddp.bucket_bytes:
        parts.append(f"buckets {' + '.join(size(bucket) for bucket in ddp.bucket_bytes[:8])}")
    if len(ddp.bucket_bytes) > 8:
        parts.append(f"{len(ddp.bucket_bytes) - 8} more buckets")
    return ", ".join(parts)


def override(item: Override) -> str:
    """`bucketCapMB: the script asked for 50, 1 is in effect (train.py:31)`."""
    if item.applied:
        return (
            f"{item.setting}: the script asked for {item.asked}, {item.effective} is in effect ({item.where})"
        )
    return (
        f"{item.setting}: the script's {item.asked} is in effect, the resource says otherwise ({item.where})"
    )


def failures(before: JobReport | None, now: JobReport) -> list[str]:
    """Those that were not known at the last report."""
    known = before.failures if before else ()
    return [f"failed: {in_short(failure)}" for failure in now.failures if failure not in known]


def about(ddp: InEffect) -> list[str]:
    """Settings once they are all known (the process group is there before the DDP object, and that before a step)."""
    lines = [f"DDP settings in effect: {settings(ddp)}"] if is_whole(ddp) else []
    lines += [f"override: {override(item)}" for item in ddp.overrides]
    return [*lines, *(f"{WARNING}{text}" for text in ddp.warnings)]


def is_whole(ddp: InEffect) -> bool:
    return ddp.broadcast_buffers is not None and ddp.gradient_accumulation_steps is not None


def missing(report: JobReport) -> str:
    """`node 1 (rank 1)`, `nodes 1, 3 (ranks 2-3, 6-7)`."""
    nodes = report.missing_nodes
    per_node = max(1, report.ranks // max(1, report.nodes_expected))
    ranks = [
        str(node) if per_node == 1 else f"{node * per_node}-{node * per_node + per_node - 1}"
        for node in nodes
    ]
    many = len(nodes) > 1
    rank_word = "ranks" if many or per_node > 1 else "rank"
    return f"node{'s' if many else ''} {listed(nodes)} ({rank_word} {', '.join(ranks)})"


def listed(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in values)


def in_short(failure: Failure) -> str:
    """`rank 1 (node 1): ValueError: bad sample 17 (train.py:31), exit code 1`; its pod stands beside it, where it has one."""
    bare = replace(failure, pod=None, host_node=None)
    return f"{culprit(bare, last_words(bare))}{what(bare)}"


def plain(value: object) -> str:
    """A value as YAML has it, numbers short."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Up to four significant digits, as a person writes them: 0.02131, 1234, 120, NaN."""
    if not math.isfinite(value):
        return {"nan": "NaN", "inf": "∞", "-inf": "-∞"}[str(value)]
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def size(number_of_bytes: int) -> str:
    """`196 B`, `230 KiB`, `25 MiB`."""
    if number_of_bytes < 1024:
        return f"{number_of_bytes} B"
    kib = number_of_bytes / 1024
    return f"{kib:.0f} KiB" if kib < 1024 else f"{number(round(kib / 1024, 1))} MiB"


def duration(seconds: float) -> str:
    """`8 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def milliseconds(seconds: float) -> str:
    """`12 ms`, `3.4 s`: three significant digits, and whole ones from 100 on."""
    # What would be rounded to 1000 ms is a second.
    value, unit = (1000 * seconds, "ms") if 1000 * seconds < 999.5 else (seconds, "s")
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def uses(time: Times) -> str:
    """`useful 8 min 3 s, start 12 s, repeated 2 s`: what the time went to, without what took none."""
    return ", ".join(f"{use.value} {duration(seconds)}" for use in Use if (seconds := time.of(use)) >= 0.5)


def progress(report: JobReport) -> str:
    """`step 40/180 (22 %), loss 0.412, 1234 samples/s, ETA 12 s`."""
    now = report.progress
    parts = []
    if report.restoring:
        return report.restoring
    if not now.step:
        return f"waiting for {missing(report)}" if report.missing_nodes else ""
    if now.total_steps:
        parts.append(f"step {now.step}/{now.total_steps} ({100 * now.step // now.total_steps} %)")
    else:
        parts.append(f"step {now.step}")
    parts += rates(report)
    if report.restarts:
        parts.append(f"restarts {report.restarts}")
    if report.state is RunState.WAITING and report.missing_nodes:
        parts.append(f"waiting for {missing(report)}")
    return ", ".join(parts)


def rates(report: JobReport) -> Sequence[str]:
    now = report.progress
    parts = []
    if now.loss is not None:
        parts.append(f"loss {number(now.loss)}")
    if now.samples_per_second:
        parts.append(f"{number(round(now.samples_per_second, 1))} samples/s")
    if now.eta is not None and now.step != now.total_steps:
        parts.append(f"ETA {duration(now.eta)}")
    return parts
