"""Checkpoints as directories: which are complete, how one is written, how one is opened.

`<directory>/step-00000040/` is complete if and only if it exists under that name. It is written as
`step-00000040.tmp-<pid>` beside it, every file fsynced, `manifest.json` (sizes, SHA-256, position) last, then renamed,
and the directory fsynced. A writer with an older term than the coordinator's renames nothing.

Why apart: the launcher lists checkpoints without torch, and what makes a checkpoint whole does not depend on what is
in it. Must not: import torch, or know what the files mean.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from ddpjob_trainer.errors import CheckpointDamaged

FORMAT = 1
MANIFEST = "manifest.json"
STEP_NAME = re.compile(r"^step-(\d{8,})$")
READ_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where in the training a checkpoint was taken."""

    step: int
    """Optimizer steps made."""
    epoch: int
    """The epoch that goes on, counted from 0."""
    samples_consumed: int
    """Samples of that epoch's order already used, over all ranks."""
    global_batch_size: int
    world_size: int
    """For people; nothing depends on it."""
    dataset_size: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class File:
    """One file as the manifest has it."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`manifest.json`."""

    position: Position
    files: Mapping[str, File]
    entrypoint: str = ""
    term: int = 0
    written_at: float = 0.0
    """Unix time."""
    format: int = FORMAT

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())


class Fenced(Exception):
    """A newer coordinator is in charge: this writer belongs to the past and leaves no checkpoint."""


class OtherFormat(ValueError):
    """The manifest of a trainer older or newer than this one, which may well be whole."""


class Writable(Protocol):
    """What a file's content is written to."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...


Content = Callable[[Writable], None]
"""Writes one file's content."""


@dataclass(frozen=True, kw_only=True)
class Fence:
    """Keeps a writer of an older term from publishing."""

    term: int = 0
    files: tuple[Path, ...] = ()
    """Files that hold the highest term seen: the launcher's, and in a shared directory the one beside the steps."""
    raised: Path | None = None
    """The one of them that this writer raises to its own term."""

    def check(self) -> None:
        """Return if this writer may publish.

        Raises:
            Fenced: a higher term has been seen.
        """
        for path in self.files:
            seen = read_term(path)
            if seen > self.term:
                raise Fenced(f"term {seen} has taken over from term {self.term} ({path})")
        self.take_over()

    def take_over(self) -> None:
        """From now on, writers of an older term publish nothing in the shared directory.

        Raises:
            OSError: the term cannot be written.
        """
        if self.raised is not None and read_term(self.raised) < self.term:
            self.raised.parent.mkdir(parents=True, exist_ok=True)
            beside = self.raised.with_name(f"{self.raised.name}.tmp-{os.getpid()}")
            beside.write_text(str(self.term))
            beside.replace(self.raised)


