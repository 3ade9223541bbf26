"""What kind of training accelerate's default configuration says, which it reads where the command names no file.

Why apart: the one look at a file of somebody else's, and the launcher has no YAML. It is looked for where accelerate
does (`accelerate.commands.config.config_args`), in the environment that the command gets.
Must not: judge the rest of the file; what it cannot read is accelerate's to report.
"""

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

COMMENT = re.compile(r"(?m)(?:^|\s)#.*$")
KIND = re.compile(r"""(?m)(?:^|[{,]\s*)["']?distributed_type["']?\s*:\s*["']?(\w+)""")
OWN_KINDS = frozenset({"FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"})
"""All others are one process per rank and DDP, or none."""
MAX_BYTES = 1024 * 1024


def says_its_kind(environ: Mapping[str, str]) -> bool:
    """Whether the file is there and asks for another kind of training than DDP."""
    with contextlib.suppress(OSError), default_file(environ).open("rb") as file:
        text = file.read(MAX_BYTES).decode("utf-8", "replace")
        kind = KIND.search(COMMENT.sub("", text))
        return kind is not None and kind[1] in OWN_KINDS
    return False


def default_file(environ: Mapping[str, str]) -> Path:
    cache = environ.get("XDG_CACHE_HOME", "~/.cache")
    given = Path(environ.get("HF_HOME", f"{cache}/huggingface"))
    if given.parts[:1] == ("~",) and "HOME" in environ:
        given = Path(environ["HOME"], *given.parts[1:])
    return given / "accelerate/default_config.yaml"
