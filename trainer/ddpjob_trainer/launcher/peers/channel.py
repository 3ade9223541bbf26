"""One connection between two launchers of a job: both prove the token, and every word of either is sealed.

Why apart: what a stranger may do to us is limited in one place. The giver sends `GREETING` and a nonce, the taker its
own nonce; from both and the token follows the key that seals each message (HMAC-SHA256 over direction, number and
text), so a message of another connection, direction or order is none. File contents follow in the open; the sealed
manifest has their sizes and hashes. Nothing is parsed before its seal is checked.
Must not: know checkpoints. Sockets block, with a time-out: this runs in threads, beside the event loop.
"""

import contextlib
import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

GREETING = b"DDPJOB-PEER 1\n"
NONCE_BYTES = 16
SEAL_BYTES = hashlib.sha256().digest_size
MAX_MESSAGE_BYTES = 8 << 20
"""A manifest of `items.MAX_FILES` files fits."""
LENGTH = struct.Struct(">I")
GIVER, TAKER = b"giver", b"taker"


class Broken(ConnectionError):
    """The connection is of no use any more; the message says why."""


class Channel:
    """Sealed messages and plain bytes on a connected socket."""

    def __init__(self, connection: socket.socket, token: bytes, *, giver: bool, seconds: float) -> None:
        """Exchange the nonces.

        Raises:
            Broken: the other end is no launcher, or went away.
        """
        self.socket = connection
        connection.settimeout(seconds)
        with contextlib.suppress(OSError):  # a peer that has gone already is met below
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        mine = os.urandom(NONCE_BYTES)
        self._sent = self._received = 0
        self._me, self._other = (GIVER, TAKER) if giver else (TAKER, GIVER)
        if giver:
            self.send_bytes(GREETING + mine)
            nonces = mine + self.receive_bytes(NONCE_BYTES)
        else:
            if self.receive_bytes(len(GREETING)) != GREETING:
                raise Broken("it is no launcher of this version")
            nonces = self.receive_bytes(NONCE_BYTES) + mine
            self.send_bytes(mine)
        self._key = hmac.digest(token, b"peer|" + nonces, "sha256")

    def send(self, message: dict[str, Any]) -> None:
        """Send a message with its seal.

        Raises:
            Broken: the other end went away.
        """
        body = json.dumps(message, separators=(",", ":")).encode()
        self.send_bytes(LENGTH.pack(len(body)) + body + self._seal(self._me, self._sent, body))
        self._sent += 1

    def receive(self) -> dict[str, Any]:
        """The next message.

        Raises:
            Broken: the other end went away, was silent, or does not know the token.
        """
        (length,) = LENGTH.unpack(self.receive_bytes(LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise Broken(f"a message of {length} bytes, at most {MAX_MESSAGE_BYTES} are read")
        body = self.receive_bytes(length)
        seal = self.receive_bytes(SEAL_BYTES)
        if not hmac.compare_digest(seal, self._seal(self._other, self._received, body)):
            raise Broken("it does not know this job's token")
        self._received += 1
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Broken(f"a message that is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise Broken("a message that is no object")
        return found

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Broken(said(error)) from error

    def receive_bytes(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            try:
                chunk = self.socket.recv(min(count - len(found), 1 << 16))
            except OSError as error:
                raise Broken(said(error)) from error
            if not chunk:
                raise Broken("closed by the other end")
            found += chunk
        return bytes(found)

    def receive_into(self, buffer: memoryview) -> int:
        """Up to a buffer of plain bytes; at least one.

        Raises:
            Broken: the other end went away or was silent.
        """
        try:
            count = self.socket.recv_into(buffer)
        except OSError as error:
            raise Broken(said(error)) from error
        if not count:
            raise Broken("closed by the other end")
        return count

    def close(self) -> None:
        self.socket.close()

    def _seal(self, direction: bytes, number: int, body: bytes) -> bytes:
        return hmac.digest(self._key, direction + number.to_bytes(8, "big") + body, "sha256")


def said(error: OSError) -> str:
    """An error of a socket in words."""
    if isinstance(error, TimeoutError):
        return "silent for too long"
    return error.strerror or str(error)
