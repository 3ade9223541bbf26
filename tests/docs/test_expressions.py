"""Alerts and dashboards name what exists: metrics, labels, and each other."""

import json
import re

import pytest
from docs.generating.alerts import alerts
from prometheus_client.metrics import MetricWrapperBase
from tests.docs.expressions import FILES, Query, labels_of, metrics_of, queries

from ddpjob_api.metrics import METRICS, MetricKind
from ddpjob_operator.health import Metrics

SCRAPED = {"namespace", "pod", "node", "ddpjob_dev_name", "ddpjob_dev_index"}
"""Labels of every series of a rank that its scrape adds (docs/observability.md)."""
RELEASE = {"cluster", "namespace", "job", "app_kubernetes_io_instance"}
"""Of the operator's; the first is of a Prometheus for several clusters."""


def series() -> dict[str, set[str]]:
    """Every name under which Prometheus has a series of ours, and its own labels."""
    found: dict[str, set[str]] = {}

    def add(name: str, kind: str, labels: set[str]) -> None:
        if kind == MetricKind.COUNTER:
            found[f"{name}_total"] = labels
        elif kind == "histogram":
            found[f"{name}_bucket"] = labels | {"le"}
            found[f"{name}_sum"] = found[f"{name}_count"] = labels
        else:
            found[name] = labels

    for metric in METRICS:
        add(metric.name, metric.kind.value, set(metric.labels) | SCRAPED)
    for made in vars(Metrics()).values():
        if isinstance(made, MetricWrapperBase):
            (described,) = made.describe()
            add(described.name, described.type, set(made._labelnames) | RELEASE)
    return found


SERIES = series()
EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in alerts()] + [
    (f"{query.dashboard}: {query.panel}", query.expression) for query in queries()
]


def test_every_metric_named_exists() -> None:
    unknown = {
        (where, name) for where, text in EXPRESSIONS for name in metrics_of(text) if name not in SERIES
    }
    assert not unknown
    assert all(metrics_of(text) for _, text in EXPRESSIONS), "an expression without a metric of ours"


def test_every_label_named_exists() -> None:
    wrong = [
        (where, label)
        for where, text in EXPRESSIONS
        for label in labels_of(text)
        if label not in set().union(*(SERIES[name] for name in metrics_of(text)))
    ]
    assert not wrong


@pytest.mark.parametrize("rule", [*alerts()], ids=lambda rule: rule["alert"])
def test_what_an_alert_says_is_filled_in(rule: dict[str, dict[str, str]]) -> None:
    """Labels in its summary are those of its series."""
    for label in re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]):
        assert label in labels_of(str(rule["expr"]))
    assert rule["annotations"].keys() == {"summary", "description", "action"}


def test_the_legend_of_a_graph_names_labels_that_its_series_have() -> None:
    wrong: list[Query] = [
        query
        for query in queries()
        for label in re.findall(r"\{\{(\w+)\}\}", query.legend)
        if label not in labels_of(query.expression)
    ]
    assert not wrong


def test_every_metric_of_the_operator_is_looked_at_or_explained_by_one_that_is() -> None:
    shown = set().union(*(metrics_of(text) for _, text in EXPRESSIONS))
    unseen = {name for name in SERIES if name.startswith("ddpjob_operator") and name not in shown}
    # Sums and counts of histograms whose buckets are shown, and what only the operator's authors look at.
    unseen = {name for name in unseen if not re.search(r"_(sum|count)$", name)}
    assert unseen == {"ddpjob_operator_resync_ghosts_total", "ddpjob_operator_resyncs_total"}


def test_jobs_that_two_operators_tell_of_are_not_counted_twice() -> None:
    """While one's pod takes over from the other; only of those that lead is the sum what is asked."""
    gauges = [
        described.name
        for made in vars(Metrics()).values()
        if isinstance(made, MetricWrapperBase)
        for described in made.describe()
        if described.type == "gauge" and not described.name.endswith("_leader")
    ]
    assert "ddpjob_operator_jobs" in gauges
    summed = re.compile(rf"\bsum *(?:by *\([^()]*\))? *\(\s*(?:{'|'.join(gauges)})\b")
    assert not [(where, text) for where, text in EXPRESSIONS if summed.search(text)]
    most = re.compile(rf"\bmax *by *\(([^()]*)\) *\(\s*(?:{'|'.join(gauges)})\b")
    kept = [
        ({*re.split(r", *", labels)}, where) for where, text in EXPRESSIONS for labels in most.findall(text)
    ]
    assert kept
    assert not [(where, RELEASE - labels) for labels, where in kept if not labels >= RELEASE], (
        "one hides another's"
    )


def test_dashboards_are_what_grafana_imports() -> None:
    """Each panel has an identity and a place of its own, asks the chosen Prometheus, and says what it answers."""
    for file in (FILES / "dashboards").glob("*.json"):
        board = json.loads(file.read_text())
        panels = board["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        taken = [
            (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
            for panel in panels
            for x in range(panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["h"])
        ]
        assert len(set(taken)) == len(taken), "panels lie on each other"
        assert max(x for x, _ in taken) < 24
        for panel in (one for one in panels if one["type"] != "row"):
            assert panel["description"].endswith((".", "?", ")")), panel["title"]
            names = [target["refId"] for target in panel["targets"]]
            assert len(set(names)) == len(names)
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        variables = {variable["name"] for variable in board["templating"]["list"]}
        used = set(re.findall(r"\$(\w+)", json.dumps([panel.get("targets") for panel in panels])))
        assert used - {"__rate_interval", "__range"} <= variables
