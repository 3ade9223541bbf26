"""What a launcher is told: its environment (`names.LauncherEnv`), parsed once.

Why apart: everything behind this edge is typed, and a mistake in the environment is one sentence before anything has
started. Must not: start, connect or listen.
"""

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ddpjob_api.codec import Invalid, load, parse_spec
from ddpjob_api.goodput import Spent
from ddpjob_api.names import (
    CHECKPOINT_PATH,
    MEMORY_FOLDER,
    RUN_PATH,
    TERMINATION_LOG,
    TOKEN_PATH,
    LauncherEnv,
)
from ddpjob_api.plan import Plan, plan
from ddpjob_api.postmortem import FOLDER
from ddpjob_api.spec import Spec

if TYPE_CHECKING:
    from ddpjob_trainer.launcher.peers.shelf import Shelf


class Unusable(ValueError):
    """The environment is no launcher's; the message says which variable, what was expected, what to do."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One launcher of one job."""

    name: str
    uid: str
    spec: Spec
    plan: Plan
    node: int
    incarnation: int
    coordinator_host: str
    coordinator_port: int
    bind_host: str | None
    """None: all addresses."""
    advertise_host: str
    token: bytes
    restarts: int
    disruptions: int
    generation: int
    spent: Spent | None
    run_dir: Path
    checkpoint_dir: Path | None
    """None without `spec.checkpoint`."""
    history: Path | None
    """File of the node's history."""
    termination_log: Path
    pod_name: str
    pod_uid: str
    """Empty outside of a cluster."""
    host_node: str
    python: str

    @cached_property
    def shelf(self) -> "Shelf":
        """The folders of its checkpoints, and what is known of them."""
        from ddpjob_trainer.launcher.peers.shelf import Shelf

        checkpoint, task = self.spec.checkpoint, self.spec.task is not None
        return Shelf(
            folder=self.checkpoint_dir,
            memory=self.memory_dir,
            shared=checkpoint is not None and checkpoint.persistent_volume_claim is not None,
            by_step=task,
        )

    @property
    def post_mortem_dir(self) -> Path:
        """Beside the checkpoints, which outlive the pod more often; else beside the history, or where the pages are."""
        beside = self.history.parent if self.history is not None else self.run_dir
        return (self.checkpoint_dir or beside) / FOLDER

    @property
    def memory_dir(self) -> Path | None:
        """Where a task keeps copies in memory, if it does."""
        checkpoint = self.spec.checkpoint
        keeps = self.spec.task is not None and checkpoint is not None and checkpoint.in_memory_every_steps
        return self.run_dir / MEMORY_FOLDER if keeps else None

    @property
    def standby(self) -> bool:
        """Whether workers of the next generation stand by; a command's processes are its own."""
        return self.spec.recovery.warm_standby and self.spec.command is None

    @property
    def leads(self) -> bool:
        """Whether the coordinator lives in this launcher."""
        return self.node == 0

    @property
    def processes(self) -> int:
        """Children per node: a `command` starts its own workers."""
        return 1 if self.spec.command is not None else self.plan.processes_per_node

    @property
    def ranks(self) -> range:
        """The ranks of this node; for a `command` its one child is called by the node's first."""
        first = self.node * self.plan.processes_per_node
        return range(first, first + self.processes)

    @property
    def on_cluster(self) -> bool:
        """Whether an operator looks after missing pods."""
        return bool(self.pod_uid)

    @property
    def grace_seconds(self) -> float:
        return self.spec.recovery.grace_period.total_seconds()


