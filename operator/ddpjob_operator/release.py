"""Take the tracking finalizer off every pod: what must happen before the operator is uninstalled.

Why: without the operator nobody would, and deleted pods would stay. The chart runs it as a pre-delete hook:
`python -m ddpjob_operator.release`. It stops the operator first, which would put the finalizers back. Jobs that run go
on; an operator installed later takes them over again.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping

from ddpjob_api.names import FIELD_MANAGER, FINALIZER_TRACKING, LABEL_JOB
from ddpjob_operator.client import DEPLOYMENTS, PODS, Client, Http
from ddpjob_operator.errors import ApiError, Conflict, NotFound
from ddpjob_operator.hands import together
from ddpjob_operator.settings import from_environment

log = logging.getLogger("ddpjob.release")
STOP_SECONDS = 60
"""How long the operator may take to end; after that the pods are released all the same."""


async def stop_operator(client: Client, *, namespace: str, deployment: str, selector: str) -> None:
    """Scale the operator to zero and wait until none of its pods is left."""
    try:
        await client.scale(DEPLOYMENTS, namespace, deployment, replicas=0)
    except NotFound:
        return
    for _ in range(STOP_SECONDS):
        if not await client.list(PODS, namespace, labels=selector):
            return
        await asyncio.sleep(1)
    log.warning("the operator has not ended after %d s", STOP_SECONDS)


async def release(client: Client, namespaces: tuple[str, ...]) -> int:
    """How many pods were released."""

    async def one(namespace: str, name: str, uid: str) -> bool:
        try:
            await client.finalizer(PODS, namespace, name, uid=uid, drop=FINALIZER_TRACKING)
        except (NotFound, Conflict):
            return False
        return True

    released = 0
    scopes: list[str | None] = [*namespaces] or [None]
    for scope in scopes:
        pods = [body["metadata"] for body in await client.list(PODS, scope, labels=LABEL_JOB)]
        held = [meta for meta in pods if FINALIZER_TRACKING in (meta.get("finalizers") or [])]
        results = await together(one(meta["namespace"], meta["name"], meta["uid"]) for meta in held)
        released += sum(results)
    return released


async def run(environment: Mapping[str, str]) -> int:
    """0 once every pod is released. `DDPJOB_OPERATOR_*` name the Deployment that is stopped before."""
    http = Http()
    client = Client(http, manager=FIELD_MANAGER)
    try:
        if deployment := environment.get("DDPJOB_OPERATOR_DEPLOYMENT"):
            await stop_operator(
                client,
                namespace=environment["DDPJOB_OPERATOR_NAMESPACE"],
                deployment=deployment,
                selector=environment["DDPJOB_OPERATOR_SELECTOR"],
            )
        released = await release(client, from_environment(environment).watch_namespaces)
    except ApiError as error:
        log.error("pods could not be released: %s", error)
        return 1
    finally:
        await http.close()
    log.info("released %d pods", released)
    return 0


if __name__ == "__main__":
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.exit(asyncio.run(run(os.environ)))
