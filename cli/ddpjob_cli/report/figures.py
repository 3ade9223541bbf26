"""The figures of a report, as SVG that needs nothing beside it.

Why apart: matplotlib is an extra and slow to import; it is met here only. Must not: compute what is shown.
"""

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ddpjob_api.goodput import Times, Use
from ddpjob_api.report import Failure
from ddpjob_cli.errors import Unusable
from ddpjob_cli.report.series import SEGMENTS, Life, Points, RankTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREY = "#2458a6", "#b3261e", "#6b7280"
COLOURS = ("#e3a008", "#f97316", "#5b8def", "#2458a6", "#b3261e", "#7e3af2", "#0e9f6e", "#84cc16", "#cbd5e1")
"""By `SEGMENTS`."""
USES = {
    Use.USEFUL: "#0e9f6e", Use.QUEUEING: "#6b7280", Use.START: "#5b8def", Use.RESTART: "#e3a008",
    Use.HANG: "#b3261e", Use.REPEATED: "#f97316", Use.OTHER: "#cbd5e1",
}  # fmt: skip
GENERATIONS = ("#93b5f0", "#5b8def", "#2458a6")
MAX_RANKS = 48
WIDTH, LEFT, RIGHT, BOTTOM, TOP, LEGEND = 9.0, 0.75, 0.1, 0.5, 0.22, 0.55
"""Of a figure, its margins, and what a legend needs above the axes, in inches."""
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ddpjob",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e7eb",
    "axes.edgecolor": "#9ca3af",
}


def lines(
    parts: Sequence[Points],
    *,
    label: str,
    span: tuple[float, float],
    incidents: Sequence[Failure],
    log: bool = False,
) -> str:
    """One value over time, in parts that are not joined, with the incidents as lines across it."""
    figure, axes = new(3.0)
    begin, end = span
    scale, unit = time_scale(end - begin)
    axes.set_xlim(0.0, (end - begin) / scale)
    for part in parts:
        axes.plot(
            [(at - begin) / scale for at, _ in part],
            [value for _, value in part],
            color=BLUE,
            linewidth=1.6,
            marker="." if len(part) == 1 else "",
        )
    points = [point for part in parts for point in part]
    if log and all(value > 0 for _, value in points) and spread(points) > 50:
        axes.set_yscale("log")
    elif all(value >= 0 for _, value in points):
        axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit} since the start")
    axes.set_ylabel(label)
    mark(axes, incidents, begin, scale)
    return svg(figure)


def bars(times: Sequence[RankTime]) -> str:
    """Where the time of every rank went."""
    shown = times[:MAX_RANKS]
    figure, axes = new(LEGEND + BOTTOM + 0.28 * len(shown), LEGEND)
    scale, unit = time_scale(max((sum(one.seconds) for one in shown), default=1.0))
    left = [0.0] * len(shown)
    names = [f"rank {one.rank}" for one in shown]
    for index, segment in enumerate(SEGMENTS):
        values = [one.seconds[index] / scale for one in shown]
        if any(values):
            axes.barh(names, values, left=left, color=COLOURS[index], label=segment, height=0.7)
            left = [a + b for a, b in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, frameon=False, fontsize=9)
    return svg(figure)


def uses(time: Times) -> str:
    """What the whole time of the job went to, as one bar."""
    figure, axes = new(LEGEND + BOTTOM + 0.4, LEGEND)
    scale, unit = time_scale(time.total)
    left = 0.0
    for use in Use:
        seconds = time.of(use)
        if seconds > 0:
            axes.barh("job", seconds / scale, left=left, color=USES[use], label=use.value, height=0.7)
            left += seconds / scale
    axes.set_xlim(0.0, left)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=7, frameon=False, fontsize=9)
    return svg(figure)


def timeline(lives: Sequence[Life], incidents: Sequence[Failure], span: tuple[float, float]) -> str:
    """Which generation ran when on which node, and what ended it."""
    begin = span[0]
    whole = span[1] - begin
    scale, unit = time_scale(whole)
    nodes = sorted({life.node for life in lives})
    figure, axes = new(TOP + BOTTOM + 0.34 * min(len(nodes), MAX_RANKS))
    axes.set_xlim(0.0, (span[1] - begin) / scale)
    for life in lives:
        line = nodes.index(life.node)
        if line >= MAX_RANKS:
            continue
        width, left = max(life.end - life.begin, 0.002 * whole) / scale, (life.begin - begin) / scale
        colour = GENERATIONS[life.generation % len(GENERATIONS)]
        axes.barh(line, width, left=left, color=colour, height=0.6)
        if width * scale > 0.12 * whole:
            word = f"generation {life.generation}"
            axes.text(left + width / 2, line, word, ha="center", va="center", color="white", fontsize=8)
    shown = nodes[:MAX_RANKS]
    axes.set_yticks(range(len(shown)), [f"node {node}" for node in shown])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"{unit} since the start")
    mark(axes, incidents, begin, scale)
    return svg(figure)


def mark(axes: "Axes", incidents: Sequence[Failure], begin: float, scale: float) -> None:
    """A line for each incident, with its number in the table."""
    for number, failure in enumerate(incidents, start=1):
        at = moment(failure.at)
        if at is None:
            continue
        place = (at - begin) / scale
        axes.axvline(place, color=RED, linewidth=1.2, linestyle="--")
        axes.annotate(
            str(number),
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=RED,
            fontsize=9,
            fontweight="bold",
        )


def new(height: float, top: float = TOP) -> "tuple[Figure, Axes]":
    """An empty figure, all in inches; `top` is what is left above the axes.

    Raises:
        Unusable: the extra is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as NewFigure
    except ImportError as error:
        raise Unusable(
            "a report's figures need matplotlib, which is not installed; pip install 'ddpjob[report]'"
        ) from error
    mpl.rcParams.update(STYLE)
    figure = NewFigure(figsize=(WIDTH, height))
    # The same margins everywhere, so that an incident is at the same place in all figures.
    figure.subplots_adjust(
        left=LEFT / WIDTH, right=1 - RIGHT / WIDTH, bottom=BOTTOM / height, top=1 - top / height
    )
    return figure, figure.subplots()


def svg(figure: "Figure") -> str:
    """The figure as an element of a page."""
    text = io.StringIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": None}
    figure.savefig(text, format="svg", metadata=metadata)
    body = text.getvalue()
    body = body[body.index("<svg") :]
    # Its size is the page's to choose.
    return re.sub(
        r'(<svg[^>]*?) width="[^"]*"',
        r"\1",
        re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", body, count=1),
        count=1,
    )


def time_scale(seconds: float) -> tuple[float, str]:
    """Seconds of the unit that suits a span, and its name."""
    for scale, unit in ((86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 3 * scale:
            return scale, unit
    return 1.0, "seconds"


def spread(points: Points) -> float:
    values = [value for _, value in points]
    return max(values) / min(values)


def moment(stamp: str | None) -> float | None:
    """Unix time of an RFC 3339 one."""
    if not stamp:
        return None
    try:
        return datetime.fromisoformat(stamp).astimezone(UTC).timestamp()
    except ValueError:
        return None
