"""Requests to the API server: answers as errors, pauses, pages, and a rate."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.fake_api import FakeApi, failure, no_answer
from tests.operator.world import World

from ddpjob_operator import client as client_module
from ddpjob_operator.client import DDPJOBS, PODS, Client, Http, Limiter
from ddpjob_operator.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
    error_of,
)

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (404, "NotFound", NotFound), (409, "AlreadyExists", AlreadyExists), (409, "Conflict", Conflict),
        (403, "Forbidden", Forbidden), (422, "Invalid", Invalid), (400, "BadRequest", Invalid),
        (429, "TooManyRequests", Unavailable), (503, "", Unavailable),
    ],
)  # fmt: skip
def test_answers_become_errors(status: int, reason: str, kind: type[Exception]) -> None:
    error = error_of(status, {"reason": reason, "message": "words"})
    assert type(error) is kind
    assert error.message == "words"


async def test_a_server_that_is_busy_is_asked_again_when_it_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
    api = FakeApi()
    busy = [failure(429, "TooManyRequests", "busy", retry_after=7.0), failure(429, "TooManyRequests", "busy")]
    api.before = lambda method, path: busy.pop(0) if busy else None
    seen: list[tuple[str, int]] = []
    client = Client(api, manager="m")
    client.observe = lambda verb, resource, status, seconds: seen.append((verb, status))
    assert await client.list(PODS, None) == []
    assert 7.0 <= slept[0] <= 9.0
    assert slept[1] >= 1.0
    assert seen == [("LIST", 429), ("LIST", 429), ("LIST", 200)]


async def test_lists_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "PAGE", 3)
    api = FakeApi()
    for n in range(8):
        api.create("pods", "ns", {"metadata": {"name": f"p{n}"}, "spec": {}})
    assert len(await Client(api, manager="m").list(PODS, "ns")) == 8
    assert len(api.requests) == 3


async def test_a_status_write_on_an_old_version_is_a_conflict() -> None:
    world = await World().start()
    await world.apply()
    with pytest.raises(Conflict):
        await world.operator.client.write_status(DDPJOBS, "ns", "train", resource_version="1", status={})


async def test_the_limiter_lets_a_burst_through_and_then_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(client_module.asyncio, "sleep", sleep)
    monkeypatch.setattr(client_module.time, "monotonic", lambda: 0.0)
    limiter = Limiter(rate=10.0, burst=2)
    for _ in range(4):
        await limiter.take()
    assert slept == [pytest.approx(0.1), pytest.approx(0.2)]


async def test_no_connection_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await Client(no_answer, manager="m").get(PODS, "ns", "x")


async def test_requests_that_begin_together_share_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    nowhere: Any = SimpleNamespace(
        server="http://127.0.0.1:9",
        as_ssl_context=lambda: False,
        as_http_headers=dict,
        proxy_url=None,
        trust_env=False,
    )

    def connection() -> Any:
        asked.append(nowhere)
        return nowhere

    monkeypatch.setattr(client_module, "connection", connection)
    http = Http()
    requests = (http("GET", "/api", {}, None, "") for _ in range(5))
    found = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(each) for each in found] == [Unavailable] * 5
    assert len(asked) == 1
    await http.close()
    assert http.closed
