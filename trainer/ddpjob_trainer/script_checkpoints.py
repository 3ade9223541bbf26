"""Checkpoints that scripts leave by themselves: which are complete, and which is the newest.

Known layouts, up to five folders deep: Hugging Face's Trainer (`checkpoint-<step>/`), Lightning (`*.ckpt`),
Accelerate (`save_state`: a folder of whatever name). Where there is none of a framework's: folders of
torch.distributed.checkpoint, and files of `torch.save` in the directory and in its folders. What is whole, each file and folder says itself (`checkpoint_files.py`,
`checkpoint_folders.py`).

The newest is the one of the highest step where each complete one has its step from its framework (the Trainer,
Lightning); else the one written last. Numbers that a script puts into names are no steps: they may begin at 0 again.

Why apart: what is complete is asked before torch is there, and says nothing about what is in it.
Must not: import torch, or read more of a file than `checkpoint_files` does.
"""

import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from ddpjob_trainer.checkpoint_files import LIGHTNING_VERSION, content, of_file, saved_by_torch, step_in
from ddpjob_trainer.checkpoint_folders import (
    FILE,
    INDEXES,
    TRAINER_STATE,
    WEIGHTS,
    is_accelerate,
    is_sharded,
    names_in,
    of_accelerate,
    of_index,
    of_shards,
    of_trainer,
)

FOLDER = re.compile(r"^checkpoint-(\d+)$")
LIGHTNING = re.compile(r"step=(\d+).*\.ckpt$")
LIGHTNING_FOLDER = "lightning"
"""Where we let Lightning save; with its number behind it from a program's second training on."""
OF_TRAINING = re.compile(rf"^{LIGHTNING_FOLDER}-(\d+)$")
MAX_DEPTH = 5
"""Lightning: lightning_logs/version_0/checkpoints/…"""
TORCH_DEPTH = 1
TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".tar")
"""Not `.bin`, which is how exported weights are called."""
PART = re.compile(
    r"(?<![a-z])(optimi[sz]ers?|optim|opt|sched|schedulers?|scaler|rng|rank|shard)(?![a-z])", re.IGNORECASE
)
"""In the name of a file that is only a part of a checkpoint."""
OF_ONE_STEP = re.compile(r"(checkpoint|ckpt|step|epoch|iter)\D*\d+$", re.IGNORECASE)
"""The name of a folder that a program makes for one checkpoint, so that all in it belongs together."""
BEST = re.compile("best", re.IGNORECASE)
"""In the name of a file that is kept for its quality."""


class Layout(Enum):
    """Whose checkpoint it is."""

    TRAINER = auto()
    LIGHTNING = auto()
    ACCELERATE = auto()
    SHARDED = auto()
    """By torch.distributed.checkpoint, which FSDP2 is saved with."""
    TORCH = auto()


OWN = (Layout.SHARDED, Layout.TORCH)
"""What a program saves and loads by itself, without a framework."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One checkpoint of a script."""

    path: Path
    layout: Layout
    step: int | None
    """As its framework says; None where the script alone knows."""
    modified: float
    problem: str | None
    """Why it is not complete."""
    training: int = 1
    """Which one of its program's trainings saved it, where that is known (Lightning)."""


def find(directory: Path) -> tuple[Found, ...]:
    """All checkpoints below a directory, whole or not, the newest last."""
    found = list(look(directory, 0))
    if is_accelerate(directory):
        found.append(accelerate_checkpoint(directory))
    of_frameworks = [each for each in found if each.layout not in OWN]
    folders = [each for each in found if each.path.is_dir()]
    # Beside a framework's, a file is an export; beside folders of parts, it is what a kill left of one; beside shards
    # that are whole, it is what goes with them.
    if all(each.layout is Layout.SHARDED and each.problem for each in folders):
        folders = found
    return in_order(of_frameworks or folders)


