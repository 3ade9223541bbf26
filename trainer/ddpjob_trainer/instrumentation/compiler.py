"""torch.compile makes the same of a program as without us.

Why apart: without this, dynamo compiles each helper that a patched function calls as a graph of its own (measured on
torch 2.14: 7 frames for none, 4 s of compile time), and where it traces a caller of ours, it breaks the graph there (a
whole optimizer step under `fullgraph=True` fails). So all of this package is on its skip list but the transparent
functions (`frames.py`): it traces through them with their caller, and leaves them alone when it meets them by
themselves. In them, `torch.compiler.is_dynamo_compiling()` tells the two apart.
Must not: import torch._dynamo; a program that never compiles must not pay for it.
"""

from collections.abc import Callable
from types import CodeType
from typing import Any

from ddpjob_trainer.instrumentation import frames

STORED = "unseen_step"
"""The attribute of our clock that compiled code sets after a step."""


def imported(_dynamo: Any) -> None:
    """Nothing is patched there; DDP imports it, and with a hook that takes less time (`imports.py`)."""


def patch_rules(trace_rules: Any) -> None:
    """Put this package on dynamo's skip list as soon as dynamo is there."""
    trace_rules.add("ddpjob_trainer")


def patch_frames(eval_frame: Any) -> None:
    """Keep dynamo off transparent functions that are called by what it does not trace."""
    for code in frames.codes:
        eval_frame.skip_code(code)
    frames.when_made.append(eval_frame.skip_code)


def patch_compilation(convert_frame: Any, step_compiled: Callable[[], None]) -> None:
    """Call `step_compiled` when an optimizer step is in what dynamo has compiled: the hook behind it stores a name."""

    def look(_code: CodeType, compiled: CodeType) -> None:
        if STORED in compiled.co_names:
            step_compiled()

    convert_frame.register_bytecode_hook(look)
