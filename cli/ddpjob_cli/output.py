"""Standard output: JSON that any parser takes, and an end in order where nobody takes it.

Why apart: what is wrong with the place that output goes to is no command's fault, and is said in one way.
"""

import io
import json
import math
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ddpjob_cli.errors import OutputLost

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def tell(value: Any, *, indent: int | None = None) -> None:
    """Print it as JSON; a number that is none (a loss that is not known, or has become NaN) is null."""
    click.echo(json.dumps(finite(value), indent=indent, allow_nan=False))


def finite(value: Any) -> Any:
    """The value with null in place of NaN and infinities, however deep."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Outlet(io.FileIO):
    """A file descriptor whose errors are the user's to know, in a sentence."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """As a file does.

        Raises:
            OutputLost: nobody reads any more, or what is behind it takes nothing.
        """
        try:
            return super().write(data)
        except BrokenPipeError:
            raise OutputLost from None
        except OSError as error:
            raise OutputLost(f"standard output cannot be written: {error.strerror}") from error


def prepare() -> None:
    """Put the process's own standard output behind an `Outlet`; signs that its encoding lacks become `?`."""
    if sys.stdout is None:  # closed by the caller: the next file must not get its number
        sys.stdout = open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")  # noqa: SIM115
    own = sys.__stdout__
    if own is None or sys.stdout is not own:
        return
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(Outlet(own.fileno(), "w", closefd=False)),
        encoding=own.encoding,
        errors="replace",
        line_buffering=own.isatty(),
    )


def abandon() -> None:
    """Nothing more is written, also not by Python's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
