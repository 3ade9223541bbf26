"""One connection that carries lines, for both ends: bounded, and lost when it was silent for too long.

Why apart: what a peer may do to us before and after it has proved itself is limited in one place. The time of the
last byte is taken when it arrives, not when it is read, so that a busy event loop takes no peer for lost.
Must not: know which messages make sense (`server.py`, `link.py`).
"""

import asyncio
import json
import socket
from collections import deque

from ddpjob_api.codec import Invalid
from ddpjob_api.messages import MAX_LINE_BYTES, SILENCE_SECONDS, Message, decode, encode

MAX_WAITING_LINES = 1024
MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""A peer that does not read gets no more than this."""


class Lost(ConnectionError):
    """The connection is over; the message says why."""


class Lines(asyncio.Protocol):
    """The lines of one connection."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._wake = asyncio.Event()
        self._lost: str | None = None
        self.heard = self._loop.time()
        self.connected = asyncio.Event()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.heard = self._loop.time()
        self.connected.set()

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        self._rest += data
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        if any(len(line) > MAX_LINE_BYTES for line in (*lines, rest)):
            self.abort(f"a line of more than {MAX_LINE_BYTES} bytes")
            return
        self._lines.extend(bytes(line) for line in lines)
        if len(self._lines) > MAX_WAITING_LINES:
            self.abort(f"more than {MAX_WAITING_LINES} lines at once")
            return
        if lines:
            self._wake.set()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._over(str(error) if error is not None else "closed by the other end")

    # our side

    async def receive(self, seconds: float = SILENCE_SECONDS) -> bytes:
        """The next line.

        Raises:
            Lost: the connection ended, or not a byte came for `seconds`.
        """
        while not self._lines:
            if self._lost is not None:
                raise Lost(self._lost)
            remaining = self.heard + seconds - self._loop.time()
            if remaining <= 0:
                self.abort(f"silent for {seconds:.0f} s")
                continue
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), remaining)
            except TimeoutError:
                continue
        return self._lines.popleft()

    def send(self, message: Message) -> None:
        """Send, if there is still somebody to send to."""
        transport = self._transport
        if transport is None or transport.is_closing() or self._lost is not None:
            return
        if transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.abort("it does not read what it is sent")
            return
        transport.write(encode(message))

    def close(self) -> None:
        """Send what is waiting, then close."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str) -> None:
        """Close at once, for a reason that `receive` gives."""
        self._over(why)
        self._lines.clear()
        if self._transport is not None:
            self._transport.abort()

    @property
    def peer(self) -> str:
        """The other end's address, for messages."""
        found = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{found[0]}:{found[1]}" if isinstance(found, tuple) else "unknown"

    def _over(self, why: str) -> None:
        if self._lost is None:
            self._lost = why
        self._wake.set()


def read(line: bytes) -> Message:
    """A message, or why the line is none.

    Raises:
        Lost: it is not of our protocol; where the peer speaks another version, the message says which.
    """
    try:
        return decode(line)
    except Invalid as error:
        other = foreign_protocol(line)
        if other is not None:
            raise Lost(other_protocol(other)) from error
        raise Lost(f"not a message of this protocol: {str(error)[:200]}") from error


def foreign_protocol(line: bytes) -> int | None:
    """The protocol version that a first line names, if it is readable at all."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    protocol = found.get("protocol") if isinstance(found, dict) else None
    return protocol if isinstance(protocol, int) and not isinstance(protocol, bool) else None


def other_protocol(theirs: int) -> str:
    from ddpjob_api.messages import PROTOCOL

    return (
        f"it speaks protocol {theirs} and this launcher {PROTOCOL}; all pods of a running job need the same trainer "
        "version, and the operator replaces those that have another"
    )
