"""The tables of docs/observability.md: alerts from the chart's rules, panels from the dashboards."""

import json
from pathlib import Path

from docs.generating.alerts import alerts
from docs.generating.dashboards import as_json, fleet, job, panels
from docs.generating.markdown import filled, table
from grafana_foundation_sdk.builders.dashboard import Dashboard

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "observability.md"


def observability_page() -> str:
    return filled(
        PAGE.read_text(),
        alerts=alerts_table(),
        fleet=panels_table(fleet.dashboard()),
        job=panels_table(job.dashboard()),
    )


def alerts_table() -> str:
    rows = [
        (
            f'<a id="{rule["alert"].lower()}"></a>{rule["alert"]}',
            rule["labels"]["severity"],
            rule.get("for", "at once"),
            rule["annotations"]["description"],
            rule["annotations"]["action"],
        )
        for rule in alerts()
    ]
    return table(("alert", "severity", "after", "what is so", "what to do"), rows)


def panels_table(dashboard: Dashboard) -> str:
    rows = [(panel["title"], panel["description"]) for panel in panels(json.loads(as_json(dashboard)))]
    return table(("panel", "what it answers"), rows)
