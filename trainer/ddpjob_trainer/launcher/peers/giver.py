"""The giving side: a port on which the other launchers of the job may read this node's checkpoints.

Why apart: it lives in threads of its own and shares nothing with the event loop but a folder that is only read.
Must not: write, or answer anybody who has not proved that he knows the token.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from ddpjob_trainer.launcher.peers.channel import Broken, Channel
from ddpjob_trainer.launcher.peers.items import NotHere, entry_of, manifest_of, open_file, path_of
from ddpjob_trainer.launcher.peers.shelf import Shelf
from ddpjob_trainer.launcher.peers.trees import Tree

MAX_TAKERS = 32
"""Served at once; the next ones wait in the kernel's queue."""
STRANGER_SECONDS = 5.0
IDLE_SECONDS = 60.0
"""A taker may be silent this long; one that computes for longer calls again."""
BUSY_SECONDS = 5.0
"""Between two words to a taker that waits for the hash of a large file: it does not wait for one who is silent."""


class Giver:
    """Serves one shelf."""

    def __init__(self, shelf: Shelf, token: bytes) -> None:
        self.shelf = shelf
        self.port = 0
        """0 until it listens."""
        self.given_bytes = 0
        self._token = token
        self._places = threading.BoundedSemaphore(MAX_TAKERS)
        self._listener: socket.socket | None = None
        self._open: set[Channel] = set()

    def start(self, host: str | None) -> None:
        """Listen on a port that the kernel chooses.

        Raises:
            OSError: no socket is to be had.
        """
        family = socket.AF_INET6 if host is not None and ":" in host else socket.AF_INET
        listener = socket.create_server((host or "", 0), family=family, backlog=128)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name="giver", daemon=True).start()

    def close(self) -> None:
        """Stop at once; what a taker has is checked by the taker."""
        if self._listener is not None:
            # A blocked accept() is woken by shutdown, not by close.
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for channel in tuple(self._open):
            channel.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            self._places.acquire()
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), name="give", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel: Channel | None = None
        try:
            channel = Channel(connection, self._token, giver=True, seconds=STRANGER_SECONDS)
            self._open.add(channel)
            request = channel.receive()
            connection.settimeout(IDLE_SECONDS)
            while True:
                self._answer(channel, request)
                request = channel.receive()
        except (Broken, OSError):
            pass  # a stranger, or a taker that has all it wants; a taker says itself what it misses
        finally:
            connection.close()
            if channel is not None:
                self._open.discard(channel)
            self._places.release()

    def _answer(self, channel: Channel, request: dict[str, Any]) -> None:
        """One request of a launcher of this job; what is not here is said."""
        place, name = str(request.get("place")), str(request.get("name"))
        try:
            match request.get("op"):
                case "list":
                    channel.send({"items": Tree.of(self.shelf).document()})
                case "manifest":
                    files = manifest_of(self.shelf, place, name, telling(channel))
                    channel.send({"files": {inside: asdict(entry) for inside, entry in files.items()}})
                case "entry":
                    inside = str(request.get("inside"))
                    descriptor = open_file(self.shelf, place, name, inside)
                    os.close(descriptor)
                    entry = entry_of(path_of(self.shelf, place, name) / inside, telling(channel))
                    channel.send({"files": {inside: asdict(entry)}})
                case "file":
                    descriptor = open_file(self.shelf, place, name, str(request.get("inside")))
                    try:
                        self._send_file(channel, descriptor, int(request.get("offset") or 0))
                    finally:
                        os.close(descriptor)
                case other:
                    channel.send({"error": f"{str(other)[:32]!r} is no request"})
        except (NotHere, ValueError, TypeError) as error:
            channel.send({"error": str(error)[:512]})

    def _send_file(self, channel: Channel, descriptor: int, offset: int) -> None:
        """The rest of a file from an offset on; a file that shrinks meanwhile breaks the connection."""
        end = os.fstat(descriptor).st_size
        if not 0 <= offset <= end:
            raise NotHere(f"offset {offset} of a file of {end} bytes")
        channel.send({"size": end - offset})
        with open(descriptor, "rb", buffering=0, closefd=False) as stream:
            sent = channel.socket.sendfile(stream, offset, end - offset) if end > offset else 0
        self.given_bytes += sent
        if sent < end - offset:
            raise Broken("the file has become shorter")


def telling(channel: Channel) -> Callable[[int], None]:
    """Takes what was read of an item, and tells the taker now and then how much that is."""
    read, told = 0, time.monotonic()

    def count(count: int) -> None:
        nonlocal read, told
        read += count
        if time.monotonic() >= told + BUSY_SECONDS:
            channel.send({"busy": read})
            told = time.monotonic()

    return count
