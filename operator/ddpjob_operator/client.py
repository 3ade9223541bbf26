"""Kubernetes' API in dictionaries: the few verbs the operator needs, over one HTTP session.

Why not the official client: it builds a model object per answer, which costs more processor time than the rest of a
reconcile, and drops the fields it does not know. Must not: know what a DDPJob is.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp

from ddpjob_operator.access import connection
from ddpjob_operator.errors import ApiError, NotFound, Unavailable, error_of

Body = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
PAGE = 500
"""Objects per answer of a list."""
CONNECTIONS = 64
"""At once to the API server, of one transport; other requests wait."""
TRIES = 4
"""A refusal for load (429) is tried again this often here; everything else is the queue's to repeat."""


@dataclass(frozen=True)
class Kind:
    """A resource type as its URL names it."""

    group: str
    version: str
    plural: str

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [
            root,
            f"namespaces/{namespace}" if namespace else "",
            self.plural,
            name or "",
            subresource or "",
        ]
        return "/".join(part for part in parts if part)


DDPJOBS = Kind("ddpjob.dev", "v1alpha1", "ddpjobs")
PODS = Kind("", "v1", "pods")
SERVICES = Kind("", "v1", "services")
SECRETS = Kind("", "v1", "secrets")
CLAIMS = Kind("", "v1", "persistentvolumeclaims")
EVENTS = Kind("", "v1", "events")
NODES = Kind("", "v1", "nodes")
LEASES = Kind("coordination.k8s.io", "v1", "leases")
DEPLOYMENTS = Kind("apps", "v1", "deployments")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a transport brings back."""

    status: int
    body: Body
    retry_after: float | None = None


class Transport(Protocol):
    """One HTTP exchange with the API server. Raises `Unavailable` where there was no answer."""

    async def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> Answer: ...


class Observer(Protocol):
    """Told of every request, for metrics."""

    def __call__(self, verb: str, resource: str, status: int, seconds: float) -> None: ...


class Client:
    """The verbs. Every method raises a subclass of `ApiError` where the server refuses."""

    def __init__(self, transport: Transport, *, manager: str, limiter: "Limiter | None" = None) -> None:
        self._transport = transport
        self._manager = manager
        self._limiter = limiter or Limiter(rate=1e6, burst=1000)
        self.observe: Observer = lambda verb, resource, status, seconds: None

    async def get(self, kind: Kind, namespace: str, name: str) -> Body | None:
        """The object, or None where there is none."""
        try:
            return await self._call("GET", kind, kind.path(namespace, name))
        except NotFound:
            return None

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> list[Body]:
        """All objects that match, page by page."""
        query = {"limit": str(PAGE)}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        found: list[Body] = []
        while True:
            page = await self._call("GET", kind, kind.path(namespace), query=query, verb="LIST")
            found += page.get("items") or []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return found
            query = {**query, "continue": following}

    async def create(self, kind: Kind, namespace: str, body: Body, *, dry_run: bool = False) -> Body:
        """The object as the server made it; with `dry_run` nothing is stored, and unknown fields are an error."""
        query = {"fieldManager": self._manager}
        if dry_run:
            query |= {"dryRun": "All", "fieldValidation": "Strict"}
        return await self._call("POST", kind, kind.path(namespace), query=query, body=body)

    async def apply(self, kind: Kind, namespace: str, name: str, body: Body) -> Body:
        """Server-side apply: the fields in `body` are ours, whoever set them."""
        query = {"fieldManager": self._manager, "force": "true"}
        return await self._call(
            "PATCH", kind, kind.path(namespace, name), query=query, body=body, content_type=APPLY_PATCH,
            verb="APPLY",
        )  # fmt: skip

    async def replace(self, kind: Kind, namespace: str, name: str, body: Body) -> Body:
        """Put the object in place of the version that `body` names.

        Raises:
            Conflict: it has changed since.
        """
        query = {"fieldManager": self._manager}
        return await self._call("PUT", kind, kind.path(namespace, name), query=query, body=body)

    async def finalizer(
        self, kind: Kind, namespace: str, name: str, *, uid: str, add: str = "", drop: str = ""
    ) -> Body:
        """Add or drop one finalizer of exactly this object; others stay.

        Raises:
            NotFound: the object is gone.
            Conflict: another object has the name now.
        """
        change: Body = {"finalizers": [add]} if add else {"$deleteFromPrimitiveList/finalizers": [drop]}
        query = {"fieldManager": self._manager}
        body = {"metadata": {"uid": uid, **change}}
        path = kind.path(namespace, name)
        return await self._call("PATCH", kind, path, query=query, body=body, content_type=STRATEGIC_PATCH)

    async def scale(self, kind: Kind, namespace: str, name: str, *, replicas: int) -> None:
        path = kind.path(namespace, name, "scale")
        body = {"spec": {"replicas": replicas}}
        await self._call("PATCH", kind, path, body=body, content_type=MERGE_PATCH)

    async def write_status(
        self, kind: Kind, namespace: str, name: str, *, resource_version: str, status: Body
    ) -> Body:
        """Put `status` in place of the old one.

        Raises:
            Conflict: the object is no longer at `resource_version`.
        """
        patch = [
            {"op": "add", "path": "/status", "value": status},
            {"op": "replace", "path": "/metadata/resourceVersion", "value": resource_version},
        ]
        path = kind.path(namespace, name, "status")
        query = {"fieldManager": self._manager}
        return await self._call(
            "PATCH", kind, path, query=query, body=patch, content_type=JSON_PATCH, verb="STATUS"
        )

    async def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, force: bool = False) -> None:
        """Ask for the deletion of exactly this object; its absence is success. `force`: nobody is waited for."""
        body: Body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
        }
        if force:
            body["gracePeriodSeconds"] = 0
        try:
            await self._call("DELETE", kind, kind.path(namespace, name), body=body)
        except NotFound:
            return

    async def _call(
        self,
        method: str,
        kind: Kind,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        verb: str | None = None,
    ) -> Body:
        attempt = 0
        while True:
            await self._limiter.take()
            attempt += 1
            start = time.perf_counter()
            answer = await self._transport(method, path, query or {}, body, content_type)
            self.observe(verb or method, kind.plural, answer.status, time.perf_counter() - start)
            if answer.status < 300:
                return answer.body
            error = error_of(answer.status, answer.body, answer.retry_after)
            if answer.status != 429 or attempt >= TRIES:
                raise error
            # The server did not take the request, so that repeating it is safe whatever the verb.
            await asyncio.sleep(min(answer.retry_after or 1.0, 30.0) * random.uniform(1.0, 1.25))


class Limiter:
    """A token bucket: `rate` requests per second on average, `burst` at once."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = time.monotonic()

    async def take(self) -> None:
        """Wait for a token. Tokens are taken ahead, so that waiters go in their order."""
        now = time.monotonic()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate) - 1.0
        self._at = now
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / self._rate)


