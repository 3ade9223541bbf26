"""Questions to coordinators, over real HTTP."""

import asyncio
import json
import socket
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web
from tests.operator.fake_api import no_answer
from tests.operator.world import KEY, World

from ddpjob_api.messages import status_key
from ddpjob_api.report import JobReport, RunState
from ddpjob_operator.cache import Cache
from ddpjob_operator.client import Client
from ddpjob_operator.observe import job_of, pod_of
from ddpjob_operator.poller import Asked, Poller, Said
from ddpjob_operator.tokens import Tokens

pytestmark = pytest.mark.timeout(60)


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