def in_order(found: Sequence[Found]) -> tuple[Found, ...]:
    whole = [each for each in found if each.problem is None]
    by_step = all(each.step is not None for each in whole)
    last_written = max((each.modified for each in whole), default=0.0)

    def key(each: Found) -> tuple[float, float]:
        if not by_step:
            return each.modified, each.step or 0
        unknown = math.inf if each.modified > last_written else -1
        return unknown if each.step is None else each.step, each.modified

    return tuple(sorted(found, key=key))


def newest(directory: Path) -> Path | None:
    """The newest complete checkpoint, of any layout."""
    return choose(find(directory))[0]


def choose(found: Sequence[Found]) -> tuple[Path | None, Sequence[Found]]:
    """The newest complete one, and the newer ones that are not."""
    whole = [place for place, each in enumerate(found) if each.problem is None]
    return (found[whole[-1]].path, found[whole[-1] + 1 :]) if whole else (None, found)


def offer(directory: Path, say: Callable[[str], None] | None) -> str:
    """What a program may go on from: the newest complete one, or nothing; says what is passed over for it.

    The Trainer and Lightning are given theirs later, by an agreement of all ranks, which says so itself.
    """
    chosen, passed_over = choose(find(directory))
    for each in passed_over:
        if say is not None and each.layout in (Layout.ACCELERATE, *OWN):
            say(f"checkpoint {each.path} is passed over: {each.problem}")
    return str(chosen or "")


def trainer_checkpoints(output: Path, *, only_model: bool = False) -> tuple[Found, ...]:
    """Those of Hugging Face's Trainer in its output directory, by step; `only_model`: they may lack the optimizer."""
    try:
        names = os.listdir(output)
    except OSError:
        return ()
    steps = {int(match[1]): output / name for name in names if (match := FOLDER.match(name))}
    return tuple(trainer_checkpoint(steps[step], step, only_model=only_model) for step in sorted(steps))


def look(directory: Path, depth: int) -> Iterator[Found]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        return
    files: list[Path] = []
    # Two programs do not save in one directory: what a kill left without a sign of whose it is, is its siblings'.
    of_program = any(FOLDER.match(entry.name) and is_own(Path(entry.path)) for entry in entries)
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue  # copies that the launcher keeps for others
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        if not is_folder:
            files.append(path)
        elif (match := FOLDER.match(entry.name)) and is_trainer(path, of_program=of_program):
            yield trainer_checkpoint(path, int(match[1]))
        elif is_accelerate(path):
            yield accelerate_checkpoint(path)
        elif path.suffix != ".ckpt" and (parts := shards_of(path)):
            yield sharded_checkpoint(path, parts)
        elif depth < MAX_DEPTH and path.suffix != ".ckpt":  # shards of one of Lightning's
            yield from look(path, depth + 1)
    ours = {path: found for path in files if (found := lightning_checkpoint(path)) is not None}
    yield from ours.values()
    if depth <= TORCH_DEPTH:
        yield from torch_checkpoints(directory, [path for path in files if path not in ours])


def is_trainer(path: Path, *, of_program: bool) -> bool:
    """Whether a folder called `checkpoint-<number>` is the Trainer's; other programs call theirs the same.

    `of_program`: folders beside it are a program's own.
    """
    names = names_in(path)
    if TRAINER_STATE in names:
        return True
    if of_program or is_accelerate(path):
        return False
    return not names.isdisjoint(WEIGHTS + INDEXES) or not any(name.endswith(TORCH_SUFFIXES) for name in names)


def is_own(path: Path) -> bool:
    """Whether a folder holds what the Trainer never writes, and a loop of the program's own may."""
    names = names_in(path)
    if TRAINER_STATE in names or is_accelerate(path):
        return False
    foreign = any(name.endswith(TORCH_SUFFIXES) and not FILE.match(name) for name in names)
    return foreign or bool(shards_of(path))


