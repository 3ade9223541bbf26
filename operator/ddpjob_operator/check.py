"""Is an installation whole: the operator is ready, the API server knows DDPJobs, and this account may read them.

`helm test` runs it in a pod with the operator's own service account: `python -m ddpjob_operator.check`.
"""

import asyncio
import logging
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping

from ddpjob_api.names import FIELD_MANAGER
from ddpjob_operator.client import DDPJOBS, Client, Http
from ddpjob_operator.errors import ApiError, Forbidden, NotFound
from ddpjob_operator.settings import from_environment

log = logging.getLogger("ddpjob.check")
TRIES = 30
PAUSE_SECONDS = 1
"""Between tries: an operator that was just installed lists all objects first."""


async def not_ready(url: str) -> str | None:
    """Why the operator is not ready, in its own words; None if it is."""
    trouble = ""
    for _ in range(TRIES):
        try:
            with await asyncio.to_thread(urllib.request.urlopen, url, timeout=5):
                return None
        except urllib.error.HTTPError as answer:
            trouble = answer.read().decode(errors="replace").strip() or str(answer)
        except OSError as error:
            trouble = f"no answer: {error}"
        await asyncio.sleep(PAUSE_SECONDS)
    return f"{url}: {trouble}; look at the log of the operator's Deployment"


async def not_served(client: Client, namespaces: tuple[str, ...]) -> str | None:
    """Why DDPJobs cannot be read; None if they can."""
    for namespace in namespaces or (None,):
        where = namespace or "all namespaces"
        try:
            await client.list(DDPJOBS, namespace)
        except NotFound:
            return "the API server does not know DDPJobs: install the chart with crds.enabled, or crds/ddpjob.yaml"
        except Forbidden as error:
            return (
                f"the operator may not list DDPJobs in {where} (rbac.create makes its roles): {error.message}"
            )
        except ApiError as error:
            return f"DDPJobs in {where} cannot be listed: {error}"
    return None


async def run(environment: Mapping[str, str]) -> int:
    """0 if all is well. `DDPJOB_READY_URL` is asked where it is set."""
    http = Http()
    try:
        client = Client(http, manager=FIELD_MANAGER)
        troubles = [await not_served(client, from_environment(environment).watch_namespaces)]
        if url := environment.get("DDPJOB_READY_URL"):
            troubles.append(await not_ready(url))
    finally:
        await http.close()
    found = [trouble for trouble in troubles if trouble]
    for trouble in found:
        log.error("%s", trouble)
    if not found:
        log.info("the operator is ready, and DDPJobs are served")
    return 1 if found else 0


if __name__ == "__main__":
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    sys.exit(asyncio.run(run(os.environ)))
