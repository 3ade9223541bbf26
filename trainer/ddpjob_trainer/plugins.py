"""Vendors' packages that bring a device and its backend to torch: imported where they are installed.

Why apart: rules, process group and our own loop need them at different moments, and torch before 2.5 (or with
TORCH_DEVICE_BACKEND_AUTOLOAD=0) does not import them by itself. Must not: import torch where none is installed.
"""

import importlib
import importlib.util
from typing import Any

from ddpjob_api.accelerators import PLUGINS
from ddpjob_api.spec import Backend


def load(*backends: Backend) -> dict[str, str]:
    """Import the plugins of these backends that are installed; returns those that failed, and why."""
    failed = {}
    for backend in backends:
        for name in PLUGINS.get(backend, ()):
            try:
                if importlib.util.find_spec(name) is not None:
                    importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not name.startswith(error.name or " "):
                    failed[name] = str(error)  # it is there, and lacks something itself
            except Exception as error:
                # A vendor's start-up code: whatever it raises, the program may not need it.
                failed[name] = f"{type(error).__name__}: {error}"
    return failed


def sees(torch: Any, device: str) -> bool:
    """Whether torch sees a device of that type."""
    module = getattr(torch, device, None)
    return module is not None and bool(module.is_available())
