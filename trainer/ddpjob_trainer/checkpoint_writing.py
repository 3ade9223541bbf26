"""How a checkpoint comes to be there whole or not at all, and how the old ones go.

It is written as `step-00000040.tmp-<pid>` beside its place, every file fsynced, `manifest.json` last, then renamed, and
the directory fsynced. A writer with an older term than the coordinator's renames nothing (`fence.py`).

Why apart: the loop writes on the disk and into memory, and a launcher puts what it took in its place, by one order of
syncs and renames; a reader needs none of it. Must not: import torch, know what the files mean, or judge a checkpoint
(`checkpoints.py`).
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from ddpjob_trainer.checkpoints import (
    MANIFEST,
    File,
    Manifest,
    Position,
    complete_steps,
    is_of_another_version,
    step_path,
)
from ddpjob_trainer.fence import Fence


class Writable(Protocol):
    """What a file's content is written to."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...


Content = Callable[[Writable], None]
"""Writes one file's content."""


def write_step(
    directory: Path,
    position: Position,
    contents: Mapping[str, Content],
    *,
    entrypoint: str = "",
    fence: Fence | None = None,
) -> Manifest:
    """Write a checkpoint so that it is there whole or not at all.

    Raises:
        OSError: the disk is full or broken, or another version's step is there; nothing is left behind.
        Fenced: a newer coordinator is in charge; nothing is left behind.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = step_path(directory, position.step)
    beside = final.with_name(f"{final.name}.tmp-{os.getpid()}")
    fence = fence or Fence()
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir()
        files = {name: write_file(beside / name, content) for name, content in contents.items()}
        manifest = Manifest(
            position=position, files=files, entrypoint=entrypoint, term=fence.term, written_at=time.time()
        )
        document = json.dumps(asdict(manifest), indent=1).encode()
        write_file(beside / MANIFEST, lambda stream: cast("None", stream.write(document)))
        sync_directory(beside)
        fence.check()
        replace_directory(beside, final)
        sync_directory(directory)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return manifest


def write_file(path: Path, content: Content) -> File:
    with path.open("wb") as stream:
        hashed = Hashed(stream)
        content(hashed)
        if hashed.error is not None:
            raise hashed.error
        stream.flush()
        os.fsync(stream.fileno())
    return File(size_bytes=hashed.size_bytes, sha256=hashed.digest.hexdigest())


class Hashed:
    """A stream that knows the size and hash of what went through.

    A failed write is kept and raised once the writer is done: torch.save writes from C++, where an exception in the
    middle ends the process (`std::terminate` in the archive's destructor) instead of reaching Python.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.digest = hashlib.sha256()
        self.size_bytes = 0
        self.error: OSError | None = None

    def write(self, data: bytes, /) -> int:
        length = memoryview(data).nbytes
        if self.error is None:
            try:
                self.stream.write(data)
            except OSError as error:
                self.error = error
            self.digest.update(data)
            self.size_bytes += length
        return length

    def flush(self) -> None:
        """The file is flushed and synced once, at its end."""


def replace_directory(source: Path, target: Path) -> None:
    """Rename; a checkpoint of the same step from before a restart gives way.

    Raises:
        FileExistsError: another version of DDPJob wrote that one, which stays.
    """
    if is_of_another_version(target):
        why = "one of the same step is of another version of DDPJob and stays; move it away"
        raise FileExistsError(errno.EEXIST, why, str(target))
    if not target.exists():
        source.rename(target)
        return
    old = target.with_name(f"{target.name}.tmp-{os.getpid()}-old")
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)
    source.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def prune(directory: Path, *, newest: int, keep: int) -> tuple[int, ...]:
    """Delete all but the `keep` newest checkpoints up to step `newest`; returns the steps deleted.

    Steps above `newest` are another history's (the nodes agreed on an older one) and are left to be overwritten.
    """
    old = [step for step in complete_steps(directory) if step <= newest][:-keep]
    for step in old:
        # First out of sight, so that no reader meets half of it.
        gone = step_path(directory, step).with_name(f"step-{step:08d}.tmp-{os.getpid()}-old")
        step_path(directory, step).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    return tuple(old)


def remove_leftovers(directory: Path) -> None:
    """Delete what dead writers left. A directory has one writer at a time, so whoever starts finds only the dead."""
    if directory.is_dir():
        for path in directory.glob("*.tmp-*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
