"""Where things lie: the clone, and the cache outside of it that later clones start warm from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import CannotRun

HERE = Path(__file__).resolve().parent
CLONE = HERE.parents[2]
"""The root of the clone; it also names the owner of a slot."""


def volatile() -> Path:
    """The folder of sockets and ownership: root's is the machine's, and any other user has one of their own."""
    if os.geteuid() == 0:
        return Path("/run/ddpjob")
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base) / "ddpjob"
    return Path(tempfile.gettempdir()) / f"ddpjob-{os.geteuid()}"


RUN = volatile()
"""Sockets and ownership. Not below the cache: two caches must not fight for one bridge, and unix socket paths are
limited to 108 characters."""


def run_folder() -> Path:
    """`RUN`, made if it is missing.

    Raises:
        CannotRun: it cannot be made, or somebody else made it, whose records would name processes to end.
    """
    with needed(f"records of clusters in {RUN} (XDG_RUNTIME_DIR is their place where one is not root)"):
        RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
        owner = RUN.lstat().st_uid
    if owner != os.geteuid():
        raise CannotRun(
            f"{RUN} belongs to user {owner}, and this is user {os.geteuid()}; remove it, or point XDG_RUNTIME_DIR "
            "at a folder of your own"
        )
    return RUN


def cache() -> Path:
    """`$XDG_CACHE_HOME/ddpjob`, made if it is missing.

    Raises:
        CannotRun: it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "ddpjob"
    with needed(f"a cache in {folder} (XDG_CACHE_HOME moves it)"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def needed(what: str) -> Iterator[None]:
    """Around what the system may refuse: no permission, no space, no such program.

    Raises:
        CannotRun: it did; the message says what was needed, and the system's words name the path.
    """
    try:
        yield
    except OSError as failure:
        raise CannotRun(f"the harness needs {what}: {failure}") from failure


def require_disk(needed_gb: float, why: str) -> None:
    """Refuse to start what the disk could not hold.

    Raises:
        CannotRun: less is free than needed.
    """
    free_gb = shutil.disk_usage(cache()).free / 1e9
    if free_gb < needed_gb:
        raise CannotRun(
            f"{cache()} has {free_gb:.0f} GB free and {why} needs up to {needed_gb:.0f} GB; free some, or point "
            "XDG_CACHE_HOME at a larger disk"
        )
