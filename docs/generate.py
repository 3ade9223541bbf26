"""Writes what is generated from the code. `make docs` runs it (`python -m docs.generate`).

Why generated: a field, a default, a rule's sentence or a metric's help stands once, in the api, the CRD or the chart,
and `tests/docs` compares these files with what this prints.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generating.chart import readme
from docs.generating.dashboards import fleet_json, job_json
from docs.generating.observability import observability_page
from docs.generating.reference import api_page, metrics_page
from docs.generating.settings import settings_page

ROOT = Path(__file__).parents[1]

FILES: Mapping[str, Callable[[], str]] = {
    "docs/settings.md": settings_page,
    "docs/metrics.md": metrics_page,
    "docs/api.md": api_page,
    "docs/observability.md": observability_page,
    "charts/ddpjob/README.md": readme,
    "charts/ddpjob/files/dashboards/fleet.json": fleet_json,
    "charts/ddpjob/files/dashboards/job.json": job_json,
}
"""Each generated file, from the root of the repository, and what it must be."""


def main() -> None:
    for name, write in FILES.items():
        (ROOT / name).write_text(write())


if __name__ == "__main__":
    main()
