"""The fixtures of the chaos tests, and the table that they end with."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.faults import Faults
from tests.chaos.table import Table
from tests.chaos.training import Training, start, undisturbed
from tests.cluster.installation import Installation

TABLE = pytest.StashKey[Table]()


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Table:
    return request.config.stash.setdefault(TABLE, Table())


@pytest.fixture(scope="module")
def namespace(installation: Installation) -> Iterator[str]:
    with installation.cluster.namespace("chaos") as name:
        yield name


@pytest.fixture
def faults(installation: Installation) -> Iterator[Faults]:
    """Tools that undo themselves, also after a test that failed."""
    tools = Faults(installation)
    with tools.undo:
        yield tools


@pytest.fixture
def begin(installation: Installation, namespace: str) -> Iterator[Callable[..., Training]]:
    """Starts trainings of this test's own (`training.start` without its first two); they go with it."""
    made: list[Training] = []

    def one(name: str, **spec: Any) -> Training:
        made.append(start(installation.cluster, namespace, name, **spec))
        return made[-1]

    yield one
    for training in made:
        training.job.delete()


@pytest.fixture(scope="session")
def calm(installation: Installation) -> str:
    """The hash of the final weights of two ranks that nobody disturbed."""
    with installation.cluster.namespace("chaos-calm") as name:
        return undisturbed(installation.cluster, name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    table = terminalreporter.config.stash.get(TABLE, None)
    if table is None or not table.rows:
        return
    terminalreporter.section("chaos")
    for line in table.lines():
        terminalreporter.write_line(line)
    if path := os.environ.get("DDPJOB_CHAOS_JSON"):
        table.write(Path(path))
