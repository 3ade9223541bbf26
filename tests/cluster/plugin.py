"""The fixtures of all that needs a real Kubernetes (tests/cluster, tests/chaos): one cluster for the whole session.

Where no cluster can be had the tests skip, with one line that says what is missing; with CI=true they fail.

The cluster is started when pytest knows that a chosen test wants it, before the first test runs: the cold start builds
Kubernetes and the images, which must not count against some test's time limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from tests.cluster.harness import CannotRun, Cluster, HarnessError, Process, progress
from tests.cluster.harness.cluster import session as this_session
from tests.cluster.harness.images import TARGETS
from tests.cluster.harness.provider import choose
from tests.cluster.installation import Installation
from tests.cluster.prometheus import Prometheus, running
from tests.lacking import in_ci, lacking, program

STARTED = pytest.StashKey[tuple[Cluster, Process]]()
FAILED = pytest.StashKey[HarnessError]()


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """The cluster; started if it was not up, and then taken down at the end (or kept: DDPJOB_CLUSTER_KEEP=1)."""
    failure = request.config.stash.get(FAILED, None)
    if isinstance(failure, CannotRun):
        lacking(str(failure))
    if failure:
        raise failure
    return request.config.stash[STARTED][0]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the cluster, and build the images, if a chosen test will ask for them."""
    users = [item for item in session.items if "cluster" in getattr(item, "fixturenames", ())]
    if not users or session.config.option.collectonly:
        return
    capture = session.config.pluginmanager.getplugin("capturemanager")
    progress.sink = _past(capture.global_and_fixture_disabled if capture else nullcontext, progress.sink)
    try:
        me = this_session()
        provider = choose()
        provider.up(detach=bool(os.environ.get("DDPJOB_CLUSTER_KEEP")), user=me)
        started = Cluster(provider)
        session.config.stash[STARTED] = started, me
        if any(item.path.name != "test_harness.py" for item in users):
            marked = {name for item in users for mark in item.iter_markers("images") for name in mark.args}
            for target in (*TARGETS, *sorted(marked)):
                started.ensure_image(target)
    except HarnessError as failure:
        session.config.stash[FAILED] = failure
    except OSError as failure:  # no hook's crash: tests that want no cluster run
        unforeseen = HarnessError(f"the cluster could not be started: {failure}")
        unforeseen.__cause__ = failure  # its traceback is shown with each test that does want one
        session.config.stash[FAILED] = unforeseen


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leave the cluster as it was found."""
    if found := session.config.stash.get(STARTED, None):
        started, me = found
        started.provider.leave(me)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that asks for what this provider cannot do skips too (never in CI, where all must run)."""
    try:
        return (yield)
    except CannotRun as reason:
        if in_ci():
            raise
        pytest.skip(str(reason))


def _past(
    uncaptured: Callable[[], AbstractContextManager[object]], plain: Callable[[str], None]
) -> Callable[[str], None]:
    """Progress lines go past pytest's capture, so that a long start is seen."""

    def write(line: str) -> None:
        with uncaptured():
            plain(line)

    return write


@pytest.fixture(scope="session")
def installation(cluster: Cluster) -> Iterator[Installation]:
    """The operator of this tree on the cluster, by Helm; uninstalled at the end."""
    one = Installation(cluster)
    one.upgrade()
    yield one
    one.uninstall()


@pytest.fixture(scope="session")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A real Prometheus that scrapes the jobs' pods."""
    binary = program("prometheus", "Debian's package of that name")
    with running(binary, tmp_path_factory.mktemp("prometheus")) as one:
        yield one
