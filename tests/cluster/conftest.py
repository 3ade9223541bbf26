"""The fixture `cluster`: a real Kubernetes for the whole session.

Where no cluster can be had the tests skip, with one line that says what is missing; with CI=true they fail.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.cluster.harness import CannotRun, Cluster, progress
from tests.cluster.harness.cluster import session
from tests.cluster.harness.provider import choose


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster; it is started if it is not up, and left as it was found (or kept: DDPJOB_CLUSTER_KEEP=1)."""
    progress.sink = _past_capture(request.config)
    me = session()
    try:
        provider = choose()
        provider.up(detach=bool(os.environ.get("DDPJOB_CLUSTER_KEEP")), user=me)
    except CannotRun as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))
    try:
        yield Cluster(provider)
    finally:
        provider.leave(me)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that asks for what this provider cannot do skips too (never in CI, where all must run)."""
    try:
        return (yield)
    except CannotRun as reason:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(reason))


def _past_capture(config: pytest.Config):  # type: ignore[no-untyped-def]
    manager = config.pluginmanager.getplugin("capturemanager")
    plain = progress.sink

    def write(line: str) -> None:
        if manager is None:
            plain(line)
            return
        with manager.global_and_fixture_disabled():
            plain(line)

    return write
