"""Queue, cache, client, poller and health: each by itself, against real loops and real HTTP."""

import asyncio
import json
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.operator.fake_api import FakeApi, failure
from tests.operator.world import KEY, World

from ddpjob_api.messages import status_key
from ddpjob_api.report import JobReport, RunState
from ddpjob_operator import client as client_module
from ddpjob_operator.cache import Cache
from ddpjob_operator.client import DDPJOBS, PODS, Answer, Client, Limiter
from ddpjob_operator.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Unavailable,
    error_of,
)
from ddpjob_operator.handlers import kopf_settings
from ddpjob_operator.health import Health, Metrics
from ddpjob_operator.observe import job_of, pod_of
from ddpjob_operator.poller import Asked, Poller, Said
from ddpjob_operator.queue import Queue
from ddpjob_operator.release import release
from ddpjob_operator.tokens import Tokens

pytestmark = pytest.mark.timeout(60)


async def test_a_key_is_worked_on_by_one_worker_and_once_more_if_it_was_added_meanwhile() -> None:
    going, most, calls = 0, 0, []
    hold, begun = asyncio.Event(), asyncio.Event()

    async def work(key: str) -> None:
        nonlocal going, most
        going += 1
        most = max(most, going)
        calls.append(key)
        begun.set()
        await hold.wait()
        going -= 1

    queue: Queue[str] = Queue(work, workers=4)
    queue.start()
    queue.add("a")
    queue.add("a")
    await asyncio.wait_for(begun.wait(), 30)
    for _ in range(5):
        queue.add("a")
    assert queue.depth == 1
    hold.set()
    await queue.idle()
    await queue.stop()
    assert (calls, most) == (["a", "a"], 1)


async def test_a_failure_is_tried_again_later_and_reported() -> None:
    failures, done = [], asyncio.Event()

    async def work(key: str) -> None:
        if len(failures) < 2:
            raise ValueError(key)
        done.set()

    queue: Queue[str] = Queue(work, workers=1)
    queue.failed = lambda key, error: failures.append(str(error))
    queue.start()
    queue.add("a")
    await asyncio.wait_for(done.wait(), 30)
    await queue.stop()
    assert failures == ["a", "a"]


async def test_the_earliest_of_two_times_wins_and_work_may_ask_for_another() -> None:
    seen: list[float] = []
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    async def work(key: str) -> float | None:
        seen.append(loop.time())
        if len(seen) == 2:
            done.set()
            return None
        return 0.01

    queue: Queue[str] = Queue(work, workers=1)
    queue.start()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.01)
    queue.add_after("a", 7200)
    await asyncio.wait_for(done.wait(), 30)
    assert queue.oldest_seconds == 0.0
    await queue.stop()


async def test_old_news_does_not_replace_new_and_the_dead_do_not_come_back() -> None:
    world = await World().start()
    await world.apply()
    cache, body = Cache(), world.pod("train-0")

    def seen(version: int) -> Any:
        return pod_of({**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}})

    assert cache.put_pod(seen(5))
    assert not cache.put_pod(seen(4))
    assert not cache.put_pod(seen(5))
    assert cache.settle([], before=4) == []
    assert cache.settle([], before=5) == [KEY]
    assert not cache.put_pod(seen(6))
    assert cache.keys() == []


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


