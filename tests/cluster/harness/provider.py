"""What a provider of clusters must do, and which one is taken here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from .errors import CannotRun
from .process import Process


class Provider(Protocol):
    """Brings a cluster up and does to it what tests ask for. Tests never see which one it is."""

    @property
    def name(self) -> str: ...

    @property
    def kubeconfig(self) -> Path: ...

    @property
    def nodes(self) -> tuple[str, ...]:
        """The real nodes; at least two."""
        ...

    def missing(self) -> str | None:
        """Why it cannot be had here, in one line; None if it can."""
        ...

    def is_up(self) -> bool:
        """Whether there is anything to take down."""
        ...

    def up(self, *, detach: bool, user: Process | None) -> None:
        """A healthy cluster, started if it is not up."""
        ...

    def leave(self, user: Process) -> None:
        """A session ends; take down what it started, if nobody else uses it."""
        ...

    def down(self) -> None: ...

    def status(self) -> list[str]: ...

    def tool(self, name: str) -> Path:
        """kubectl, helm or kwok."""
        ...

    def ensure_image(self, target: str) -> str:
        """Build the target's image if its content is new and put it where the nodes find it; its reference."""
        ...

    def on_node(self, name: str, image: str) -> bool:
        """Whether the node has the image."""
        ...

    def set_link(self, name: str, *, up: bool) -> None: ...

    def set_path(self, one: str, other: str, *, up: bool) -> None:
        """Drop, or pass again, what two pods send each other, by their addresses; nobody is told."""
        ...

    def stop_kubelet(self, name: str) -> None: ...

    def start_kubelet(self, name: str) -> None: ...

    def processes(self, uid: str, node: str) -> list[Process]:
        """The processes of a pod's containers, oldest first."""
        ...

    def signal(self, one: Process, number: int) -> None: ...

    def proc(self, one: Process, name: str) -> str:
        """A file of the process's folder in /proc; empty if it is gone."""
        ...

    def stop_api_server(self) -> None: ...

    def start_api_server(self) -> None: ...

    def enforce_network_policies(self) -> None:
        """From now on NetworkPolicy objects have effect."""
        ...

    def shared_directory(self, name: str, *, size_mb: int | None = None) -> str:
        """A folder that is the same on all nodes and writable for everyone; with a size it is a memory disk."""
        ...


def choose() -> Provider:
    """The first provider that can be had here.

    Raises:
        CannotRun: none can; one line says what each lacks.
    """
    from .context import Context  # here and not above: providers know this module's protocol
    from .gobuilt import GoBuilt
    from .kind import Kind

    if os.environ.get("DDPJOB_TEST_CONTEXT"):
        given = Context()
        if reason := given.missing():
            raise CannotRun(f"DDPJOB_TEST_CONTEXT: {reason}")
        return given
    reasons = []
    for candidate in (Kind(), GoBuilt()):
        if not (reason := candidate.missing()):
            return candidate
        reasons.append(f"{candidate.name}: {reason}")
    raise CannotRun(
        f"no Kubernetes for tests here ({'; '.join(reasons)}; or name one in DDPJOB_TEST_CONTEXT)"
    )
