"""Whether a script reads a checkpoint of the job: any file of its directory that is opened for reading counts.

Why apart: not only `torch.load` reads checkpoints (numpy, pickle, a format of the program's own), and nearly all that
Python opens goes through `open`. `safetensors` opens its files itself, so that module is patched.
`open` is the program's own again once the answer is known. An audit hook would see the same and could never be taken
out: torch's optimizers ask for `id` of every parameter in every step, which is an audited event.
"""

import builtins
import functools
import io
import sys
from typing import Any

from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.saving import Saving

READING = frozenset("rbtU")
"""The letters of a mode that only reads."""


def watch(saving: Saving) -> None:
    """In a later generation, have `saving` told what the program opens until its first step."""
    if not saving.later:
        return
    original, loaded = builtins.open, saving.guard.measuring(saving.loaded)
    places = [builtins, io, sys.modules[original.__module__]]

    @transparent
    @functools.wraps(original)
    def watched(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if not saving.decided and isinstance(mode, str) and READING.issuperset(mode):
            loaded(file)
        return original(file, mode, *args, **kwargs)

    def end() -> None:
        for place in places:
            if place.open is watched:
                place.open = original  # type: ignore[attr-defined]

    saving.when_decided.append(end)
    for place in places:
        place.open = watched  # type: ignore[attr-defined]


def patch_safetensors(module: Any, saving: Saving) -> None:
    """Patch `safetensors`, before its other modules take the name from there."""
    original, loaded = module.safe_open, saving.guard.measuring(saving.loaded)

    @transparent
    @functools.wraps(original, updated=())
    def safe_open(*args: Any, **kwargs: Any) -> Any:
        loaded(args[0] if args else kwargs.get("filename"))
        return original(*args, **kwargs)

    module.safe_open = safe_open
