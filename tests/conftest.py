"""What all tests share: where the minutes went, printed before pytest's own summary line."""

from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.cluster.plugin"]

# A machine that others use too is slow; that says nothing about what is tested.
settings.register_profile("loaded", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loaded")

ROOT = Path(__file__).parents[1]
seconds: dict[str, float] = defaultdict(float)
counts: dict[str, int] = defaultdict(int)


def part(nodeid: str) -> str:
    """The folder of a test below tests/, two levels deep: `trainer/loop`."""
    folders = Path(nodeid.split("::")[0]).parts[1:-1]
    return "/".join(folders[:2]) or "."


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[part(report.nodeid)] += report.duration
    counts[part(report.nodeid)] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("minutes per part")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{spent / 60:6.1f} min  {counts[name]:5d} tests  {name}")