def read_term(path: Path) -> int:
    """The term in a file; 0 where there is none."""
    try:
        return int(path.read_text().strip() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def step_path(directory: Path, step: int) -> Path:
    return directory / f"step-{step:08d}"


def complete_steps(directory: Path) -> tuple[int, ...]:
    """Steps of the complete checkpoints, ascending; hashes are checked when one is opened."""
    return tuple(step for step in named_steps(directory) if has_its_files(step_path(directory, step)))


def named_steps(directory: Path) -> tuple[int, ...]:
    """Steps that were complete once, ascending: a folder gets such a name when all is in it."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return tuple(sorted(int(match[1]) for name in names if (match := STEP_NAME.match(name))))


def has_its_files(path: Path) -> bool:
    try:
        manifest = read_manifest(path)
        return all((path / name).stat().st_size == file.size_bytes for name, file in manifest.files.items())
    except (OSError, ValueError):
        return False


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint in `path`.

    Raises:
        OSError: it cannot be read.
        OtherFormat: it is of another format.
        ValueError: it is no manifest.
    """
    document = json.loads((path / MANIFEST).read_bytes())
    found = document.get("format") if isinstance(document, dict) else None
    if found != FORMAT:
        other = OtherFormat if isinstance(found, int) else ValueError
        raise other(f"{path / MANIFEST}: not a manifest of format {FORMAT}")
    try:
        position = Position(
            **{field.name: int(document["position"][field.name]) for field in fields(Position)}
        )
        files = {
            plain_name(name): File(size_bytes=int(entry["size_bytes"]), sha256=str(entry["sha256"]))
            for name, entry in document["files"].items()
        }
        return Manifest(
            position=position,
            files=files,
            entrypoint=str(document["entrypoint"]),
            term=int(document["term"]),
            written_at=float(document["written_at"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / MANIFEST}: {error!r}") from error


def plain_name(name: str) -> str:
    if Path(name).name != name:
        raise ValueError(f"{name!r} is not a file name")
    return name


def open_step(
    directory: Path, step: int, *, hashes: bool = True, on_bytes: Callable[[int], None] | None = None
) -> tuple[Path, Manifest]:
    """The checkpoint of `step`, every file compared with its hash (without `hashes`: with its size).

    `on_bytes` is told of every chunk that was read; what it raises ends the reading.

    Raises:
        CheckpointDamaged: it is not whole; it has been renamed to `step-….damaged`.
        OSError: it cannot be read here and now, which says nothing of what is in it (`filename` is set).
        OtherFormat: it is of another format.
    """
    path = step_path(directory, step)
    try:
        manifest = read_manifest(path)
        problems = [
            problem
            for name, file in manifest.files.items()
            if (problem := compare(path / name, file, hashes=hashes, on_bytes=on_bytes))
        ]
        if manifest.position.step != step:
            problems.append(f"{MANIFEST} is of step {manifest.position.step}")
    except OtherFormat:
        raise
    except (FileNotFoundError, ValueError) as error:
        problems = [str(error)]
    except OSError as error:
        error.filename = error.filename or str(path)  # reading, unlike opening, does not name it
        raise
    else:
        if not problems:
            return path, manifest
    aside = set_aside(path)
    raise CheckpointDamaged(
        f"checkpoint {path} is damaged ({'; '.join(problems)}); it is now {aside.name} and will not be used"
    )


def compare(
    path: Path, file: File, *, hashes: bool = True, on_bytes: Callable[[int], None] | None = None
) -> str | None:
    """What is wrong with a file, or None."""
    size = path.stat().st_size
    if size != file.size_bytes:
        return f"{path.name} has {size} bytes instead of {file.size_bytes}"
    if not hashes:
        return None
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(READ_BYTES):
            digest.update(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
    return (
        None
        if digest.hexdigest() == file.sha256
        else f"{path.name} does not have the SHA-256 it was written with"
    )


def lost_part(path: Path) -> str | None:
    """What a step that was whole has lost, by its sizes; None where it is whole, gone, or not ours to judge."""
    try:
        manifest = read_manifest(path)
    except FileNotFoundError:
        # Its writer takes it away as a whole, and puts a new one there as a whole.
        return f"{MANIFEST} is missing" if path.is_dir() and not (path / MANIFEST).exists() else None
    except OtherFormat:
        return None
    except ValueError as error:
        return str(error)  # cut off
    except OSError:
        return None  # no permission, or a disk that may answer again
    problem = next(
        (lost for name, file in manifest.files.items() if (lost := lacks(path / name, file))), None
    )
    try:
        # A new one that was put there meanwhile is not to be judged by the manifest of the old.
        return problem if problem is not None and read_manifest(path) == manifest else None
    except (OSError, ValueError):
        return None


def lacks(path: Path, file: File) -> str | None:
    """What a file lacks by its size; None where it is whole, or cannot be judged."""
    try:
        return compare(path, file, hashes=False)
    except FileNotFoundError:
        return f"{path.name} is missing"
    except OSError:
        return None


def set_aside(path: Path, why: str = "damaged") -> Path:
    """Rename a checkpoint that is not to be used; another rank may have done it already."""
    aside = path.with_name(f"{path.name}.{why}")
    try:
        if path.exists() and aside.exists():
            shutil.rmtree(aside)
        path.rename(aside)
    except FileNotFoundError:
        pass
    return aside


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
        OSError: the disk is full or broken; nothing is left behind.
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
    """Rename; a checkpoint of the same step from before a restart gives way."""
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
