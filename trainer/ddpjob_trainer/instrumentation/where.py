"""Which line of the program is meant: the innermost one that is the user's own.

Why apart: overrides, errors and refusals point at the same kind of place.
"""

import contextlib
import os
import sys
import sysconfig
from types import CodeType, FrameType, TracebackType

from ddpjob_trainer import learned

PACKAGES = tuple(
    os.path.realpath(path) + os.sep
    for path in {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}
)
OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def caller() -> str:
    """`file:line` of the user's code that called into what called this."""
    frame: FrameType | None = sys._getframe(1)
    outermost = frame
    while frame is not None:
        if is_users(frame.f_code, frame.f_globals.get("__name__")):
            return spot(frame.f_code.co_filename, frame.f_lineno)
        if not frame.f_code.co_filename.startswith((OURS, "<frozen")):
            outermost = frame
        frame = frame.f_back
    return spot(outermost.f_code.co_filename, outermost.f_lineno) if outermost is not None else "?"


def raised_at(trace: TracebackType | None) -> str:
    """`file:line` of the innermost user's code in a traceback; the innermost of all where none is the user's.

    Empty where that is code of the interpreter itself (runpy), which is no place to look at.
    """
    users = last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        last = spot(code.co_filename, trace.tb_lineno)
        if is_users(code, trace.tb_frame.f_globals.get("__name__")):
            users = last
        trace = trace.tb_next
    return users or ("" if last.startswith("<frozen ") else last)


def innermost(trace: TracebackType | None) -> str:
    """`file:line` where an error was raised, whoever's code that is."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return spot(trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else "?"


def is_users(code: CodeType, module: object) -> bool:
    """A file that is not Python's, not ours and in no folder of packages, or the program itself, wherever it is.

    Packages may lie beside this Python's own: in dist-packages, ~/.local, on PYTHONPATH.
    """
    name = code.co_filename
    if name.startswith("<"):
        return module == "__main__"
    path = resolved(name)
    if path.startswith(OURS):
        return False
    return module == "__main__" or not (path.startswith(PACKAGES) or learned.FOLDERS.match(path))


def resolved(name: str) -> str:
    """Without links; as it is where the working directory is gone."""
    with contextlib.suppress(OSError):
        return os.path.realpath(name)
    return name


def spot(filename: str, line: int) -> str:
    """Relative where it lies below the working directory."""
    if not filename.startswith("<"):
        with contextlib.suppress(OSError):  # a program may delete the folder it stands in
            below = os.path.relpath(filename)
            filename = filename if below.startswith(os.pardir) else below
    return f"{filename}:{line}"
