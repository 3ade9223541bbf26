"""A full list of all objects, at the start and every few minutes.

Why: kopf never reports what was deleted while its watch was broken, and a reconcile must not begin before everything
is known (a pod that is not in the cache yet would be made again). Must not: reconcile.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import timedelta

from ddpjob_api.names import LABEL_JOB
from ddpjob_operator.cache import Cache
from ddpjob_operator.client import DDPJOBS, NODES, PODS, SERVICES, Client
from ddpjob_operator.errors import ApiError, Forbidden
from ddpjob_operator.nodes import Nodes, node_of
from ddpjob_operator.observe import JobView, Key, PodView, ServiceView, job_of, pod_of, service_of

log = logging.getLogger("ddpjob.resync")
FIRST_PAUSE_SECONDS = 2.0


async def resync(client: Client, cache: Cache, nodes: Nodes, namespaces: Sequence[str]) -> list[Key]:
    """Bring the cache up to date. Nodes are listed where the operator serves the whole cluster.

    Returns:
        The keys of the ghosts found.

    Raises:
        ApiError: a list could not be had; the cache is as it was.
    """
    if not namespaces:
        try:
            before = nodes.newest()
            nodes.settle([node_of(body) for body in await client.list(NODES, None)], before=before)
        except Forbidden as error:
            if nodes.watched:
                raise
            log.warning("nodes are not watched, so lost ones are noticed late: %s", error)
    before = cache.newest()
    jobs: list[JobView] = []
    others: list[PodView | ServiceView | None] = []
    scopes: list[str | None] = [*namespaces] or [None]
    for namespace in scopes:
        jobs += [job_of(body) for body in await client.list(DDPJOBS, namespace)]
        others += [pod_of(body) for body in await client.list(PODS, namespace, labels=LABEL_JOB)]
        others += [service_of(body) for body in await client.list(SERVICES, namespace, labels=LABEL_JOB)]
    views = [*jobs, *(view for view in others if view is not None)]
    ghosts = cache.settle(views, before=before)
    for view in views:
        if isinstance(view, JobView):
            cache.put_job(view)
        elif isinstance(view, PodView):
            cache.put_pod(view)
        else:
            cache.put_service(view)
    return ghosts


async def keep_in_sync(
    client: Client,
    cache: Cache,
    nodes: Nodes,
    namespaces: Sequence[str],
    *,
    every: timedelta,
    add: Callable[[Key], None],
    done: Callable[[bool, int], None],
) -> None:
    """Resync for ever; `done(went well, ghosts)` is told of each. Returns never."""
    while True:
        await asyncio.sleep(every.total_seconds())
        try:
            ghosts = await resync(client, cache, nodes, namespaces)
        except ApiError as error:
            log.warning("resync failed, the next one is in %s: %s", every, error)
            done(False, 0)
            continue
        for key in [*ghosts, *cache.keys()]:
            add(key)
        done(True, len(ghosts))


async def first(client: Client, cache: Cache, nodes: Nodes, namespaces: Sequence[str]) -> None:
    """The list before anything else, tried until it succeeds (the CRD may not be there yet)."""
    while True:
        try:
            await resync(client, cache, nodes, namespaces)
            return
        except ApiError as error:
            log.warning("the objects cannot be listed yet: %s", error)
            await asyncio.sleep(FIRST_PAUSE_SECONDS)
