"""The wire between launchers and coordinator: one JSON object a line, each a type of this module.

Why apart: both ends and their tests read one definition. Must not: carry code, paths or environment (a launcher
obeys only what these types can say). The version is `PROTOCOL`; an end that meets another one says so and waits for
the operator to replace it (a running job never mixes versions, DESIGN: runtime is pinned).

A connection: the coordinator sends Challenge, the launcher Hello with its proof, the coordinator Welcome with its own
(or Reject). Then Beat and the launcher's reports go up, Prepare / Start / Stop / Pause / StopAt / Finish come down.
Files never pass here, but from launcher to launcher (`Prepare` says from whom). Each end
drops a connection that was silent for `SILENCE_SECONDS`.
"""

import hashlib
import hmac
import json
from dataclasses import dataclass
from typing import Any

from ddpjob_api.codec import Invalid, Problem, load, render
from ddpjob_api.fields import Json, limited
from ddpjob_api.goodput import Spent
from ddpjob_api.metrics import LOCAL_PHASES
from ddpjob_api.report import Failure, Outcome, RankView, WorkerExit

PROTOCOL = 1
MAX_LINE_BYTES = 65536
BEAT_SECONDS = 1.0
SILENCE_SECONDS = 4.0
SUMS = ("steps", "seconds", "comm_exposed", "other", *LOCAL_PHASES)
"""What a launcher says of a rank: steps, their wall time, and the seconds of phases, since its generation began."""


@dataclass(frozen=True, kw_only=True)
class Challenge:
    """Coordinator, first line."""

    protocol: int
    nonce: str = limited(max_length=128)


@dataclass(frozen=True, kw_only=True)
class Hello:
    """Launcher's answer: who it is, what it knows. A new coordinator learns all it needs from these."""

    protocol: int
    nonce: str = limited(max_length=128)
    proof: str = limited(max_length=128)
    """`prove(token, "launcher", coordinator's nonce, own nonce)`."""
    node: int
    incarnation: int
    pod: str = limited("", max_length=253)
    pod_uid: str = limited("", max_length=64)
    host_node: str = limited("", max_length=253)
    address: str = limited("", max_length=253)
    """Where other pods reach this launcher's workers."""
    term: int = 0
    """The highest term it obeyed."""
    generation: int = 0
    """The newest generation it has seen; while `running`, the one its workers belong to."""
    running: bool = False
    restarts: int = 0
    disruptions: int = 0
    last_failure: Failure | None = None
    """The first own failure here in `generation` that no coordinator has counted yet (`Beat.judged`)."""
    checkpoints: tuple[int, ...] = limited((), max_items=1024)
    """Steps of the complete checkpoints it can read, newest last."""
    tree: str = limited("", max_length=64)
    """Digest of what a script keeps in the checkpoint folder; empty where there is nothing."""
    giver_port: int = 0
    """Where the other launchers may fetch its checkpoints, at `address`; 0: nowhere."""
    done: bool = False
    """All its workers of `generation` ended with 0 (a coordinator lost after that must not run them again)."""
    leaving: bool = False
    judged: int = 0
    """The newest generation whose end is in its two counts, as far as it was told."""
    spent: Spent | None = None
    """What the time went to, as far as it was told."""


@dataclass(frozen=True, kw_only=True)
class Welcome:
    """Coordinator: it knows the token too."""

    proof: str = limited(max_length=128)
    """`prove(token, "coordinator", launcher's nonce, own nonce)`."""
    term: int


@dataclass(frozen=True, kw_only=True)
class Reject:
    """Coordinator: why the launcher may not join."""

    message: str = limited(max_length=512)
    replaced: bool = False
    """A newer incarnation has this index, so this launcher must end; obeyed only after the coordinator's Welcome."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How far a launcher's first rank is in its generation; ages are of the moment of sending."""

    step: int = 0
    made: int = 0
    """Steps of this generation."""
    first_seconds: float = 0.0
    """Since its first step was complete."""
    last_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Beat:
    """Both ways, every `BEAT_SECONDS`; a launcher adds where its ranks are, the coordinator what it has counted."""

    generation: int = 0
    steps: tuple[int, ...] = limited((), max_items=256)
    """Optimizer step per local rank."""
    ended: bool = False
    """Launcher: a rank here has ended with 0."""
    waits_seconds: float = 0.0
    """Launcher: for how long a rank here has been inside one step (forward, backward, optimizer)."""
    patient_step: int | None = None
    """Both: at which step a rank (the launcher's, any of the job) saves, evaluates or loads, the first of several."""
    pace: Pace | None = None
    """Launcher: of a rank here, once it has made a step."""
    sums: tuple[float, ...] = limited((), max_items=256 * len(SUMS))
    """Launcher, now and then: `SUMS` of each local rank, one after the other."""
    restarts: int = 0
    disruptions: int = 0
    judged: int = 0
    """Coordinator: the newest generation whose end is in the two counts; a successor must not count it again."""
    spent: Spent | None = None
    """Coordinator: what the time went to, for its successor."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """Launcher: a worker ended otherwise than with 0 or on request."""

    generation: int
    exits: tuple[WorkerExit, ...] = limited(max_items=256)


@dataclass(frozen=True, kw_only=True)
class Hung:
    """Launcher: a rank here made no step for too long; where all of its ranks stand."""

    generation: int
    seconds: float
    ranks: tuple[RankView, ...] = limited(max_items=64)


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Launcher: none of its workers of this generation lives any more."""

    generation: int
    exits: tuple[WorkerExit, ...] = limited((), max_items=256)
    checkpoints: tuple[int, ...] = limited((), max_items=1024)
    tree: str = limited("", max_length=64)
    ranks: tuple[RankView, ...] = limited((), max_items=64)
    """Where its ranks stood when they were stopped, those furthest behind first."""
    pace: Pace | None = None


