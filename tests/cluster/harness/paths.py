"""Where things lie: the clone, and the cache outside of it that later clones start warm from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import CannotRun

HERE = Path(__file__).resolve().parent
CLONE = HERE.parents[2]
"""The root of the clone; it also names the owner of a slot."""

RUN = Path("/run/ddpjob")
"""Sockets and ownership. Machine-wide and not below the cache: two caches must not fight for one bridge, and unix
socket paths are limited to 108 characters."""


def cache() -> Path:
    """`$XDG_CACHE_HOME/ddpjob`, made if it is missing."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "ddpjob"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
