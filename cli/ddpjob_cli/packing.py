"""Local files as a ConfigMap that pods mount: which files, under which keys, within which size.

Why apart: pure but for reading files and asking git which of them it ignores. Must not: talk to a cluster.
"""

import ast
import base64
import hashlib
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ddpjob_cli.errors import RefusedJob, Unusable

MAX_BYTES = 1024 * 1024 - 32 * 1024
"""The API server takes 1 MiB of data; names and base64 need some of it."""
SKIPPED = frozenset({"__pycache__", "node_modules"})
LARGEST = 5
"""How many files a refusal names."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The files of a program."""

    files: dict[str, bytes]
    """By path below the working directory, with `/`."""

    @property
    def flat(self) -> bool:
        """Whether a ConfigMap mounts as it is: its keys have no `/`."""
        return all(key == path for path, key in self.keys().items())

    def keys(self) -> dict[str, str]:
        """The ConfigMap's key of each path: the path itself where it may be one."""
        found: dict[str, str] = {}
        for path in sorted(self.files):
            key = re.sub(r"[^-._a-zA-Z0-9]", "_", path)[-240:]
            while key in found.values() or key in {".", ".."}:
                key = f"{key}_"
            found[path] = key
        return found

    def digest(self) -> str:
        """Another one for other files, so that a changed program never changes under a job that runs."""
        whole = hashlib.sha256()
        for path, data in sorted(self.files.items()):
            whole.update(f"{path}\0{len(data)}\0".encode() + data)
        return whole.hexdigest()[:8]

    def config_map(self, name: str) -> dict[str, Any]:
        """The object."""
        keys = self.keys()
        text: dict[str, str] = {}
        binary: dict[str, str] = {}
        for path, data in sorted(self.files.items()):
            try:
                text[keys[path]] = data.decode()
            except UnicodeDecodeError:
                binary[keys[path]] = base64.b64encode(data).decode()
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        return body | ({"data": text} if text else {}) | ({"binaryData": binary} if binary else {})


def pack_script(script: Path) -> Pack:
    """One file.

    Raises:
        Unusable: it cannot be read.
        RefusedJob: it is too large, or imports a module that lies beside it.
    """
    data = read(script)
    beside = neighbours(script, data)
    if beside:
        raise RefusedJob(
            f"{script}: imports {', '.join(beside)}, which lies beside it and would not be there; "
            f"pack the folder with --folder {script.parent}"
        )
    return sized(Pack(files={script.name: data}), script)


def pack_folder(folder: Path) -> Pack:
    """A folder, without what git ignores, hidden files and caches.

    Raises:
        Unusable: it cannot be read, or nothing is in it.
        RefusedJob: it is too large.
    """
    if not folder.is_dir():
        raise Unusable(f"{folder}: no such folder")
    files: dict[str, bytes] = {}
    total = 0
    for path in wanted(folder):
        size = (folder / path).stat().st_size
        total += size
        # What is too large is named with its size, and not read for it.
        files[path] = read(folder / path) if total <= 4 * MAX_BYTES else b"\0" * min(size, MAX_BYTES)
    if not files:
        raise Unusable(f"{folder}: no file in it that is not hidden or ignored")
    return sized(Pack(files=files), folder)


def sized(pack: Pack, what: Path) -> Pack:
    """The pack, if a ConfigMap can hold it.

    Raises:
        RefusedJob: it cannot; the largest files are named.
    """
    total = sum(stored(data) for data in pack.files.values())
    if total <= MAX_BYTES:
        return pack
    largest = sorted(pack.files.items(), key=lambda item: -len(item[1]))[:LARGEST]
    named = ", ".join(f"{path} ({len(data) // 1024} KiB)" for path, data in largest)
    raise RefusedJob(
        f"{what}: {total // 1024} KiB do not fit into a ConfigMap (1 MiB); the largest: {named}; put data and large code on "
        "a claim and name it (workspace: {persistentVolumeClaim: NAME}), build an image with it (--image), or keep it out "
        "with .gitignore"
    )


def stored(data: bytes) -> int:
    """Bytes it takes: what is no text is stored as base64."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return (len(data) + 2) // 3 * 4
    return len(data)


def wanted(folder: Path) -> list[str]:
    """The files to pack, by path with `/`."""
    by_git = git_files(folder)
    found = by_git if by_git is not None else [str(path) for path in walk(folder)]
    return sorted(
        path
        for path in found
        if not any(skipped(part) for part in PurePosixPath(path).parts)
        and (folder / path).is_file()
        and not (folder / path).is_symlink()
    )


def skipped(part: str) -> bool:
    return part.startswith(".") or part in SKIPPED or part.endswith((".pyc", ".egg-info"))


def git_files(folder: Path) -> list[str] | None:
    """What git has or would take, which is how .gitignore is meant; None outside of a repository."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, capture_output=True, check=False)
    if result.returncode != 0:
        return None
    return [os.fsdecode(name) for name in result.stdout.split(b"\0") if name]


def walk(folder: Path) -> Iterator[PurePosixPath]:
    """Every file below, without hidden folders, caches and virtual environments."""
    for where, folders, names in os.walk(folder):
        here = Path(where)
        folders[:] = [
            name for name in folders if not skipped(name) and not (here / name / "pyvenv.cfg").exists()
        ]
        yield from (PurePosixPath((here / name).relative_to(folder).as_posix()) for name in names)


def neighbours(script: Path, data: bytes) -> list[str]:
    """Modules beside the script that it imports by name."""
    try:
        tree = parsed(data)
    except (SyntaxError, ValueError):
        return []  # `unreadable` says so
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    folder = script.parent
    return sorted(
        name
        for name in names
        if (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()
    )


def unreadable(script: Path, data: bytes) -> str | None:
    """That this Python cannot read a script, as a sentence; the image's may be newer, so it is no refusal."""
    try:
        parsed(data)
    except (SyntaxError, ValueError) as error:
        line, why = (error.lineno, error.msg) if isinstance(error, SyntaxError) else (None, str(error))
        place = f"{script}:{line}" if line else f"{script}"
        return f"{place}: this Python cannot read it ({why}); sent all the same"
    return None


def parsed(data: bytes) -> ast.Module:
    """A script as this Python reads it; of what it only warns of, the Python that runs it does too.

    Raises:
        SyntaxError, ValueError: it cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(data)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
