"""Seeds as a function of where in the training they are used.

Why apart: no generator's state is carried from step to step, so a resumed run draws what the straight run drew, and a
checkpoint needs no random state. Must not: keep anything between calls.
"""

import hashlib
import random
import sys

import torch


def derive(*words: int | str) -> int:
    """A seed (63 bits) of `words`, e.g. `derive(seed, "order", epoch)`."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_host(seed: int) -> None:
    """Seed what draws on the CPU: torch, `random` and, where it is loaded, numpy.

    Not `torch.manual_seed`: without an initialised GPU it formats the whole stack on every call.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def seed_device(seed: int, device: torch.device) -> None:
    """Seed the CPU and the device."""
    seed_host(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)
