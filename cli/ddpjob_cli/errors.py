"""What the command line cannot do, as exceptions; `main.py` prints them as sentences and exits with their code.

    CommandError
    ├── Unusable      2   the file, directory, option or job named cannot be used as it is
    ├── Unreachable  69   no cluster answers
    ├── Forbidden    77   the cluster does not let this user do it; the sentence names the right
    ├── RefusedJob   86   the job cannot run as it is described (in `ddpjob lint`: 1)
    └── OutputLost  141   nobody takes what is printed; without a sentence where a reader has gone, as `head` does

Why apart: nothing a user does may end in a traceback, and everything that is not in this tree must (it is our bug).
A message has three parts: what is wrong and where, what was expected, what to do.
"""

from ddpjob_api.exits import Exit

UNUSABLE = 2
KILLED = 130
"""128 + SIGINT: a second Ctrl-C did not wait."""
BUG = 70
"""`EX_SOFTWARE` of sysexits.h: a traceback was printed, and it is ours."""


class CommandError(Exception):
    """A sentence for the user."""

    exit_code = UNUSABLE


class Unusable(CommandError):
    """A file, directory, option or job that cannot be used."""


class Unreachable(CommandError):
    """The cluster does not answer (`EX_UNAVAILABLE`)."""

    exit_code = 69


class Forbidden(CommandError):
    """The cluster does not let this user do it (`EX_NOPERM`)."""

    exit_code = 77


class OutputLost(CommandError, OSError):
    """Standard output takes nothing any more (128 + SIGPIPE)."""

    exit_code = 141

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class RefusedJob(CommandError):
    """A job that cannot run as it is described."""

    exit_code = int(Exit.REFUSED)
