"""Everything a report shows, as one value.

Why apart: a cluster and a folder both give it, and the page is made from it alone. Must not: draw, or ask anybody.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpjob_api.history import History
from ddpjob_api.report import Failure
from ddpjob_cli.explain.finding import Finding
from ddpjob_cli.explain.observation import Observation


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """One job."""

    seen: Observation
    findings: tuple[Finding, ...]
    histories: tuple[History, ...] = ()
    incidents: tuple[Failure, ...] = ()
    """Oldest first."""
    spec: str = ""
    """As YAML."""
    result: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    gaps: tuple[str, ...] = ()
    """What could not be had, as sentences."""
    made_at: str = ""


def incidents_of(histories: tuple[History, ...], last: Failure | None) -> tuple[Failure, ...]:
    """All that are known, once each; the status has the program's words where `/history` leaves them out."""
    found: dict[tuple[object, ...], Failure] = {}
    every = [failure for history in histories for failure in history.incidents]
    for failure in [*every, *([last] if last else [])]:
        key = (failure.generation, failure.rank, failure.reason)
        if key not in found or len(failure.message) > len(found[key].message):
            found[key] = failure
    return tuple(sorted(found.values(), key=lambda failure: (failure.generation, failure.at or "")))
