"""Exit codes of launchers and of `ddpjob run`, for people and for the operator's message.

Why apart: they are documented, so they must not change by accident. They decide nothing: a program may end with any
of them by itself; verdicts come from reports and termination messages.
"""

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0
    """Every worker of every node ended with 0."""
    STOPPED = 85
    """Stopped on request; state saved where a checkpoint is configured."""
    REFUSED = 86
    """The configuration cannot work; the message says why."""
    HUNG = 87
    """No rank of the job made a step for too long, and no restart was left; the message names who was behind."""
    PEER_LOST = 88
    """This node did nothing wrong; another one failed the job."""


def exit_code(returncode: int) -> int:
    """A shell's exit code of a Python `returncode`: 128 + signal for a process that died of one."""
    return returncode if returncode >= 0 else 128 - returncode
