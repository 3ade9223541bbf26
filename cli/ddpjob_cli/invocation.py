"""One call of the command: what was typed, and the line of `--json` that a program waits for at its end.

Why apart: commands print the line, and where one cannot, `main.py` does. Must not: know what is in it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpjob_cli.output import tell

OWING = frozenset({"run", "submit"})
"""Commands whose line comes whatever happens."""


@dataclass(kw_only=True)
class Invocation:
    """What is known of it so far."""

    arguments: Sequence[str] = ()
    job: str | None = None
    namespace: str | None = None
    """Where the job was sent to."""
    told: bool = False
    """The line is out."""

    @property
    def command(self) -> str:
        return self.arguments[0] if self.arguments else ""

    def owe_line(self) -> bool:
        """Whether a program still waits for the line; what follows `--` is the script's."""
        own = self.arguments[: self.arguments.index("--")] if "--" in self.arguments else self.arguments
        return self.command in OWING and "--json" in own and not self.told

    def tell(self, ending: Mapping[str, Any]) -> None:
        """Print the line."""
        self.told = True
        tell(ending)