@dataclass(frozen=True, kw_only=True)
class Preparing:
    """Launcher, every second of a Prepare: how far it is."""

    attempt: int
    source: int | None = None
    """The node it fetches from; None while it compares what it has."""
    done_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Unable:
    """Why one source could not give."""

    node: int
    why: str = limited("", max_length=256)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Launcher: how a Prepare ended; it has what it was asked for if nothing else is said."""

    attempt: int
    damaged: str = limited("", max_length=512)
    """What it had is not what was written, and has been set aside."""
    passed_over: str = limited("", max_length=512)
    """Newer checkpoints there have lost a part since they were written, or cannot be deleted, and are not gone on from."""
    unable: tuple[Unable, ...] = limited((), max_items=16)
    """None of the sources could give it."""
    refused: str = limited("", max_length=512)
    """It cannot be taken here, whoever gives."""
    checkpoints: tuple[int, ...] = limited((), max_items=1024)
    tree: str = limited("", max_length=64)


@dataclass(frozen=True, kw_only=True)
class Done:
    """Launcher: all its workers of this generation ended with 0."""

    generation: int
    result: Json = limited(factory=dict)
    ranks: tuple[RankView, ...] = limited((), max_items=64)
    """Where they ended, for the case that others go on without them."""
    pace: Pace | None = None


@dataclass(frozen=True, kw_only=True)
class Leave:
    """Launcher: it was told to go (SIGTERM). Only this launcher exits; `whole_job`: all do."""

    generation: int
    whole_job: bool = False


@dataclass(frozen=True, kw_only=True)
class Paused:
    """Launcher: the highest step boundary among its ranks, read after they saw the pause word."""

    generation: int
    boundary: int
    held: bool = False
    """Every rank here that has reached `boundary` can still stop at it."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A launcher that gives its checkpoints."""

    node: int
    host: str = limited(max_length=253)
    port: int = limited(minimum=1, maximum=65535)


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Coordinator, before a Start: have this step, intact (a script: what the sources have), and say so."""

    term: int
    attempt: int
    step: int | None = None
    sources: tuple[Source, ...] = limited((), max_items=16)
    """From whom to take a step that is not here, one after the other; a script's folder: all of them."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Coordinator: begin this generation."""

    term: int
    generation: int
    master_address: str = limited(max_length=253)
    master_port: int
    restarts: int
    disruptions: int
    resume_step: int | None = None
    neighbour: Source | None = None
    """Of whose checkpoint folder this launcher keeps a copy meanwhile, where a script writes it."""


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Coordinator: end the workers of this generation."""

    term: int
    generation: int
    why: str = limited(max_length=1024)
    post_mortem: bool = False
    """Keep the stacks and pages of all ranks first: nobody knows yet who is to blame."""


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Coordinator: hold at the next step boundary and say which it is."""

    term: int
    generation: int


@dataclass(frozen=True, kw_only=True)
class StopAt:
    """Coordinator: every rank saves at this boundary and ends with `Exit.STOPPED`."""

    term: int
    generation: int
    step: int


@dataclass(frozen=True, kw_only=True)
class Finish:
    """Coordinator: exit. The code is this node's."""

    term: int
    outcome: Outcome
    exit_code: int
    restarts: int
    disruptions: int
    failure: Failure | None = None
    result: Json = limited(factory=dict)
    spent: Spent | None = None


Message = (
    Challenge | Hello | Welcome | Reject | Beat | Failed | Hung | Stopped | Done | Leave | Paused
    | Preparing | Prepared | Prepare | Start | Stop | Pause | StopAt | Finish
)  # fmt: skip

KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        Challenge, Hello, Welcome, Reject, Beat, Failed, Hung, Stopped, Done, Leave, Paused,
        Preparing, Prepared, Prepare, Start, Stop, Pause, StopAt, Finish,
    )
}  # fmt: skip


def encode(message: Message) -> bytes:
    """One line, newline included."""
    body = {"op": type(message).__name__, **render(message)}
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message in a line.

    Raises:
        Invalid: no JSON, an unknown op, or fields that are not the op's.
    """
    try:
        body = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Invalid([Problem(path=(), message=f"not JSON: {error}")]) from error
    if not isinstance(body, dict) or body.get("op") not in KINDS:
        raise Invalid([Problem(path=("op",), message="unknown message")])
    kind = KINDS[body.pop("op")]
    message: Message = load(kind, body)
    return message


def prove(token: bytes, role: str, theirs: str, mine: str) -> str:
    """Proof that an end knows the token, bound to its role and to both nonces (HMAC-SHA256, hex)."""
    return hmac.new(token, f"{role}|{theirs}|{mine}".encode(), hashlib.sha256).hexdigest()


def announcement(token: bytes, caller: str) -> str:
    """Bearer of a coordinator's call to a launcher: good for this address and term only, whoever may get to see it."""
    return hmac.new(token, f"coordinator|{caller}".encode(), hashlib.sha256).hexdigest()


def status_key(token: bytes) -> str:
    """Bearer of `/status`, `/stop` and `/addresses`: a reader needs no token that could join."""
    return hmac.new(token, b"status", hashlib.sha256).hexdigest()
