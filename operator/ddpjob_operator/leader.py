"""Which of several operators serves: the one that holds a Lease (`coordination.k8s.io`).

Why our own: the clients' leader elections use the wall clock, do not release at the end, or die with a lost connection.
Here others' clocks do not matter: a Lease has expired when it did not change for its duration while we looked on.
Two that both believe to lead do no harm (every write of a status names the version it is based on), so this decides
about work done twice and not about right or wrong. Must not: know what is led.
"""

import asyncio
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from ddpjob_operator.client import LEASES, Body, Client
from ddpjob_operator.errors import AlreadyExists, ApiError, Conflict

log = logging.getLogger("ddpjob.leader")
DURATION = timedelta(seconds=15)
"""A Lease that was not renewed for so long is free."""
DEADLINE = timedelta(seconds=10)
"""A leader that could not renew for so long does not lead any more."""
RETRY = timedelta(seconds=2)


class LostLease(Exception):
    """Somebody else leads, or may; the message says why."""


class Leader:
    """One candidate."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        duration: timedelta = DURATION,
        deadline: timedelta = DEADLINE,
        retry: timedelta = RETRY,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration = duration
        self._deadline = deadline.total_seconds()
        self._retry = retry.total_seconds()
        self._seen: tuple[str, float] = ("", 0.0)
        """The newest version of the Lease, and since when (loop's time) it is that."""
        self.holder = ""
        """Who leads, as far as is known."""

    async def acquire(self) -> None:
        """Wait until this one leads."""
        told = None
        while not await self._attempt():
            if self.holder != told:
                told = self.holder
                log.info("standing by: %s leads", self.holder or "nobody yet")
            await asyncio.sleep(self._retry)
        log.info("leading as %s", self._identity)

    async def hold(self) -> None:
        """Renew for as long as possible.

        Raises:
            LostLease: it was not possible any more.
        """
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        while True:
            await asyncio.sleep(self._retry)
            start = loop.time()
            if await self._attempt():
                renewed = start
            elif self.holder not in ("", self._identity):
                raise LostLease(f"{self.holder} leads now")
            elif loop.time() - renewed >= self._deadline:
                raise LostLease(f"the Lease could not be renewed for {self._deadline:g} s")

    async def release(self) -> None:
        """Let the next one lead at once."""
        with suppress(ApiError, TimeoutError):
            async with asyncio.timeout(self._deadline):
                body = await self._client.get(LEASES, self._namespace, self._name)
                if body is not None and holder_of(body) == self._identity:
                    body["spec"] = {**body["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._client.replace(LEASES, self._namespace, self._name, body)

    async def _attempt(self) -> bool:
        """Whether this one leads now."""
        try:
            async with asyncio.timeout(self._deadline / 2):
                return await self._take()
        except (AlreadyExists, Conflict):
            return False  # somebody was quicker; the next look says who
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease %s/%s: %s", self._namespace, self._name, error or "no answer in time")
            return False

    async def _take(self) -> bool:
        now = asyncio.get_running_loop().time()
        body = await self._client.get(LEASES, self._namespace, self._name)
        if body is None:
            made = {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self._name, "namespace": self._namespace},
                "spec": self._spec({}),
            }
            await self._client.create(LEASES, self._namespace, made)
            self.holder = self._identity
            return True
        self.holder = holder_of(body)
        version = str(body["metadata"].get("resourceVersion"))
        if version != self._seen[0]:
            self._seen = (version, now)
        spec = body.get("spec") or {}
        lasts = float(spec.get("leaseDurationSeconds") or self._duration.total_seconds())
        if self.holder not in ("", self._identity) and now - self._seen[1] < lasts:
            return False
        body["spec"] = self._spec(spec)
        await self._client.replace(LEASES, self._namespace, self._name, body)
        self.holder = self._identity
        return True

    def _spec(self, old: Body) -> Body:
        """The Lease as its holder writes it."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = old.get("holderIdentity") == self._identity
        return {
            **old,
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration.total_seconds())),
            "acquireTime": old.get("acquireTime", now) if mine else now,
            "renewTime": now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if mine else 1),
        }


def holder_of(body: Body) -> str:
    return str((body.get("spec") or {}).get("holderIdentity") or "")
