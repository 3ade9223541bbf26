"""What a program finds around it in a pod, whatever uid runs it and however little of the image can be written.

Why apart: images are made for root, or for a user of their own; in a pod the root file system is read-only, the uid may
be anybody's, and only /tmp is sure to be writable. What an image or a resource sets and can be used stays as it is.
Must not: apply on a laptop, where the surroundings are the user's own.
"""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path

TMP = Path("/tmp")
USER_NAME = "ddpjob"
FOLDERS = {
    "HOME": TMP,
    "TMPDIR": TMP,
    "XDG_CACHE_HOME": TMP / ".cache",
    "XDG_CONFIG_HOME": TMP / ".config",
    "HF_HOME": TMP / ".cache/huggingface",
    "TORCH_HOME": TMP / ".cache/torch",
    "TORCHINDUCTOR_CACHE_DIR": TMP / ".cache/torchinductor",
    "TRITON_CACHE_DIR": TMP / ".cache/triton",
    "NUMBA_CACHE_DIR": TMP / ".cache/numba",
    "MPLCONFIGDIR": TMP / ".config/matplotlib",
}
"""Variables that name a folder to write to, and what is used where it cannot be."""
ALWAYS = ("HOME",)
FILLED = ("HF_HOME", "TORCH_HOME")
"""An image brings these with models in them; one that is there is of use without being writable."""


def usable(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables to change; unset ones follow HOME, which is always set."""
    changed = {}
    for name, instead in FOLDERS.items():
        given = environ.get(name)
        if (given is None and name not in ALWAYS) or (given and writable(Path(given))):
            continue
        if name in FILLED and given and Path(given).is_dir():
            continue
        changed[name] = str(instead)
    if not named():
        # getpass.getuser() fails for a uid without a name, and torch's compiler asks it for its cache.
        changed |= {name: USER_NAME for name in ("USER", "LOGNAME") if not environ.get(name)}
    return changed


def writable(folder: Path) -> bool:
    """Whether files can be made in the folder, which is made if it can be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def named() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