class Coordinator:
    """A pod's HTTP server on loopback."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.body: Any = None
        self.asked = asyncio.Queue[int]()
        self.stops = 0
        self.told = asyncio.Queue[Any]()

    async def status(self, request: web.Request) -> web.Response:
        known = request.headers.get("Authorization") == f"Bearer {status_key(self.token)}"
        self.asked.put_nowait(200 if known else 401)
        return web.Response(text=self.body) if known else web.Response(status=401)

    async def addresses(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {status_key(self.token)}"
        self.told.put_nowait(await request.json())
        return web.Response(status=202)

    async def stop(self, request: web.Request) -> web.Response:
        self.stops += 1
        return web.Response(status=202)


async def test_the_poller_asks_the_coordinator_with_the_jobs_key_and_tells_of_news() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.9", 0))
        port = probe.getsockname()[1]
    world = await World().start()
    await world.apply(ports={"metrics": port})
    token = await world.operator.tokens.look_up(world.operator.cache.entry(KEY).job)  # type: ignore[arg-type]
    assert token is not None
    coordinator = Coordinator(token)
    app = web.Application()
    app.add_routes(
        [
            web.get("/status", coordinator.status),
            web.post("/stop", coordinator.stop),
            web.post("/addresses", coordinator.addresses),
        ]
    )
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.9", port, reuse_address=True)
    await site.start()
    told: asyncio.Queue[Any] = asyncio.Queue()
    report = {"protocol": 1, "name": "train", "state": "Running", "term": 1, "generation": 1,
              "nodesJoined": 2, "nodesExpected": 2}  # fmt: skip
    poller = Poller(
        world.operator.cache, Tokens(world.operator.client), tell=told.put_nowait,
        poll=timedelta(seconds=0.05), progress=timedelta(seconds=3600), clock=lambda: world.api.now,
    )  # fmt: skip
    task = asyncio.create_task(poller.run())
    try:
        coordinator.body = json.dumps({**report, "newField": 1})
        await world.run()
        poller.soon(world.job["metadata"]["uid"])
        assert await asyncio.wait_for(told.get(), 30) == KEY
        job = world.operator.cache.entry(KEY).job
        pods = world.operator.cache.entry(KEY).pods.values()
        assert job is not None
        zero = next(pod for pod in pods if pod.index == 0)
        one = next(pod for pod in pods if pod.index == 1)
        said = poller.report(job, zero)
        assert said is not None
        assert said.state is RunState.RUNNING
        assert poller._said[job.uid].pause == timedelta(seconds=0.05)
        poller._poll = timedelta(seconds=3)
        coordinator.body = json.dumps({**report, "state": "Waiting"})
        poller.soon(job.uid)
        assert await asyncio.wait_for(told.get(), 30) == KEY
        assert poller._said[job.uid].pause == timedelta(seconds=3), (
            "asked each second, and given time as all are"
        )
        poller._poll, said = timedelta(seconds=0.05), poller.report(job, zero)
        assert poller.report(job, one) is None
        for body in (
            "x" * 70000, "not json", json.dumps({**report, "generation": "two"}), "[" * 60000,
            json.dumps({**report, "backOffSeconds": 10**400}),
        ):  # fmt: skip
            coordinator.body = body
            while not coordinator.asked.empty():
                coordinator.asked.get_nowait()
            poller.soon(job.uid)
            for _ in range(2):
                await asyncio.wait_for(coordinator.asked.get(), 30)
            assert poller.report(job, zero) == said
        assert told.empty()
        assert not poller.silent(job, zero)
        world.api.now += timedelta(seconds=20)
        assert await asyncio.wait_for(told.get(), 30) == KEY, "a silence is news, once"
        while not coordinator.asked.empty():
            coordinator.asked.get_nowait()
        for _ in range(3):
            await asyncio.wait_for(coordinator.asked.get(), 30)
        assert told.empty()
        assert poller.silent(job, zero)
        coordinator.body = json.dumps(report)
        assert await asyncio.wait_for(told.get(), 30) == KEY, "and so is its end"
        assert not poller.silent(job, zero)
        coordinator.body = json.dumps({**report, "generation": 2})
        assert await asyncio.wait_for(told.get(), 30) == KEY
        assert await poller.stop(job, zero)
        assert coordinator.stops == 1
        assert coordinator.told.empty(), "nobody is missing"
        coordinator.body = json.dumps({**report, "generation": 2, "missingNodes": [1], "nodesJoined": 1})
        poller.soon(job.uid)
        assert await asyncio.wait_for(coordinator.told.get(), 30) == {"1": "127.0.0.9"}
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await runner.cleanup()


async def test_jobs_that_have_ended_do_not_slow_the_questions_to_those_that_run() -> None:
    world = await World().start()
    await world.apply()
    await world.run()
    cache, job, pod = Cache(), world.job, world.pod("train-0")
    ended = {"conditions": [{"type": "Complete", "status": "True"}]}
    for n in range(400):
        meta = {"name": f"job-{n}", "uid": f"uid-{n}"}
        cache.put_job(
            job_of({**job, "metadata": {**job["metadata"], **meta}, "status": {} if n < 100 else ended})
        )
        labels = {**pod["metadata"]["labels"], "ddpjob.dev/name": meta["name"]}
        owners = [{**pod["metadata"]["ownerReferences"][0], **meta}]
        of_pod = {"name": f"job-{n}-0", "uid": f"pod-{n}", "labels": labels, "ownerReferences": owners}
        view = pod_of({**pod, "metadata": {**pod["metadata"], **of_pod}})
        assert view is not None
        cache.put_pod(view)
    poller = Poller(
        cache, Tokens(Client(no_answer, manager="m")), tell=lambda key: None,
        poll=timedelta(seconds=1), progress=timedelta(seconds=1),
    )  # fmt: skip
    said = JobReport(
        protocol=1, name="job", state=RunState.RUNNING, term=1, generation=1, nodes_joined=2, nodes_expected=2
    )
    poller._said = {
        f"uid-{n}": Said(pod_uid=f"pod-{n}", report=said, at=world.api.now, pause=timedelta(seconds=1))
        for n in range(400)
    }
    asked = asyncio.Event()
    poller.observe = lambda result: asked.set()
    task = asyncio.create_task(poller.run())
    try:
        await asyncio.wait_for(asked.wait(), 30)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert poller.progress_every == timedelta(seconds=100 / 10)
    assert poller._settled == timedelta(seconds=100 / 50)


@pytest.mark.parametrize(("pause", "seconds"), [(1, 15), (20, 60)])
async def test_a_coordinator_is_silent_by_the_pace_it_was_asked_at(pause: int, seconds: int) -> None:
    """Most of 1000 jobs may end at once: the others are asked every 20 s once more, and then as often as a few are."""
    world = await World().start()
    await world.apply()
    await world.run()
    entry = world.operator.cache.entry(KEY)
    zero = next(pod for pod in entry.pods.values() if pod.index == 0)
    assert entry.job is not None
    poller = world.operator.poller
    report = JobReport(
        protocol=1,
        name="train",
        state=RunState.RUNNING,
        term=1,
        generation=1,
        nodes_joined=2,
        nodes_expected=2,
    )
    given = timedelta(seconds=pause)
    kept = Said(pod_uid=zero.uid, report=report, at=world.api.now, pause=given)
    first = Asked(pod_uid=zero.uid, since=world.api.now, pause=given)
    began = world.api.now
    for heard in (True, False):
        poller._said = {entry.job.uid: kept} if heard else {}
        poller._first = {entry.job.uid: first}
        world.api.now = began + timedelta(seconds=seconds)
        assert not poller.silent(entry.job, zero)
        world.api.now += timedelta(seconds=1)
        assert poller.silent(entry.job, zero)


async def test_health_speaks_of_syncs_and_stuck_jobs() -> None:
    oldest = 0.0
    metrics = Metrics()
    health = Health(
        metrics, resync=timedelta(minutes=10), oldest_seconds=lambda: oldest, refresh=lambda: None
    )
    port = await health.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def get(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert (await get("/readyz"))[0] == 503
            assert await get("/healthz") == (200, "ok")
            health.synced()
            assert await get("/readyz") == (200, "ok")
            metrics.request("GET", "pods", 200, 0.01)
            assert "ddpjob_operator_api_requests_total" in (await get("/metrics"))[1]
            oldest = 1000.0
            assert await get("/healthz") == (503, "a job has waited for 1000 s")
    finally:
        await health.stop()


async def test_release_takes_every_tracking_finalizer_off() -> None:
    world = await World().start()
    await world.apply()
    world.operators.clear()
    assert await release(Client(world.api, manager="m"), ()) == 2
    assert world.tracked() == []
    assert await release(Client(world.api, manager="m"), ()) == 0


def test_kopf_writes_nothing_and_watches_by_label() -> None:
    settings = kopf_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True


async def test_a_token_is_never_shown() -> None:
    world = await World().start()
    await world.apply()
    token = await world.operator.tokens.look_up(world.operator.cache.entry(KEY).job)  # type: ignore[arg-type]
    assert token is not None
    assert token.decode() not in repr(world.operator.tokens) + str(vars(world.operator.poller))


async def no_answer(method: str, path: str, query: Mapping[str, str], body: Any, content_type: str) -> Answer:
    raise Unavailable(status=503, reason="NoConnection", message="no route")


async def test_no_connection_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await Client(no_answer, manager="m").get(PODS, "ns", "x")
