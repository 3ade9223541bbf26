"""The launcher's HTTP port: `/metrics`, `/history`, `/healthz`, `/readyz`, and in pod 0 `/status` and `POST /stop`.

Why apart: a few requests of one line each need no framework, and the launcher's start has no time for one.
Must not: read a body, keep a connection, or answer `/status` and `/stop` without the bearer key.
"""

import asyncio
import contextlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

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
MAX_CLIENTS = 64


@dataclass(frozen=True, kw_only=True)
class Site:
    """What is behind the paths."""

    metrics: Callable[[], str]
    history: Callable[[], bytes]
    """JSON: numbers over time, as open as the metrics."""
    ready: Callable[[], bool]
    key: str
    """Bearer of `/status` and `/stop`."""
    status: Callable[[], bytes] | None
    """JSON; None in a pod that has no coordinator."""
    stop: Callable[[], None] | None


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
        return self.route(words[0], words[1].partition("?")[0], headers.get("authorization", ""))

    def route(self, method: str, path: str, authorization: str) -> Answer:
        """The answer to one request."""
        site = self._site
        allowed = {"/metrics": "GET", "/history": "GET", "/healthz": "GET", "/readyz": "GET"}
        if site.status is not None:
            allowed |= {"/status": "GET", "/stop": "POST"}
        if path not in allowed:
            return Answer(404)
        if method != allowed[path]:
            return Answer(405)
        if path in {"/status", "/stop"} and not hmac.compare_digest(
            authorization.encode(), f"Bearer {site.key}".encode()
        ):
            return Answer(401)
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
