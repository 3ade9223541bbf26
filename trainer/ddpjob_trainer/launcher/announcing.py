"""A coordinator calls launchers that have not found it, at addresses that the operator knows.

Why: their way to it is a name, and a name server may give an old answer, or an old "no such name", for half a minute.
A launcher that is called connects at once, and proves and is proved to as ever: a call says where, never what. One that
obeys an older coordinator, which may be cut off from the operator only, leaves it for the newer.
Must not: trust an address, or wait for an answer that does not come.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Mapping

from ddpjob_api.messages import announcement
from ddpjob_trainer.launcher.timing import CALL_SECONDS

AT_ONCE = 64


class Announcer:
    """Calls, each launcher once at a time."""

    def __init__(
        self, *, address: str, term: int, port: int, token: bytes, missing: Callable[[], Iterable[int]]
    ) -> None:
        """Args:
        address, term: the coordinator's own.
        port: of the launchers' HTTP servers.
        missing: the nodes that are not there.
        """
        self._caller = f"{address}&{term}"
        self._port = port
        self._token = token
        self._missing = missing
        self._calling: set[int] = set()
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def call(self, addresses: Mapping[int, str]) -> None:
        """Tell those that are missing where the coordinator is."""
        missing = set(self._missing()) - self._calling
        await asyncio.gather(*(self._call(node, host) for node, host in addresses.items() if node in missing))

    async def _call(self, node: int, host: str) -> None:
        self._calling.add(node)
        try:
            async with self._limit, asyncio.timeout(CALL_SECONDS):
                reader, writer = await asyncio.open_connection(host, self._port)
                try:
                    writer.write(
                        f"POST /coordinator?{self._caller} HTTP/1.1\r\nHost: launcher\r\nContent-Length: 0\r\n"
                        f"Authorization: Bearer {announcement(self._token, self._caller)}\r\n\r\n".encode()
                    )
                    await reader.readline()
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except (OSError, TimeoutError, ValueError):
            pass  # the operator says it again while the launcher is missing
        finally:
            self._calling.discard(node)


def caller(query: str) -> tuple[str, int]:
    """Address and term of a coordinator that calls.

    Raises:
        ValueError: there is no term.
    """
    address, _, term = query.partition("&")
    return address, int(term)


def addresses_of(body: bytes) -> dict[int, str]:
    """Addresses by node, as the operator sends them; what is none is left out.

    Raises:
        ValueError: it is no JSON object.
    """
    found = json.loads(body)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004  (one error for all that is wrong with it)
    return {
        int(node): host
        for node, host in found.items()
        if node.isdecimal() and node.isascii() and isinstance(host, str) and is_address(host)
    }


def is_address(text: str) -> bool:
    """Whether a text may be an IP address (nothing else is put into a request)."""
    return 0 < len(text) <= 45 and all(c in "0123456789abcdefABCDEF.:" for c in text)
