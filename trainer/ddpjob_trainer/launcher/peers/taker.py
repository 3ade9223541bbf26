"""The taking side: files of an item, from one of several nodes, into a folder that appears whole or not at all.

Why apart: every rule of a fetch is here: what is asked of whom, what is checked, what is left where it breaks off. A
file is hashed while it comes; what an earlier try left is kept where its bytes are the right ones, and asked for from
there on. Must not: trust a size, a name or a hash that was not in the sealed manifest, or hold more than a chunk.
"""

import contextlib
import hashlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddpjob_trainer.checkpoint_writing import replace_directory, sync_directory
from ddpjob_trainer.checkpoints import MANIFEST, read_manifest
from ddpjob_trainer.fence import Fence
from ddpjob_trainer.launcher.peers.channel import Broken, Channel
from ddpjob_trainer.launcher.peers.items import MAX_FILES, OWN, Entry, NotHere, inside_parts
from ddpjob_trainer.launcher.peers.shelf import Cancelled
from ddpjob_trainer.launcher.words import in_bytes

CHUNK_BYTES = 1 << 20
CONNECT_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""A giver whose disk is busy may be silent this long; one that computes a hash says so (`giver.BUSY_SECONDS`)."""
CALL_AGAIN_SECONDS = 20.0
"""After having been silent ourselves for this long: a giver waits little longer (`giver.IDLE_SECONDS`)."""
TRIES = 2
"""At one source without a byte in between."""
HALF = ".tmp-peer"
"""Ends the name of what is being fetched; there is one taker in a folder."""


class NoRoom(Exception):
    """It cannot be taken by this node, whoever gives; the message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where a node gives."""

    node: int
    host: str
    port: int


@dataclass(kw_only=True)
class Watch:
    """How far a fetch is, and whether it is still wanted; shared with the event loop's thread."""

    done_bytes: int = 0
    total_bytes: int = 0
    source: int | None = None
    fetched_bytes: int = 0
    """What came over the network."""
    slow: bool = False
    """In the background of a training: half of the time is left to others."""
    left_out: list[str] = field(default_factory=list)
    """What was not taken though it is elsewhere, and why."""
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _connection: socket.socket | None = None

    def on(self, connection: socket.socket | None) -> None:
        """What is waited on from now on.

        Raises:
            Cancelled: nothing is, any more.
        """
        self._connection = connection
        if self.cancelled:
            raise Cancelled

    def cancel(self) -> None:
        """End it soon; a connection that waits is woken."""
        self._cancelled.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was cancelled within this time."""
        return self._cancelled.wait(seconds)

    def count(self, count: int) -> None:
        """More bytes are there.

        Raises:
            Cancelled: it is not wanted any more.
        """
        self.done_bytes += count
        if self.cancelled:
            raise Cancelled


class Source:
    """A connection to a giver, asked for one thing after the other; made again after a silence of ours."""

    def __init__(self, address: Address, token: bytes, watch: Watch) -> None:
        """Connect.

        Raises:
            Broken: nobody is there, or nobody who knows the token.
        """
        self.node = address.node
        self._address = address
        self._token = token
        self._watch = watch
        watch.source = address.node
        self._channel = self._call()

    def _call(self) -> Channel:
        self._heard_at = time.monotonic()
        address, watch = self._address, self._watch
        try:
            connection = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
        except OSError as error:
            raise Broken(error.strerror or str(error)) from error
        try:
            watch.on(connection)
            return Channel(connection, self._token, giver=False, seconds=SILENT_SECONDS)
        except BaseException:
            connection.close()
            raise

    def ask(self, op: str, **words: Any) -> dict[str, Any]:
        """An answer.

        Raises:
            NotHere: the giver does not have it.
            Broken: the giver went away.
            Cancelled: it is not wanted any more.
        """
        if time.monotonic() >= self._heard_at + CALL_AGAIN_SECONDS:
            self._channel.close()
            self._channel = self._call()
        before = self._watch.done_bytes
        self._channel.send({"op": op, **words})
        while isinstance(read := (answer := self._channel.receive()).get("busy"), int):
            # What is read there is not here yet, but whoever watches sees that it goes on.
            self._watch.done_bytes = before
            self._watch.count(read)
        self._watch.done_bytes = before
        self._heard_at = time.monotonic()
        if "error" in answer:
            raise NotHere(str(answer["error"])[:512])
        return answer

    def awaited(self) -> None:
        """The connection that is waited on from now on, where there are several.

        Raises:
            Cancelled: nothing is, any more.
        """
        self._watch.on(self._channel.socket)

    def items(self) -> object:
        return self.ask("list").get("items")

    def manifest(self, name: str, place: str = OWN) -> dict[str, Entry]:
        return entries(self.ask("manifest", place=place, name=name))

    def entry(self, place: str, name: str, inside: str) -> Entry:
        found = entries(self.ask("entry", place=place, name=name, inside=inside)).get(inside)
        if found is None:
            raise NotHere(f"{name}/{inside} was not described")
        return found

    def fetch(self, place: str, name: str, inside: str, entry: Entry, path: Path) -> None:
        """Write one file, checked and on the disk.

        Raises:
            NotHere: what the giver has is not what the manifest says.
            Broken: the connection broke off; what came stays, to go on from.
            OSError: it cannot be written here.
        """
        for fresh in (False, True):
            if fresh:
                path.unlink(missing_ok=True)
            if self._fetch(place, name, inside, entry, path):
                os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
                return
        path.unlink(missing_ok=True)
        raise NotHere(f"{name}/{inside} does not have the SHA-256 of its manifest there")

    def _fetch(self, place: str, name: str, inside: str, entry: Entry, path: Path) -> bool:
        """Whether the file is as the manifest says."""
        watch, digest, before = self._watch, hashlib.sha256(), watch_mark(self._watch)
        path.parent.mkdir(parents=True, exist_ok=True)
        if size_of(path) > entry.size:
            path.unlink()
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with path.open("ab+", buffering=0) as stream:
            stream.seek(0)
            while count := stream.readinto(buffer):
                digest.update(buffer[:count])
                watch.count(count)
            offset = stream.tell()
            if offset < entry.size:
                answer = self.ask("file", place=place, name=name, inside=inside, offset=offset)
                if answer.get("size") != entry.size - offset:
                    raise NotHere(f"{name}/{inside} has another size than its manifest says")
            while offset < entry.size:
                self._heard_at = began = time.monotonic()
                count = self._channel.receive_into(buffer[: min(CHUNK_BYTES, entry.size - offset)])
                digest.update(buffer[:count])
                write_all(stream.fileno(), buffer[:count])
                offset += count
                watch.fetched_bytes += count
                watch.count(count)
                if watch.slow and watch.wait(time.monotonic() - began):
                    raise Cancelled
            os.fsync(stream.fileno())
        if digest.hexdigest() == entry.sha256:
            return True
        watch.done_bytes = before
        return False

    def close(self) -> None:
        self._watch._connection = None
        self._channel.close()


def watch_mark(watch: Watch) -> int:
    return watch.done_bytes


def write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def entries(answer: Mapping[str, Any]) -> dict[str, Entry]:
    """The files of a manifest that came over the wire.

    Raises:
        NotHere: it is none that we follow.
    """
    files = answer.get("files")
    if not isinstance(files, dict) or not 0 < len(files) <= MAX_FILES:
        raise NotHere(f"a manifest without files, or with more than {MAX_FILES}")
    found = {}
    for inside, entry in files.items():
        inside_parts(inside)
        try:
            found[inside] = Entry(
                size=int(entry["size"]), sha256=str(entry["sha256"]), mtime_ns=int(entry["mtime_ns"])
            )
        except (TypeError, KeyError, ValueError) as error:
            raise NotHere(f"{inside}: not described as a file: {error!r}") from error
        if found[inside].size < 0:
            raise NotHere(f"{inside}: a size below 0")
    return found


def take_step(
    name: str,
    target: Path,
    sources: Sequence[Address],
    *,
    token: bytes,
    fence: Fence,
    watch: Watch,
) -> dict[int, str]:
    """Fetch a step into `target` from the first source that has it whole; returns why each one before failed.

    An answer that names every source means that none could give it.

    Raises:
        NoRoom: it cannot be written here.
        Cancelled: it is not wanted any more.
        Fenced: a newer coordinator is in charge.
    """
    failed: dict[int, str] = {}
    for address in sources:
        tries = TRIES
        while tries:
            before = watch.fetched_bytes
            watch.done_bytes = 0
            try:
                fetch_step(name, target, address, token=token, fence=fence, watch=watch)
                return failed
            except NotHere as error:
                failed[address.node] = str(error)
                break
            except Broken as error:
                if watch.cancelled:
                    raise Cancelled from error
                failed[address.node] = str(error)
                tries = TRIES if watch.fetched_bytes > before else tries - 1
                if tries and watch.wait(0.2):
                    raise Cancelled from error
            except OSError as error:
                raise NoRoom(f"{name} cannot be written to {target}: {error.strerror or error}") from error
    return failed


def fetch_step(
    name: str, target: Path, address: Address, *, token: bytes, fence: Fence, watch: Watch
) -> None:
    """Fetch a step from one source."""
    source = Source(address, token, watch)
    try:
        files = source.manifest(name)
        if MANIFEST not in files or any("/" in inside or not inside for inside in files):
            raise NotHere(f"{name} has no manifest, or folders in it")
        beside = target / f"{name}{HALF}"
        beside.mkdir(parents=True, exist_ok=True)
        for path in beside.iterdir():
            if path.name not in files:
                path.unlink()
        watch.total_bytes = sum(entry.size for entry in files.values())
        check_room(target, watch.total_bytes - sum(size_of(beside / inside) for inside in files), name)
        for inside in sorted(files, key=lambda inside: (inside == MANIFEST, inside)):
            source.fetch(OWN, name, inside, files[inside], beside / inside)
    finally:
        source.close()
    try:
        manifest = read_manifest(beside)
    except ValueError as error:
        raise NotHere(str(error)) from error
    described = {inside: (entry.size, entry.sha256) for inside, entry in files.items() if inside != MANIFEST}
    if described != {inside: (file.size_bytes, file.sha256) for inside, file in manifest.files.items()}:
        shutil.rmtree(beside, ignore_errors=True)
        raise NotHere(f"{name}: its manifest is of other files")
    sync_directory(beside)
    fence.check()
    replace_directory(beside, target / name)
    sync_directory(target)


def check_room(target: Path, missing_bytes: int, name: str) -> None:
    """Raises:
    NoRoom: there is less than that.
    """
    free = free_bytes(target)
    if missing_bytes > free:
        raise NoRoom(
            f"no room for {name} in {target}: {in_bytes(missing_bytes)} are missing and {in_bytes(free)} are free; make "
            "room, or give the node a larger volume"
        )


def free_bytes(folder: Path) -> int:
    """What may still be written there."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def size_of(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0
