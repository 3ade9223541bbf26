"""What the coordinator asks its server to do.

Why apart: the server executes these without knowing the state machine, and tests read them.
"""

from dataclasses import dataclass

from ddpjob_api.messages import Message


@dataclass(frozen=True)
class Send:
    link: int
    message: Message


@dataclass(frozen=True)
class Refuse:
    """Say why and close."""

    link: int
    message: str
    replaced: bool = False
    """The peer was admitted and must end now, for good."""


@dataclass(frozen=True)
class Admit:
    """Say welcome; always before anything else on that connection."""

    link: int


@dataclass(frozen=True)
class Close:
    link: int


@dataclass(frozen=True)
class Say:
    """A line for the log."""

    text: str


Action = Send | Refuse | Admit | Close | Say
