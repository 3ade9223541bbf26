"""torch.compile leaves our frames alone.

Why apart: without this, dynamo compiles each helper that a patched function calls as a graph of its own (measured on
torch 2.14: 7 frames for none, 4 s of compile time). Must not: import torch._dynamo; a program that never compiles
must not pay for it.
"""

import sys
from collections.abc import Callable
from typing import Any


def imported(_dynamo: Any) -> None:
    """Nothing is patched there; DDP imports it, and with a hook that takes less time (`imports.py`)."""


def patch(trace_rules: Any) -> None:
    """Put this package on dynamo's skip list as soon as dynamo is there."""
    trace_rules.add("ddpjob_trainer")


def skip(function: Callable[..., Any]) -> None:
    """Keep dynamo off one patched function, where it is loaded."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is not None:
        eval_frame.skip_code(function.__code__)
