"""What a program has imported by its first step: the modules that a standby of the next generation imports ahead.

Why apart: written by a worker, read by a standby, and both must agree on what an installed module is. Only those are
ever imported ahead: packages in site-packages (or dist-packages) and our own; never what lies beside the program.
Must not: import any of them (`standby.py`), or touch an attribute of a module (some import on access).
"""

import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MAX_BYTES = 1024 * 1024
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
MAIN = ("__main__", "__mp_main__")
OURS = ("ddpjob_api", "ddpjob_trainer")
FOLDERS = re.compile(rf"^(.*?{re.escape(os.sep)}(?:site|dist)-packages){re.escape(os.sep)}")
STANDARD = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep
    for name in ("stdlib", "platstdlib")
    if sysconfig.get_path(name)
)


def write(path: Path) -> None:
    """Leave the names of the installed modules of this process, in the order of their first import.

    Raises:
        OSError: the file cannot be written.
    """
    text = "\n".join(installed())
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    beside.write_text(text[: text.rfind("\n", 0, MAX_BYTES)] if len(text) > MAX_BYTES else text)
    beside.replace(path)


def read(path: Path) -> list[str]:
    """The names in a file that `write` left; none where there is no such file."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if NAME.fullmatch(line)]


def installed() -> list[str]:
    """The installed modules of this process; not the one that runs as the program, which would run twice."""
    program: Any = vars(sys.modules["__main__"]).get("__spec__")
    own = getattr(program, "name", None)
    found = []
    # By name: thousands of new tuples (`items()`) would set off the garbage collector, in the first step.
    for name in list(sys.modules):
        file, spec = source(sys.modules.get(name))
        if file is None or name == own or getattr(spec, "name", None) != name:
            continue
        if name.partition(".")[0] in OURS or FOLDERS.match(file):
            found.append(name)
    return found


def source(module: Any) -> tuple[str | None, Any]:
    """A module's file and spec, from its own dictionary."""
    try:
        names = object.__getattribute__(module, "__dict__")
    except AttributeError:
        return None, None
    file = names.get("__file__")
    return (file if isinstance(file, str) else None), names.get("__spec__")


def foreign(names: Iterable[str]) -> str | None:
    """The first of these imported modules that is the program's own: not installed, not standard, not ours."""
    for name in names:
        file, _ = source(sys.modules.get(name))
        if file is None or name in MAIN or name.partition(".")[0] in OURS or FOLDERS.match(file):
            continue
        # Some modules that are no files say a bare name.
        if os.path.isabs(file) and not os.path.realpath(file).startswith(STANDARD):
            return name
    return None


def folders() -> dict[str, int]:
    """The folders of installed packages in use, and when each was last changed (ns): installing changes it."""
    found = set()
    for module in list(sys.modules.values()):
        match = FOLDERS.match(source(module)[0] or "")
        if match:
            found.add(match[1])
    return changed(found)


def changed(paths: Iterable[str]) -> dict[str, int]:
    times = {}
    for path in paths:
        try:
            times[path] = os.stat(path).st_mtime_ns
        except OSError:
            times[path] = 0
    return times
