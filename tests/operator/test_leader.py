"""One of several operators leads."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta

import kopf
import pytest
from aiohttp import web
from tests.operator.fake_api import FakeApi, failure

from ddpjob_operator import client as client_module
from ddpjob_operator.__main__ import LEASE_SECONDS, Operator
from ddpjob_operator.client import CONNECTIONS, LEASES, PODS, SECRETS, Client
from ddpjob_operator.errors import Unavailable
from ddpjob_operator.leader import DEADLINE, Leader, LostLease
from ddpjob_operator.settings import Settings

pytestmark = pytest.mark.timeout(60)
LONG = timedelta(seconds=3600)
KEY = ("leases", "system", "ddpjob")


def candidate(api: FakeApi, name: str, duration: timedelta = LONG, deadline: timedelta = LONG) -> Leader:
    return Leader(
        Client(api, manager="m"),
        namespace="system",
        name="ddpjob",
        identity=name,
        duration=duration,
        deadline=deadline,
        retry=timedelta(seconds=0.01),
    )


async def test_the_first_leads_and_a_second_waits_until_it_is_released() -> None:
    api = FakeApi()
    first, second = candidate(api, "a"), candidate(api, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert (second.holder, api.objects[KEY]["spec"]["leaseTransitions"]) == ("a", 1)
    holding.cancel()
    await asyncio.wait([holding])
    await first.release()
    await asyncio.wait_for(waiting, 30)
    spec = api.objects[KEY]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 2)
    await first.release()
    assert api.objects[KEY]["spec"]["holderIdentity"] == "b", "what is another's is not released"


async def test_a_lease_that_is_not_renewed_is_taken_after_its_duration_and_not_before() -> None:
    api = FakeApi()
    await candidate(api, "a", duration=timedelta(seconds=1)).acquire()
    loop = asyncio.get_running_loop()
    start = loop.time()
    await asyncio.wait_for(candidate(api, "b").acquire(), 30)
    assert loop.time() - start >= 1.0


async def test_a_lease_that_is_renewed_is_not_taken_however_long() -> None:
    api = FakeApi()
    first = candidate(api, "a", duration=timedelta(seconds=5))
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(candidate(api, "b").acquire(), 6)
    holding.cancel()
    await asyncio.wait([holding])


async def test_a_leader_that_cannot_renew_or_was_replaced_stops() -> None:
    api = FakeApi()
    leader = candidate(api, "a", deadline=timedelta(seconds=0.2))
    await leader.acquire()
    api.before = lambda method, path: failure(500, "InternalError", "etcd is busy")
    with pytest.raises(LostLease, match=r"could not be renewed for 0\.2 s"):
        await asyncio.wait_for(leader.hold(), 30)
    api.before = lambda method, path: None
    leader = candidate(api, "a")
    await leader.acquire()
    api.change("leases", "system", "ddpjob", lambda body: body["spec"].update(holderIdentity="b"))
    with pytest.raises(LostLease, match="b leads now"):
        await asyncio.wait_for(leader.hold(), 30)


async def test_of_two_that_take_it_at_once_one_leads() -> None:
    api = FakeApi()
    tasks = [asyncio.create_task(candidate(api, name).acquire()) for name in "abc"]
    done, pending = await asyncio.wait(tasks, timeout=30, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (1, 2)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)


class SlowServer:
    """An API server that does not answer about pods, nor about Leases while told so."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.waiting = 0
        self.silent_of_leases = False
        self.full, self.over = asyncio.Event(), asyncio.Event()

    async def __call__(self, request: web.Request) -> web.Response:
        if self.silent_of_leases and "/leases" in request.path:
            await self.over.wait()
        if "/pods/" in request.path:
            self.waiting += 1
            if self.waiting == CONNECTIONS:
                self.full.set()
            await self.over.wait()
        body = json.loads(await request.text() or "null")
        answer = await self.api(request.method, request.path, dict(request.query), body, request.content_type)
        return web.json_response(answer.body, status=answer.status)


@pytest.fixture
async def slow(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlowServer]:
    server = SlowServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.__call__)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setattr(client_module, "connection", lambda: kopf.ConnectionInfo(server=url))
    yield server
    server.over.set()
    await runner.cleanup()


async def test_requests_that_a_slow_server_does_not_answer_do_not_keep_the_lease_waiting(
    slow: SlowServer,
) -> None:
    operator = Operator(Settings(lease="system/ddpjob", health_port=0))
    assert operator.leader is not None
    assert await operator.client.get(SECRETS, "ns", "train-token") is None
    work = [asyncio.create_task(operator.client.get(PODS, "ns", f"pod-{number}")) for number in range(100)]
    await slow.full.wait()
    async with asyncio.timeout(5):
        await operator.leader.acquire()
    assert slow.api.objects[KEY]["spec"]["holderIdentity"] == operator.leader.holder
    slow.over.set()
    await asyncio.gather(*work)
    await operator.lease_http.close()
    await operator.http.close()


async def test_a_lease_request_that_is_not_answered_leaves_time_for_another(
    slow: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the deadline after which another operator may lead."""
    assert DEADLINE.total_seconds() > LEASE_SECONDS
    monkeypatch.setattr("ddpjob_operator.__main__.LEASE_SECONDS", 2.0)
    operator = Operator(Settings(lease="system/ddpjob", health_port=0))
    lease = Client(operator.lease_http, manager="m")
    slow.silent_of_leases = True
    async with asyncio.timeout(10):
        with pytest.raises(Unavailable):
            await lease.get(LEASES, "system", "ddpjob")
    slow.silent_of_leases = False
    assert await lease.get(LEASES, "system", "ddpjob") is None
    await operator.lease_http.close()


async def test_an_operator_that_ends_closes_all_of_its_connections(slow: SlowServer) -> None:
    operator = Operator(Settings(lease="system/ddpjob", health_port=0))
    stop = asyncio.Event()
    stop.set()
    await operator.run(stop)
    assert (operator.http.closed, operator.lease_http.closed) == (True, True)
