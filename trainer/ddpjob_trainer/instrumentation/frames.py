"""Functions of ours that stand between the program and torch, and that nobody is to notice on the stack.

Why apart: three others count or read frames. `warnings.warn(stacklevel=2)` in torch means the line that called it, so a
frame of ours there would be blamed, and filters by module would not match; dynamo traces through callers
(`compiler.py`); tracebacks end at the program (`bootstrap.py`). The file name of a function's code is what all three go
by: Python leaves out of a stack level what has `importlib` and `_bootstrap` in it, and dynamo's skip list is of real
files.
Must not: be used for a function that the program's own code cannot be below of; those keep their names in tracebacks.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])
FILE = "<ddpjob_trainer: importlib._bootstrap>"
"""The file of transparent functions."""

codes: list[CodeType] = []
"""Of all of them so far."""

when_made: list[Callable[[CodeType], None]] = []
"""Called with each that is made later."""


def transparent(function: T) -> T:
    """Have a function of ours not count on the stack."""
    plain: Any = function
    plain.__code__ = code = plain.__code__.replace(co_filename=FILE)
    codes.append(code)
    for look in when_made:
        look(code)
    return function
