"""The launcher's HTTP port: `/metrics`, `/history`, `/healthz`, `/readyz`, `POST /coordinator`, and in pod 0 `/status`,
`POST /stop` and `POST /addresses`.

Why apart: a few requests of one line each need no framework, and the launcher's start has no time for one.
Must not: read the body of a stranger, keep a connection, or answer what is for key holders without the key.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

from ddpjob_trainer.launcher.announcing import caller
from ddpjob_trainer.launcher.exposition import CONTENT_TYPE
from ddpjob_trainer.launcher.timing import HTTP_SECONDS

PHRASES = {
    200: "OK",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}
"""What is answered here; the enum of the standard library's `http` takes longer to import than this server."""
MAX_HEAD_BYTES = 16384
MAX_BODY_BYTES = 262144
"""Addresses of the largest job."""
MAX_CLIENTS = 64


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is behind the paths."""

    metrics: Callable[[], str]
    history: Callable[[], bytes]
    """JSON: numbers over time, as open as the metrics."""
    ready: Callable[[], bool]
    key: str
    """Bearer of `/status`, `/stop` and `/addresses`."""
    proof: Callable[[str], str]
    """Bearer of `/coordinator?ADDRESS&TERM`, by what is behind the question mark."""
    announced: Callable[[str, int], None]
    """Told of a coordinator's address and term."""
    status: Callable[[], bytes] | None
    """JSON; None in a pod that has no coordinator."""
    stop: Callable[[], None] | None
    addresses: Callable[[bytes], None] | None
    """Told of launchers' addresses, as JSON; raises ValueError where it is none."""


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """Serves a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._clients = 0
        self._server: asyncio.Server | None = None

    async def start(self, host: str | None, port: int) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        self._server = await asyncio.start_server(self._client, host, port, limit=MAX_HEAD_BYTES)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients += 1
        try:
            async with asyncio.timeout(HTTP_SECONDS):
                answer = await self._answer(reader)
                writer.write(head(answer) + answer.body)
                await writer.drain()
        except (OSError, TimeoutError):
            pass  # a client that went away or dawdles gets nothing
        finally:
            self._clients -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader) -> Answer:
        if self._clients > MAX_CLIENTS:
            return Answer(503)
        try:
            text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            return Answer(400)
        first, *lines = text.split("\r\n")
        words = first.split(" ")
        if len(words) != 3:
            return Answer(400)
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        path, _, query = words[1].partition("?")
        refused = self.refusal(words[0], path, query, headers.get("authorization", ""))
        if refused is not None:
            return refused
        length = headers.get("content-length", "0")
        body = b""
        if path == "/addresses":
            if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
                return Answer(400)
            try:
                body = await reader.readexactly(int(length))
            except asyncio.IncompleteReadError:
                return Answer(400)
        return self.answer(path, query, body)

    def refusal(self, method: str, path: str, query: str, authorization: str) -> Answer | None:
        """Why a request is not answered."""
        site = self._site
        allowed = dict.fromkeys(("/metrics", "/history", "/healthz", "/readyz"), "GET")
        allowed["/coordinator"] = "POST"
        keys = {"/coordinator": site.proof(query)} if path == "/coordinator" else {}
        if site.status is not None:
            allowed |= {"/status": "GET", "/stop": "POST", "/addresses": "POST"}
            keys |= {"/status": site.key, "/stop": site.key, "/addresses": site.key}
        if path not in allowed:
            return Answer(404)
        if method != allowed[path]:
            return Answer(405)
        if path in keys and not hmac.compare_digest(authorization.encode(), f"Bearer {keys[path]}".encode()):
            return Answer(401)
        return None

    def answer(self, path: str, query: str, body: bytes) -> Answer:
        """The answer to a request that may be made."""
        site = self._site
        if path == "/coordinator":
            try:
                site.announced(*caller(query))
            except ValueError:
                return Answer(400)
            return Answer(202, b"connecting\n")
        if path == "/addresses" and site.addresses is not None:
            try:
                site.addresses(body)
            except ValueError:
                return Answer(400)
            return Answer(202, b"calling\n")
        if path == "/metrics":
            return Answer(200, site.metrics().encode(), CONTENT_TYPE)
        if path == "/history":
            return Answer(200, site.history(), "application/json")
        if path == "/status" and site.status is not None:
            return Answer(200, site.status(), "application/json")
        if path == "/stop" and site.stop is not None:
            site.stop()
            return Answer(202, b"stopping\n")
        if path == "/readyz" and not site.ready():
            return Answer(503, b"ranks have not joined\n")
        return Answer(200, b"ok\n")


def head(answer: Answer) -> bytes:
    return (
        f"HTTP/1.1 {answer.status} {PHRASES[answer.status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
