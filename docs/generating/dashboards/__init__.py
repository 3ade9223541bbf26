"""Grafana's dashboards, as the chart ships them (charts/ddpjob/files/dashboards/)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.generating.dashboards import fleet, job
from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder


def fleet_json() -> str:
    return as_json(fleet.dashboard())


def job_json() -> str:
    return as_json(job.dashboard())


def as_json(dashboard: Dashboard) -> str:
    """Grafana's own form, with a number for each panel."""
    built = dashboard.build()
    document = json.loads(JSONEncoder(sort_keys=True).encode(built))
    for number, panel in enumerate(document["panels"], start=1):
        panel["id"] = number
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def panels(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard from top to bottom, without the headings between them."""
    return (panel for panel in document["panels"] if panel["type"] != "row")
