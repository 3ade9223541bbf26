"""torch.compile makes the same of a program as without us.

Why apart: without this, dynamo compiles each helper that a patched function calls as a graph of its own (measured on
torch 2.14: 7 frames for none, 4 s of compile time), and where it traces a caller of ours, it breaks the graph there (a
whole optimizer step under `fullgraph=True` fails). So all of this package is on its skip list, and the few functions
that stand between the program and torch are transparent: traced through with their caller, left alone otherwise. In
them, `torch.compiler.is_dynamo_compiling()` tells the two apart.
Must not: import torch._dynamo; a program that never compiles must not pay for it.
"""

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])
TRANSPARENT = "<ddpjob_trainer>"
"""The file name of transparent functions: dynamo's skip list is of real ones."""

STORED = "unseen_step"
"""The attribute of our clock that compiled code sets after a step."""

_codes: list[CodeType] = []


def imported(_dynamo: Any) -> None:
    """Nothing is patched there; DDP imports it, and with a hook that takes less time (`imports.py`)."""


def patch_rules(trace_rules: Any) -> None:
    """Put this package on dynamo's skip list as soon as dynamo is there."""
    trace_rules.add("ddpjob_trainer")


def patch_frames(eval_frame: Any) -> None:
    """Keep dynamo off transparent functions that are called by what it does not trace."""
    for code in _codes:
        eval_frame.skip_code(code)


def patch_compilation(convert_frame: Any, step_compiled: Callable[[], None]) -> None:
    """Call `step_compiled` when an optimizer step is in what dynamo has compiled: the hook behind it stores a name."""

    def look(_code: CodeType, compiled: CodeType) -> None:
        if STORED in compiled.co_names:
            step_compiled()

    convert_frame.register_bytecode_hook(look)


def transparent(function: T) -> T:
    """Have dynamo trace through a function where it traces the caller.

    The function must ask `torch.compiler` each time: torch loads that after the modules that are patched.
    """
    plain: Any = function
    plain.__code__ = code = plain.__code__.replace(co_filename=TRANSPARENT)
    _codes.append(code)
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is not None and hasattr(eval_frame, "skip_code"):
        eval_frame.skip_code(code)
    return function