def shards_of(path: Path) -> list[Path]:
    """The folders of torch.distributed.checkpoint's that are one checkpoint: this one, or those of its parts."""
    if is_sharded(path):
        return [path]
    if not OF_ONE_STEP.search(path.name):
        return []
    return [
        path / name
        for name in sorted(names_in(path))
        if not OF_ONE_STEP.search(name) and is_sharded(path / name)
    ]


def trainer_checkpoint(path: Path, step: int, *, only_model: bool = False) -> Found:
    problem = of_trainer(path, step, only_model=only_model)
    return Found(path=path, layout=Layout.TRAINER, step=step, modified=modified(path), problem=problem)


def accelerate_checkpoint(path: Path) -> Found:
    problem = of_accelerate(path)
    return Found(path=path, layout=Layout.ACCELERATE, step=None, modified=modified(path), problem=problem)


def sharded_checkpoint(path: Path, parts: Sequence[Path]) -> Found:
    files = [each for each in sorted(path.iterdir()) if each.suffix in TORCH_SUFFIXES]
    problems = [*map(of_shards, parts), *(saved.problem for each in files if (saved := saved_by_torch(each)))]
    problem = next(filter(None, problems), None)
    return Found(path=path, layout=Layout.SHARDED, step=None, modified=modified(path), problem=problem)


def lightning_checkpoint(path: Path) -> Found | None:
    """None where it is not one of Lightning's, which has its version in it, or half of one in its name."""
    if path.suffix != ".ckpt":
        return None
    saved, name = saved_by_torch(path), LIGHTNING.search(path.name)
    head = saved.head if saved is not None else b""
    if LIGHTNING_VERSION not in head and name is None:
        return None
    problem = saved.problem if saved is not None else of_file(path)
    folder = OF_TRAINING.match(path.parent.name)
    training = int(folder[1]) if folder else 1
    if problem is None and LIGHTNING_VERSION in head:
        try:
            inside = content(path)
        except (
            OSError,
            ValueError,
            zipfile.BadZipFile,
        ) as error:  # its index is whole, and what it lists is not
            problem = f"{path.name}: {error}"
        else:
            training = inside.training
            if not inside.optimizers:
                problem = f"{path.name} holds weights and no optimizer"
    step = step_in(head)
    if step is None and name is not None:
        step = int(name[1])
    return Found(
        path=path,
        layout=Layout.LIGHTNING,
        step=step,
        modified=modified(path),
        problem=problem,
        training=training,
    )


def torch_checkpoints(directory: Path, files: Sequence[Path]) -> Iterator[Found]:
    """Each file, or the folder where its files are parts of one."""
    saved = {
        path: found.problem
        for path in files
        if path.suffix in TORCH_SUFFIXES and (found := saved_by_torch(path)) is not None
    }
    with_weights = OF_ONE_STEP.search(directory.name) and any(
        path.name in WEIGHTS + INDEXES for path in files
    )
    if saved and (with_weights or any(PART.search(path.stem) for path in saved)):
        tensors = [of_file(path) for path in files if path.suffix == ".safetensors" or path.name in WEIGHTS]
        indexes = [of_index(directory, path.name) for path in files if path.name in INDEXES]
        problem = next(filter(None, [*saved.values(), *tensors, *indexes]), None)
        at = max(modified(path) for path in saved)
        yield Found(path=directory, layout=Layout.TORCH, step=None, modified=at, problem=problem)
        return
    usual = {path: problem for path, problem in saved.items() if not BEST.search(path.name)}
    for path, problem in (usual or saved).items():
        yield Found(path=path, layout=Layout.TORCH, step=None, modified=modified(path), problem=problem)


def modified(path: Path) -> float:
    """When it was last written; a folder by its newest file.

    Its own time says nothing: on nodes without a shared volume it is that of the newest exchange.
    """
    try:
        files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else []
        return max(each.stat().st_mtime for each in files or [path])
    except OSError:
        return 0.0
