"""What launchers say about a run: failures, progress, and the reports that leave the pod.

Why apart: four readers (coordinator, termination message, operator, `ddpjob run`) take the same values; each report
is small JSON, read with `codec.load` and therefore checked against these types.
"""

from dataclasses import dataclass
from enum import StrEnum

from ddpjob_api.conditions import Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.fields import Json, limited
from ddpjob_api.goodput import Spent

MAX_TERMINATION_BYTES = 4096
"""What the kubelet keeps of a termination message."""
MAX_REPORT_BYTES = 65536
"""The largest `/status` a reader accepts."""
BACKEND_MAX = 32
"""Characters of a backend's name that are reported."""
BUCKETS_MAX = 64
"""Buckets whose sizes are reported."""


class Cause(StrEnum):
    """How a worker's end came about."""

    OWN = "Own"
    """It failed by itself, or died of a signal that no launcher sent."""
    VICTIM = "Victim"
    """Its error is a lost peer or a time-out of a collective."""
    KILLED = "Killed"
    """It died of the launcher's signal."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure with its culprit (`status.lastFailure`)."""

    reason: Reason
    rank: int | None = None
    node: int | None = None
    """Index of the pod."""
    pod: str | None = limited(None, max_length=253)
    pod_uid: str | None = limited(None, max_length=64)
    host_node: str | None = limited(None, max_length=253)
    exit_code: int | None = None
    signal: str | None = limited(None, max_length=32)
    """`SIGKILL` …, where it died of one."""
    message: str = limited("", max_length=1024)
    """The program's own last words: `ValueError: bad sample 17`."""
    location: str | None = limited(None, max_length=512)
    """`file:line` in the user's code."""
    step: int | None = None
    generation: int = 0
    at: str | None = limited(None, max_length=40)
    """RFC 3339, UTC."""
    also: tuple[int, ...] = limited((), max_items=16)
    """Other ranks that failed by themselves in the same incident."""


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How one worker ended, as its launcher saw it."""

    rank: int
    returncode: int
    """Python's: negative for a signal."""
    cause: Cause
    error_type: str | None = limited(None, max_length=256)
    message: str = limited("", max_length=1024)
    location: str | None = limited(None, max_length=512)
    step: int = 0
    oom_killed: bool = False
    refused: bool = False
    """The trainer refused the configuration; trying again cannot help."""
    late: bool = False
    """Its error is a time-out: a peer may be alive and stuck."""


@dataclass(frozen=True, kw_only=True)
class RankView:
    """Where one rank stood when its generation was stopped: its page, its process, its stacks."""

    rank: int
    step: int = 0
    sequence: int = 0
    """Collectives begun, as last counted; 0 where the backend does not count."""
    micro_batches: int = 0
    backward_passes: int = 0
    """Begun, the present one included."""
    joined: bool = False
    """It was in its process group."""
    phase: str = limited("", max_length=16)
    phase_seconds: float = 0.0
    stopped: bool = False
    """Its process was stopped (SIGSTOP, a debugger)."""
    ended: bool = False
    """It had ended with 0."""
    place: str | None = limited(None, max_length=256)
    """The innermost frame of the user's code: `train.py:20 in load`."""
    in_collective: bool | None = None
    """Whether its stack ends in a collective or a backward pass; None where no stack is known."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far the training is, from rank 0's page (`status.progress`)."""

    step: int = 0
    total_steps: int | None = None
    epoch: int | None = None
    loss: float | None = None
    samples_per_second: float | None = None
    eta: float | None = limited(None, name="etaSeconds")
    checkpoint_step: int | None = None
    checkpoint_at: str | None = limited(None, max_length=40)
    """RFC 3339: when that checkpoint was complete."""
    micro_batches: int = 0
    samples: int = 0


def out_of_memory(limit: str | None) -> str:
    """What became of a process or container that the kernel killed for memory; `limit` as a pod's spec has it."""
    return f"ran out of memory{f' (limit {limit})' if limit else ''} and was killed"


class RunState(StrEnum):
    """Where the coordinator stands."""

    WAITING = "Waiting"
    """Not all launchers are there."""
    RUNNING = "Running"
    STOPPING = "Stopping"
    FINISHED = "Finished"


