"""The expressions of the chart's dashboards, and what expressions name; those of alerts are in `docs.generating.alerts`."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILES = Path(__file__).parents[2] / "charts" / "ddpjob" / "files"
METRIC = re.compile(r"\bddpjob_(?:trainer|operator)_\w+")
MATCHERS = re.compile(r"\{([^{}]*)\}")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right) ?\(([^()]*)\)")


@dataclass(frozen=True)
class Query:
    """One query of a dashboard."""

    dashboard: str
    panel: str
    expression: str
    legend: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.expression}"


def queries() -> Iterator[Query]:
    """All of all dashboards."""
    for file in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield Query(file.stem, panel["title"], target["expr"], target.get("legendFormat") or "")


def metrics_of(expression: str) -> set[str]:
    """Names of its metrics."""
    return set(METRIC.findall(expression))


def labels_of(expression: str) -> set[str]:
    """Names of the labels that it selects and groups by."""
    found = {name.strip() for group in GROUPING.findall(expression) for name in group.split(",")}
    for matchers in MATCHERS.findall(expression):
        found |= set(re.findall(r"(\w+)(?==|!)", re.sub(r'"[^"]*"', "", matchers)))
    return found - {""}
