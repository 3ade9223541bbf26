"""What is installed, for bug reports.

Must not: import torch (seconds, and it may be broken: that is when people ask).
"""

import platform
from importlib import metadata
from typing import Any

from ddpjob_api import __version__
from ddpjob_api.messages import PROTOCOL


def versions() -> dict[str, Any]:
    """`torch` is None where it is not installed."""
    try:
        torch: str | None = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    return {"ddpjob": __version__, "protocol": PROTOCOL, "python": platform.python_version(), "torch": torch}
