"""What can go wrong in the harness, one tree.

HarnessError
├── CannotRun        this machine cannot have a cluster; tests skip with it (in CI they fail)
├── CommandFailed    a command ended with an error; carries its stderr
├── Unhealthy        something was started and did not come up, or did not go away
└── TimedOut         a test waited for something that did not happen
"""

from __future__ import annotations


class HarnessError(Exception):
    """Anything the harness gives up on. The message is a sentence for the person who runs the tests."""


class CannotRun(HarnessError):
    """Something is missing on this machine, and the message says exactly what."""


class CommandFailed(HarnessError):
    """A command exited with an error."""

    def __init__(self, argv: list[str], code: int, stderr: str) -> None:
        self.argv = argv
        self.code = code
        self.stderr = stderr
        shown = " ".join(argv)
        shown = shown if len(shown) < 300 else shown[:300] + " …"
        super().__init__(f"{shown}: exit code {code}\n{stderr.strip()[-4000:]}")


class Unhealthy(HarnessError):
    """A part of the cluster did not come up or did not go away."""


class TimedOut(HarnessError):
    """What was waited for did not happen in time; the message says what was seen last."""
