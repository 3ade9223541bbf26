"""What a run on this machine left, for its report.

Why apart: files in a folder, as pods are on a cluster. Must not: draw.
"""

import json
from pathlib import Path

from ddpjob_api.codec import Invalid, load
from ddpjob_api.history import History, Row
from ddpjob_api.report import Failure
from ddpjob_cli.explain.findings import findings
from ddpjob_cli.local.directory import HISTORY
from ddpjob_cli.local.look import LocalRun
from ddpjob_cli.report.data import ReportData, incidents_of
from ddpjob_cli.version import versions


def collect(run: LocalRun, made_at: str) -> ReportData:
    """Everything of it."""
    seen = run.observe(run.scraper())
    files = {int(path.parent.name.removeprefix("node-")): path for path in run.path.glob(f"node-*/{HISTORY}")}
    histories = tuple(read(file, run.name, node) for node, file in sorted(files.items()))
    environment = {name: str(value) for name, value in versions().items() if value is not None}
    last = run.last()
    return ReportData(
        seen=seen,
        findings=tuple(findings(seen)),
        histories=histories,
        incidents=incidents_of(histories, seen.last_failure),
        spec=run.spec(),
        result=last.get("result") or {},
        environment={"machine": "this one", **environment},
        made_at=made_at,
    )


def read(file: Path, job: str, node: int) -> History:
    """A launcher's file; the line that it is just writing is left out."""
    rows: list[Row] = []
    incidents: list[Failure] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[1:]:
        try:
            found = json.loads(line)
            if "row" in found:
                rows.append(load(Row, found["row"]))
            else:
                incidents.append(load(Failure, found["incident"]))
        except (ValueError, KeyError, TypeError, Invalid):
            continue
    return History(job=job, node=node, rows=tuple(rows), incidents=tuple(incidents))
