"""What is done to a job's pods and told of it: released, tracked, deleted, and events written.

Why apart: these are the requests themselves, with what each refusal means for the cache; when they are made is
`reconcile.py`'s. Must not: decide.
"""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from datetime import datetime
from typing import Any

from ddpjob_api.names import FINALIZER_TRACKING
from ddpjob_operator.cache import Cache
from ddpjob_operator.client import EVENTS, PODS, Client
from ddpjob_operator.errors import ApiError, Conflict, NotFound
from ddpjob_operator.events import Event, bodies
from ddpjob_operator.observe import JobView, PodView, pod_of

log = logging.getLogger("ddpjob.reconcile")

AT_ONCE = 32
"""Requests of one job in flight."""


class Hands:
    """Requests about pods and events, each of which may be repeated."""

    def __init__(self, client: Client, cache: Cache) -> None:
        self._client = client
        self._cache = cache

    async def release(self, pods: Iterable[PodView]) -> None:
        await together(self._finalizer(pod, drop=FINALIZER_TRACKING) for pod in pods)

    async def track(self, pod: PodView) -> None:
        await self._finalizer(pod, add=FINALIZER_TRACKING)

    async def _finalizer(self, pod: PodView, *, add: str = "", drop: str = "") -> None:
        try:
            body = await self._client.finalizer(
                PODS, pod.key.namespace, pod.name, uid=pod.uid, add=add, drop=drop
            )
        except (NotFound, Conflict):
            self._cache.drop(pod)
            return
        view = pod_of(body)
        if view is not None:
            self._cache.put_pod(view)

    async def delete(self, pod: PodView, *, force: bool = False) -> None:
        try:
            await self._client.delete(PODS, pod.key.namespace, pod.name, uid=pod.uid, force=force)
        except Conflict:
            self._cache.drop(pod)

    async def post(self, job: JobView, events: list[Event], now: datetime) -> None:
        """Events are for people; one that cannot be written is not worth a second try."""
        for body in bodies(job, events, now=now):
            log.info("%s: %s: %s", job.key, body["reason"], body["message"])
            try:
                await self._client.create(EVENTS, job.key.namespace, body)
            except ApiError as error:
                log.warning("%s: event not written: %s", job.key, error)


async def together(work: Iterable[Awaitable[Any]]) -> list[Any]:
    """All of it, some at a time. The first error is raised after the rest has ended."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(each: Awaitable[Any]) -> Any:
        async with limit:
            return await each

    coroutines: list[Coroutine[Any, Any, Any]] = [one(each) for each in work]
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
