"""Checkpoints as directories: which are complete, what is wrong with one, how one is opened.

`<directory>/step-00000040/` is complete if and only if it exists under that name: it gets the name when all is in it
(`checkpoint_writing.py`). Its `manifest.json` has sizes, SHA-256 and the position.

Why apart: the launcher lists checkpoints without torch, and what makes a checkpoint whole does not depend on what is
in it. Must not: import torch, know what the files mean, or write one.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

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


class OtherFormat(ValueError):
    """The manifest of a trainer older or newer than this one, which may well be whole."""


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


def usable_steps(directory: Path) -> tuple[int, ...]:
    """Steps that this version of DDPJob or another one can go on from, ascending; `open_step` refuses the other's."""
    return tuple(step for step in named_steps(directory) if is_usable(step_path(directory, step)))


def is_usable(path: Path) -> bool:
    return has_its_files(path) or is_of_another_version(path)


def is_of_another_version(path: Path) -> bool:
    """Whether a step may well be whole and cannot be read here: it stays as it is, and is not gone past unsaid."""
    try:
        read_manifest(path)
    except OtherFormat:
        return True
    except (OSError, ValueError):
        pass
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
        problem = f"{path / MANIFEST}: not a manifest of format {FORMAT}"
        if isinstance(found, int):
            raise OtherFormat(
                f"{problem}: another version of DDPJob wrote it; go on with that version, or move {path.name} away to "
                "go on without it"
            )
        raise ValueError(problem)
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
    """What a step that was whole has lost, by its sizes; None where it is whole, gone, or not ours to judge.

    Whether it is still the same folder is the caller's to look at: its writer may put a new one there meanwhile.
    """
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
    return next((lost for name, file in manifest.files.items() if (lost := lacks(path / name, file))), None)


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
