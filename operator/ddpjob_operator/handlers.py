"""What kopf's watches tell us, one to three lines each.

Only low-level `on.event` handlers: every other kind writes annotations or finalizers to the objects it watches. They
put the news into the cache and the key into the queue; what follows from it is the reconciler's.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import kopf

from ddpjob_api.names import LABEL_JOB
from ddpjob_api.spec import GROUP, PLURAL, VERSION
from ddpjob_operator.access import connection
from ddpjob_operator.cache import Cache
from ddpjob_operator.nodes import Nodes, node_of
from ddpjob_operator.observe import JobView, Key, PodView, ServiceView, job_of, pod_of, service_of

V = TypeVar("V", JobView, PodView, ServiceView)


def registry(
    cache: Cache,
    nodes: Nodes,
    add: Callable[[Key], None],
    forget: Callable[[str], None],
    clean_up: Callable[[], Awaitable[None]],
) -> kopf.OperatorRegistry:
    """The handlers, bound to a cache and a queue; `clean_up` ends our own tasks, for which kopf waits otherwise."""
    found = kopf.OperatorRegistry()

    def news(event: Mapping[str, Any], view: V | None, put: Callable[[V], bool]) -> None:
        if view is None:
            return
        if event["type"] == "DELETED":
            cache.drop(view)
        elif not put(view):
            return
        add(view.key)

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=found)
    async def on_job(event: Mapping[str, Any], **_: Any) -> None:
        view = job_of(event["object"])
        news(event, view, cache.put_job)
        if event["type"] == "DELETED":
            forget(view.uid)

    @kopf.on.event("", "v1", "pods", labels={LABEL_JOB: kopf.PRESENT}, registry=found)
    async def on_pod(event: Mapping[str, Any], **_: Any) -> None:
        news(event, pod_of(event["object"]), cache.put_pod)

    @kopf.on.event("", "v1", "services", labels={LABEL_JOB: kopf.PRESENT}, registry=found)
    async def on_service(event: Mapping[str, Any], **_: Any) -> None:
        news(event, service_of(event["object"]), cache.put_service)

    if nodes.watched:

        @kopf.on.event("", "v1", "nodes", registry=found)
        async def on_node(event: Mapping[str, Any], **_: Any) -> None:
            view = node_of(event["object"])
            changed = nodes.drop(view) if event["type"] == "DELETED" else nodes.put(view)
            for key in cache.on_node(view.name) if changed else ():
                add(key)

    @kopf.on.cleanup(registry=found)
    async def on_cleanup(**_: Any) -> None:
        await clean_up()

    @kopf.on.login(registry=found)
    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return connection()

    return found


def kopf_settings() -> kopf.OperatorSettings:
    """How kopf is set: it writes nothing, and its watches are ones that the API server filters."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.scanning.disabled = True
    settings.watching.label_selectors["", "v1", "pods"] = LABEL_JOB
    settings.watching.label_selectors["", "v1", "services"] = LABEL_JOB
    settings.watching.chunk_size = 500
    settings.watching.client_timeout = 10 * 60
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    return settings