class Http:
    """The transport over aiohttp. Credentials are read again when the server does not know them any more."""

    def __init__(self, *, timeout_seconds: float = 30.0) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds, connect=10)
        self._session: aiohttp.ClientSession | None = None
        self._server = ""
        self._opening = asyncio.Lock()

    async def __call__(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> Answer:
        answer = await self._once(method, path, query, body, content_type)
        if answer.status == 401:
            await self.close()
            answer = await self._once(method, path, query, body, content_type)
        return answer

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], body: Any, content_type: str
    ) -> Answer:
        session = await self._open()
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if data is not None else {}
        try:
            async with session.request(
                method, self._server + path, params=dict(query), data=data, headers=headers
            ) as response:
                text = await response.read()
                return Answer(
                    status=response.status,
                    body=parsed(text),
                    retry_after=seconds(response.headers.get("Retry-After")),
                )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            words = f"{method} {path}: {type(error).__name__}: {error}"
            raise Unavailable(status=503, reason="NoConnection", message=words) from error

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:  # else who comes meanwhile opens another, and the first is never closed
            if self._session is None or self.closed:
                info = await asyncio.to_thread(connection)
                self._server = info.server.rstrip("/")
                self._session = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=CONNECTIONS, ssl=info.as_ssl_context()),
                    headers={
                        **info.as_http_headers(),
                        "Accept": "application/json",
                        "User-Agent": "ddpjob-operator",
                    },
                    timeout=self._timeout,
                    proxy=info.proxy_url,
                    trust_env=info.trust_env,
                )
            return self._session

    @property
    def closed(self) -> bool:
        """Whether no connection is held."""
        return self._session is None or self._session.closed

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


def parsed(text: bytes) -> Body:
    try:
        body = json.loads(text) if text else {}
    except ValueError:
        body = {"message": text[:500].decode(errors="replace")}
    return body if isinstance(body, dict) else {}


def seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdigit() else None


__all__ = ["ApiError", "Body", "Client", "Http", "Kind", "Limiter", "Transport"]
