"""The expressions of alerts and dashboards, as the chart ships them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILES = Path(__file__).parents[2] / "charts" / "ddpjob" / "files"
RULES = FILES / "alerts.yaml"
METRIC = re.compile(r"\bddpjob_(?:trainer|operator)_\w+")
MATCHERS = re.compile(r"\{([^{}]*)\}")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right) ?\(([^()]*)\)")


def alerts() -> Iterator[dict[str, Any]]:
    """The rules of all groups."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


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
