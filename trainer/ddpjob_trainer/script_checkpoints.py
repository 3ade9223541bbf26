"""Checkpoints that scripts leave by themselves: which are complete, and which is the newest.

Known layouts, anywhere below a directory: Hugging Face's Trainer (`checkpoint-<step>/`), Lightning (`*.ckpt` with
`step=<step>` in its name), Accelerate (`save_state`: a folder with an optimizer and a model). A file is whole when its
own index says so: the central directory of a zip (which `torch.save` writes last), the header of a `safetensors` file.

Why apart: what is complete is asked before torch is there, and says nothing about what is in it.
Must not: import torch, or read more of a file than its index.
"""

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TRAINER_STATE = "trainer_state.json"
"""Hugging Face writes it last."""
WEIGHTS = ("model.safetensors", "pytorch_model.bin", "adapter_model.safetensors", "adapter_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
FOLDER = re.compile(r"^checkpoint-(\d+)$")
LIGHTNING = re.compile(r"step=(\d+).*\.ckpt$")
NUMBER = re.compile(r"(\d+)$")
MAX_DEPTH = 5
"""Lightning: lightning_logs/version_0/checkpoints/…"""
MAX_HEADER_BYTES = 100 << 20


@dataclass(frozen=True, kw_only=True)
class Found:
    """One checkpoint of a script."""

    path: Path
    step: int
    """As its name says; Accelerate counts what it likes there."""
    modified: float
    problem: str | None
    """Why it is not complete."""


def find(directory: Path) -> tuple[Found, ...]:
    """All checkpoints below a directory, whole or not, the newest last."""
    return tuple(sorted(look(directory, 0), key=lambda found: (found.modified, found.step)))


def newest(directory: Path) -> Path | None:
    """The newest complete checkpoint, of any layout."""
    whole = [found.path for found in find(directory) if found.problem is None]
    return whole[-1] if whole else None


def trainer_checkpoints(output: Path) -> tuple[Found, ...]:
    """Those of Hugging Face's Trainer in its output directory, by step."""
    try:
        names = os.listdir(output)
    except OSError:
        return ()
    found = [
        trainer_checkpoint(output / name, int(match[1])) for name in names if (match := FOLDER.match(name))
    ]
    return tuple(sorted(found, key=lambda each: each.step))


def look(directory: Path, depth: int) -> Iterator[Found]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue  # copies that the launcher keeps for others
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        if not is_folder:
            match = LIGHTNING.search(entry.name)
            if match:
                yield Found(path=path, step=int(match[1]), modified=modified(path), problem=of_file(path))
        elif match := FOLDER.match(entry.name):
            yield trainer_checkpoint(path, int(match[1]))
        elif (path / "random_states_0.pkl").exists() or any((path / name).exists() for name in OPTIMIZERS):
            yield accelerate_checkpoint(path)
        elif depth < MAX_DEPTH:
            yield from look(path, depth + 1)


def trainer_checkpoint(path: Path, step: int) -> Found:
    return Found(path=path, step=step, modified=modified(path), problem=of_trainer(path, step))


def accelerate_checkpoint(path: Path) -> Found:
    match = NUMBER.search(path.name)
    problem = of_weights(path) or of_optimizer(path)
    return Found(path=path, step=int(match[1]) if match else 0, modified=modified(path), problem=problem)


def of_trainer(path: Path, step: int) -> str | None:
    try:
        state = json.loads((path / TRAINER_STATE).read_bytes())
    except (OSError, ValueError) as error:
        return f"{TRAINER_STATE}: {error}"
    if not isinstance(state, dict) or state.get("global_step") != step:
        return f"{TRAINER_STATE} is not of step {step}"
    return of_weights(path) or of_optimizer(path)


def of_weights(path: Path) -> str | None:
    for name in INDEXES:
        if (path / name).exists():
            try:
                shards = set(json.loads((path / name).read_bytes())["weight_map"].values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                return f"{name}: {error!r}"
            return next((problem for shard in sorted(shards) if (problem := of_file(path / shard))), None)
    there = [name for name in WEIGHTS if (path / name).exists()]
    return of_file(path / there[0]) if there else f"none of {', '.join(WEIGHTS)}"


def of_optimizer(path: Path) -> str | None:
    there = [name for name in OPTIMIZERS if (path / name).exists()]
    return of_file(path / there[0]) if there else f"none of {', '.join(OPTIMIZERS)}"


def of_file(path: Path) -> str | None:
    """What is wrong with a file of tensors, or None."""
    try:
        if path.suffix == ".safetensors":
            return of_safetensors(path)
        with zipfile.ZipFile(path) as archive:
            return None if archive.namelist() else f"{path.name} is empty"
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        return f"{path.name}: {error}"


def of_safetensors(path: Path) -> str | None:
    """The format: 8 bytes length, a header of that length with the offsets of each tensor, the tensors."""
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= MAX_HEADER_BYTES:
            return f"{path.name}: no safetensors header"
        header = json.loads(stream.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    expected = 8 + length + max(ends, default=0)
    size = path.stat().st_size
    return None if size == expected else f"{path.name} has {size} bytes instead of {expected}"


def modified(path: Path) -> float:
    """When it was last written; a folder by its newest file."""
    times = [path]
    try:
        if path.is_dir():
            times += list(path.iterdir())
        return max(each.stat().st_mtime for each in times)
    except OSError:
        return 0.0
