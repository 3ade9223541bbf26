"""The figures of a report, as SVG that needs nothing beside it.

Why apart: matplotlib is an extra and slow to import; it is met here only. Must not: compute what is shown.
"""

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ddpjob_api.report import Failure
from ddpjob_cli.errors import Unusable
from ddpjob_cli.report.series import SEGMENTS, Life, Points, RankTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, RED, GREY = "#2458a6", "#b3261e", "#6b7280"
COLOURS = ("#e3a008", "#f97316", "#5b8def", "#2458a6", "#b3261e", "#7e3af2", "#0e9f6e", "#84cc16", "#cbd5e1")
"""By `SEGMENTS`."""
GENERATIONS = ("#93b5f0", "#5b8def", "#2458a6")
MAX_RANKS = 48
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
    points: Points, *, label: str, span: tuple[float, float], incidents: Sequence[Failure], log: bool = False
) -> str:
    """One value over time, with the incidents as lines across it."""
    figure, axes = new(3.0)
    begin, end = span
    scale, unit = time_scale(end - begin)
    axes.set_xlim(0.0, (end - begin) / scale)
    axes.plot(
        [(at - begin) / scale for at, _ in points], [value for _, value in points], color=BLUE, linewidth=1.6
    )
    if log and all(value > 0 for _, value in points) and spread(points) > 50:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel(f"{unit} since the start")
    axes.set_ylabel(label)
    mark(axes, incidents, begin, scale)
    return svg(figure)


def bars(times: Sequence[RankTime]) -> str:
    """Where the time of every rank went."""
    shown = times[:MAX_RANKS]
    figure, axes = new(0.9 + 0.28 * len(shown))
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
    axes.legend(loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=4, frameon=False, fontsize=9)
    return svg(figure)


def timeline(lives: Sequence[Life], incidents: Sequence[Failure], begin: float) -> str:
    """Which generation ran when on which node, and what ended it."""
    nodes = sorted({life.node for life in lives})
    figure, axes = new(1.0 + 0.34 * min(len(nodes), MAX_RANKS))
    scale, unit = time_scale(max(life.end for life in lives) - begin)
    whole = max(life.end for life in lives) - begin
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
            xytext=(3, -10),
            textcoords="offset points",
            color=RED,
            fontsize=9,
            fontweight="bold",
        )


def new(height: float) -> "tuple[Figure, Axes]":
    """An empty figure.

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
    figure = NewFigure(figsize=(9.0, height), layout="constrained")
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
