"""Whether a file of tensors is whole, by its own index: the end of a zip, which `torch.save` writes last, or the header
of a `safetensors` file.

Why apart: what a file says about itself, whatever checkpoint it belongs to.
Must not: import torch, or read more of a file than its index and the pickle in front of its tensors.
"""

import json
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

ZIP = b"PK\x03\x04"
PICKLE = "data.pkl"
"""The first record of what `torch.save` writes; the tensors follow."""
SCRIPTED = "constants.pkl"
"""Only TorchScript, a model to be served, has it."""
HEAD_BYTES = 64 << 10
MAX_HEADER_BYTES = 100 << 20

LIGHTNING_VERSION = b"pytorch-lightning_version"
LIGHTNING_OPTIMIZERS = b"optimizer_states"
GLOBAL_STEP = re.compile(
    rb"X\x0b\0\0\0global_step(?:q.|r.{4}|\x94)?(?:K(?P<one>.)|M(?P<two>..)|J(?P<four>.{4}))", re.DOTALL
)
"""The key and a whole number in a pickle, with or without a memo between them."""
TRAINING_KEY = "ddpjob_training"
TRAINING = re.compile(
    b"X"
    + re.escape(len(TRAINING_KEY).to_bytes(4, "little") + TRAINING_KEY.encode())
    + rb"(?:q.|r.{4}|\x94)?K(.)",
    re.DOTALL,
)
"""What our callback puts beside Lightning's keys, from a program's second training on."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A file that `torch.save` wrote, or began to."""

    head: bytes
    """Its first bytes: the front of its pickle, uncompressed."""
    problem: str | None
    """Why it is not whole."""


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


def saved_by_torch(path: Path) -> Saved | None:
    """None for every other file, also for one in torch's format before zip, which does not say whether it is whole."""
    try:
        with path.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except OSError as error:
        return Saved(head=b"", problem=f"{path.name}: {error}")
    if not head:
        return Saved(head=head, problem=f"{path.name} is empty")
    if not head.startswith(ZIP):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.rpartition("/")[2] for name in archive.namelist()}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        return Saved(head=head, problem=f"{path.name}: {error}")
    return Saved(head=head, problem=None) if PICKLE in names and SCRIPTED not in names else None


def step_in(head: bytes) -> int | None:
    """`global_step`, where Lightning wrote it: among the first keys."""
    match = GLOBAL_STEP.search(head)
    number = match and (match["one"] or match["two"] or match["four"])
    return int.from_bytes(number, "little") if number else None


@dataclass(frozen=True, kw_only=True)
class Content:
    """What a whole file of Lightning's has in it."""

    optimizers: bool
    """Not with `save_weights_only`: no training goes on from it."""
    training: int
    """Which one of its program's trainings saved it; the first says nothing."""


def content(path: Path) -> Content:
    with zipfile.ZipFile(path) as archive:
        pickled = next(each for each in archive.infolist() if each.filename.rpartition("/")[2] == PICKLE)
        if pickled.file_size > MAX_HEADER_BYTES:
            return Content(optimizers=True, training=1)
        written = archive.read(pickled)
    mark = TRAINING.search(written)
    return Content(optimizers=LIGHTNING_OPTIMIZERS in written, training=mark[1][0] if mark else 1)