class Outcome(StrEnum):
    """How a job (or this node's part of it) ended."""

    DONE = "Done"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REFUSED = "Refused"


@dataclass(frozen=True, kw_only=True)
class Override:
    """A value that the script asked for and did not get (or, with `overrides: Report`, kept)."""

    setting: str = limited(max_length=64)
    """The resource's name: `bucketCapMB`."""
    asked: str = limited(max_length=128)
    effective: str = limited(max_length=128)
    where: str = limited(max_length=512)
    """`file:line` of the script."""
    applied: bool = True


@dataclass(frozen=True, kw_only=True)
class InEffect:
    """The DDP settings read back from the running process group and DDP object (`status.ddp`)."""

    backend: str | None = limited(None, max_length=BACKEND_MAX)
    timeout: float | None = limited(None, name="timeoutSeconds")
    bucket_cap_mb: float | None = limited(None, name="bucketCapMB")
    """None where torch's default (25 MiB, first bucket 1 MiB) is in effect."""
    broadcast_buffers: bool | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    gradient_accumulation_steps: int | None = None
    """Backward passes per optimizer step as observed."""
    bucket_bytes: tuple[int, ...] = limited((), max_items=BUCKETS_MAX)
    """Sizes of the buckets in use (after DDP rebuilt them), the first 64."""
    world_size: int | None = None
    all_reduces: int | None = None
    """Synchronised backward passes counted by torch's reducer (`iteration` of its logging data), of this generation:
    a restart makes a new reducer, and what an earlier one did is not in it (`steps` counts on)."""
    overrides: tuple[Override, ...] = limited((), max_items=16)
    warnings: tuple[str, ...] = limited((), max_items=16, max_item_length=512)
    not_resuming: str | None = limited(None, max_length=512)
    """A later generation of a script began again at step 0, and what to do about it."""


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """`GET /status` of the coordinator; also what `ddpjob run` shows."""

    protocol: int
    name: str
    state: RunState
    term: int
    generation: int
    nodes_joined: int
    nodes_expected: int
    missing_nodes: tuple[int, ...] = limited((), max_items=32)
    """Indexes not there, the first 32."""
    restarts: int = 0
    disruptions: int = 0
    progress: Progress = limited(factory=Progress)
    ddp: InEffect | None = None
    result: Json = limited(factory=dict)
    """What the program reported at its end: accuracy …"""
    last_failure: Failure | None = None
    failures: tuple[Failure, ...] = limited((), max_items=8)
    """The newest 8."""
    outcome: Outcome | None = None
    ranks: int = 0
    """World size."""
    restoring: str = limited("", max_length=512)
    """What is fetched or compared before the next generation begins, or why it cannot be."""
    back_off: float | None = limited(None, name="backOffSeconds")
    """How long the next generation is held back after failures without a step between them; None: it is not."""
    checkpoint_trouble: str = limited("", max_length=512)
    """Why checkpoints cannot be written; empty while they can. The same words as long as the cause is the same."""
    efficiency: Efficiency | None = None
    """How well the ranks work together, once enough steps were made."""
    hung: bool = False
    """A generation hung (no step was made, or collectives timed out), and no step has been made since."""
    passed_over: str = limited("", max_length=512)
    """Checkpoints that were damaged or cannot be used, so that this generation goes on from elsewhere."""
    spent: Spent | None = None
    """What the time went to, since the job's start."""


@dataclass(frozen=True, kw_only=True)
class TerminationMessage:
    """The JSON a launcher leaves in its termination log, within `MAX_TERMINATION_BYTES`."""

    protocol: int
    outcome: Outcome
    exit_code: int
    node: int
    term: int
    generation: int
    restarts: int
    disruptions: int
    message: str = limited("", max_length=1024)
    """One sentence for `kubectl describe`."""
    failure: Failure | None = None
    progress: Progress | None = None
    result: Json = limited(factory=dict)
    ddp: InEffect | None = None
    spent: Spent | None = None
    efficiency: Efficiency | None = None
    """In that of node 0."""
