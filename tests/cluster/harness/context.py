"""A cluster that somebody names: DDPJOB_TEST_CONTEXT, in DDPJOB_TEST_KUBECONFIG or the user's kubeconfig.

Never the user's current context without being asked. What only a machine's owner can do (cut a node off, kill a
process in a pod) is refused with a sentence, and the test skips.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from . import images, process
from .binaries import KUBERNETES
from .errors import CannotRun
from .process import Process
from .shell import run


class Context:
    """Provider of a given context. Images come from where DDPJOB_TEST_REGISTRY says that they were pushed to."""

    name = "given context"

    @property
    def context(self) -> str:
        return os.environ.get("DDPJOB_TEST_CONTEXT", "")

    @cached_property
    def kubeconfig(self) -> Path:
        """A copy with this one context, so that no command can reach another cluster."""
        given = os.environ.get("DDPJOB_TEST_KUBECONFIG")
        source = [f"--kubeconfig={given}"] if given else []
        view = ["config", "view", "--minify", "--flatten", "--raw", f"--context={self.context}"]
        folder = Path(tempfile.mkdtemp(prefix="ddpjob-context-"))
        target = folder / "kubeconfig"
        target.touch(mode=0o600)
        target.write_text(run(self.tool("kubectl"), *source, *view))
        return target

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        listed = run(self.tool("kubectl"), f"--kubeconfig={self.kubeconfig}", "get", "nodes", "-o", "json")
        nodes = json.loads(listed)["items"]
        return tuple(
            one["metadata"]["name"]
            for one in nodes
            if not any(taint["effect"] == "NoSchedule" for taint in one["spec"].get("taints", []))
        )

    def missing(self) -> str | None:
        try:
            if len(self.nodes) < 2:
                return f"the context {self.context} has {len(self.nodes)} usable nodes, two are needed"
        except Exception as failure:  # whatever it is, it is why this cluster cannot be used
            return f"the context {self.context} cannot be used: {failure}"
        return None

    def is_up(self) -> bool:
        return False  # nothing of ours

    def up(self, *, detach: bool, user: Process | None) -> None:
        """It is up; it is somebody else's."""

    def leave(self, user: Process) -> None:
        shutil.rmtree(self.kubeconfig.parent)

    def down(self) -> None:
        self._refuse("take anything down")

    def status(self) -> list[str]:
        return [f"context {self.context}, nodes {', '.join(self.nodes)}"]

    def tool(self, name: str) -> Path:
        return on_path_or_built(name)

    def ensure_image(self, target: str) -> str:
        registry = os.environ.get("DDPJOB_TEST_REGISTRY")
        if not registry:
            raise CannotRun(
                "DDPJOB_TEST_REGISTRY must name the registry and folder that hold the images to test"
            )
        return images.reference(target).replace(f"{images.HOST}/ddpjob", registry, 1)

    def on_node(self, name: str, image: str) -> bool:
        return True  # its nodes pull by themselves

    def set_link(self, name: str, *, up: bool) -> None:
        self._refuse("cut a node off")

    def set_path(self, one: str, other: str, *, up: bool) -> None:
        self._refuse("part two pods")

    def stop_kubelet(self, name: str) -> None:
        self._refuse("end a kubelet")

    def start_kubelet(self, name: str) -> None:
        self._refuse("start a kubelet")

    def processes(self, uid: str, node: str) -> list[Process]:
        self._refuse("see a pod's processes")

    def signal(self, one: process.Process, number: int) -> None:
        self._refuse("kill a process in a pod")

    def proc(self, one: process.Process, name: str) -> str:
        self._refuse("look at a process in a pod")

    def stop_api_server(self) -> None:
        self._refuse("stop the API server")

    def start_api_server(self) -> None:
        self._refuse("start the API server")

    def enforce_network_policies(self) -> None:
        """Its network does or does not; the test will show."""

    def shared_directory(self, name: str, *, size_mb: int | None = None) -> str:
        self._refuse("share a folder between nodes")

    def _refuse(self, what: str) -> NoReturn:
        raise CannotRun(f"the harness may not {what} in the given context {self.context}")


def on_path_or_built(name: str) -> Path:
    """The user's kubectl, helm or kwok; built where there is none."""
    found = shutil.which(name)
    return Path(found) if found else KUBERNETES.ensure([name]) / name