def read(environ: Mapping[str, str]) -> Config:
    """The launcher's configuration.

    Raises:
        Unusable: a variable is missing or is not what it should be.
    """
    spec = spec_of(required(environ, LauncherEnv.SPEC))
    derived = plan(spec)
    node = whole(environ, LauncherEnv.NODE_INDEX)
    if node >= derived.nodes:
        raise Unusable(f"{LauncherEnv.NODE_INDEX.value}={node}: the job has nodes 0 to {derived.nodes - 1}")
    host, port = address(required(environ, LauncherEnv.COORDINATOR))
    checkpoint_dir = Path(environ.get(LauncherEnv.CHECKPOINT_DIR) or CHECKPOINT_PATH)
    return Config(
        name=environ.get(LauncherEnv.NAME) or "job",
        uid=environ.get(LauncherEnv.UID) or "",
        spec=spec,
        plan=derived,
        node=node,
        incarnation=whole(environ, LauncherEnv.INCARNATION, 0),
        coordinator_host=host,
        coordinator_port=port,
        bind_host=environ.get(LauncherEnv.BIND_HOST) or None,
        advertise_host=environ.get(LauncherEnv.ADVERTISE_HOST) or socket.gethostname(),
        token=token(Path(environ.get(LauncherEnv.TOKEN_FILE) or TOKEN_PATH)),
        restarts=whole(environ, LauncherEnv.RESTARTS, 0),
        disruptions=whole(environ, LauncherEnv.DISRUPTIONS, 0),
        generation=whole(environ, LauncherEnv.GENERATION, 0),
        spent=spent_of(environ.get(LauncherEnv.SPENT) or ""),
        run_dir=Path(environ.get(LauncherEnv.RUN_DIR) or RUN_PATH),
        checkpoint_dir=checkpoint_dir if spec.checkpoint is not None else None,
        history=history_file(environ, spec, node, checkpoint_dir),
        termination_log=termination_log(environ),
        pod_name=environ.get(LauncherEnv.POD_NAME) or "",
        pod_uid=environ.get(LauncherEnv.POD_UID) or "",
        host_node=environ.get(LauncherEnv.HOST_NODE) or "",
        python=sys.executable,
    )


def history_file(environ: Mapping[str, str], spec: Spec, node: int, checkpoints: Path) -> Path | None:
    """Where the history outlives this launcher; None where nothing does."""
    if environ.get(LauncherEnv.HISTORY):
        return Path(environ[LauncherEnv.HISTORY])
    shared = spec.checkpoint is not None and spec.checkpoint.persistent_volume_claim is not None
    return checkpoints / f".history-{node}.jsonl" if shared else None


def termination_log(environ: Mapping[str, str]) -> Path:
    """Where the last words go; known even where nothing else is."""
    return Path(environ.get(LauncherEnv.TERMINATION_LOG) or TERMINATION_LOG)


def spec_of(text: str) -> Spec:
    try:
        return parse_spec(json.loads(text))
    except (ValueError, Invalid) as error:
        raise Unusable(f"{LauncherEnv.SPEC.value}: no spec of a DDPJob: {error}") from error


def spent_of(text: str) -> Spent | None:
    try:
        return load(Spent, json.loads(text)) if text else None
    except (ValueError, Invalid) as error:
        raise Unusable(f"{LauncherEnv.SPENT.value}: not what time was spent on: {error}") from error


def required(environ: Mapping[str, str], name: LauncherEnv) -> str:
    value = environ.get(name)
    if not value:
        raise Unusable(
            f"{name.value} is not set; a launcher is started by the operator or by `ddpjob run`, which set it"
        )
    return value


def whole(environ: Mapping[str, str], name: LauncherEnv, default: int | None = None) -> int:
    text = environ.get(name) or ""
    if not text and default is not None:
        return default
    if not text.isdecimal() or not text.isascii():
        raise Unusable(f"{name.value}={text!r}: expected a whole number that is not negative")
    return int(text)


def address(text: str) -> tuple[str, int]:
    """`host:port`, with an IPv6 host in brackets."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Unusable(f"{LauncherEnv.COORDINATOR.value}={text!r}: expected host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def token(path: Path) -> bytes:
    try:
        found = path.read_bytes().strip()
    except OSError as error:
        raise Unusable(f"the job's token cannot be read: {path}: {os.strerror(error.errno or 0)}") from error
    if not found:
        raise Unusable(f"the job's token is empty: {path}")
    return found
