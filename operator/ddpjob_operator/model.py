"""The status of a DDPJob as a type, and how it is read and written.

Why apart: it is the operator's only memory, so every field of it stands here with its meaning; `crds/ddpjob.yaml`
says the same. Must not: decide what the status should be (`status.py`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar, cast, get_args, get_origin

from ddpjob_api.codec import Problem, decode_value, render, shapes
from ddpjob_api.conditions import Condition, Reason
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.fields import Json, limited
from ddpjob_api.goodput import ByUse
from ddpjob_api.report import Failure, InEffect

T = TypeVar("T")
MESSAGE_MAX = 4096
ETA_MAX = 16
RESULT_FIELDS = 32


class Truth(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, kw_only=True)
class ConditionState:
    """One entry of `status.conditions`."""

    type: str = limited(max_length=64)
    status: str
    reason: str = limited(max_length=64)
    message: str = limited(max_length=MESSAGE_MAX)
    last_transition_time: str
    observed_generation: int | None = None


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Pods counted."""

    desired: int = 0
    ready: int = 0
    active: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, kw_only=True)
class ProgressState:
    """`status.progress`: the coordinator's numbers and what the columns show."""

    step: int = 0
    total_steps: int | None = None
    epoch: int | None = None
    percent: int | None = None
    text: str | None = limited(None, max_length=32)
    loss: float | None = None
    samples_per_second: float | None = None
    eta_seconds: int | None = None
    eta: str | None = limited(None, max_length=ETA_MAX)
    checkpoint_step: int | None = None
    checkpoint_at: str | None = None
    updated_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """What the pods of this run are made from; replacements take the same, and the template as it is by then."""

    image: str = limited("", max_length=1024)
    trainer_from: str = limited("", max_length=1024)
    """The image whose trainer is put beside `image`; empty where that has its own."""
    trainer_version: str = limited("", max_length=64)
    protocol: int = 0
    template_hash: str = limited("", max_length=64)
    spec_hash: str = limited("", max_length=64)
    """Of what may not change while the job runs (`pinning.py`); empty where an older operator made the pods."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """The newest incident the ledger counted: pods it took down later are part of it (`ledger.py`)."""

    generation: int = 0
    incarnation: int = 0
    """Pods with a lower one were there when it happened."""
    restart: bool = False
    """A pod's end, which `restarts` counts, ended the generation: a coordinator may call that a lost pod."""


@dataclass(frozen=True, kw_only=True)
class Misjudged:
    """Disruptions in the coordinators' totals that were restarts: to them, a container out of memory is a lost one."""

    count: int = 0
    generation: int = 0
    """That the newest of them ended; a coordinator counts one a generation."""


@dataclass(frozen=True, kw_only=True)
class Rendezvous:
    """Attempts in a row in which the ranks did not meet (`rendezvous.py`)."""

    attempts: int = 0
    retry_at: str | None = None
    """When pods are made again; until then there are none."""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What was told of ranks that wait much for data or for gradients (`lasting.py`)."""

    told: bool = False
    """The event LowEfficiency was made, and since then they have not done well for long."""
    since: str | None = None
    """Since when it has been otherwise without a break."""


@dataclass(frozen=True, kw_only=True)
class Startup:
    """How far the job has come since it was made or last resumed; each moment is written once (`startup.py`)."""

    pods_created_at: str | None = None
    pods_running_at: str | None = None
    first_step_at: str | None = None


@dataclass(frozen=True, kw_only=True)
class TimeState(ByUse[int]):
    """Whole seconds by `goodput.Use`; they never shrink (`spending.py`)."""

    useful_seconds: int = 0
    queueing_seconds: int = 0
    start_seconds: int = 0
    restart_seconds: int = 0
    hang_seconds: int = 0
    repeated_seconds: int = 0
    other_seconds: int = 0


@dataclass(frozen=True, kw_only=True)
class Status:
    """`status` of a DDPJob."""

    observed_generation: int | None = None
    state: str | None = limited(None, max_length=32)
    reason: str | None = limited(None, max_length=64)
    conditions: tuple[ConditionState, ...] = limited((), max_items=16)
    start_time: str | None = None
    completion_time: str | None = None
    nodes: Nodes = limited(factory=Nodes)
    ready: str | None = limited(None, max_length=16)
    restarts: int = 0
    disruptions: int = 0
    generation: int = 0
    next_incarnation: int = 0
    """Replacements take the number before this one; 0: no pod was ever made."""
    incident: Incident | None = None
    misjudged: Misjudged | None = None
    rendezvous: Rendezvous | None = None
    active_seconds: int = 0
    active_since: str | None = None
    startup: Startup | None = None
    progress: ProgressState | None = None
    goodput_percent: int | None = None
    time: TimeState | None = None
    result: Json = limited(factory=dict, max_items=RESULT_FIELDS)
    ddp: InEffect | None = None
    efficiency: Efficiency | None = None
    waiting: Waiting | None = None
    last_failure: Failure | None = None
    runtime: Runtime | None = None

    def condition(self, kind: Condition) -> ConditionState | None:
        return next((found for found in self.conditions if found.type == kind), None)

    def truth(self, kind: Condition) -> Truth:
        """That of a condition; one that is not there is false."""
        found = self.condition(kind)
        return next((truth for truth in Truth if found is not None and found.status == truth), Truth.FALSE)

    def is_true(self, kind: Condition) -> bool:
        return self.truth(kind) is Truth.TRUE

    @property
    def finished(self) -> bool:
        return self.is_true(Condition.COMPLETE) or self.is_true(Condition.FAILED)

    def apart_until(self, now: datetime) -> datetime | None:
        """Until when no pods are made because the ranks of the last ones did not meet; None: they are made."""
        until = moment_of(self.rendezvous.retry_at) if self.rendezvous else None
        return until if until is not None and now < until else None

    def active_for(self, now: datetime) -> timedelta:
        """How long the job was not suspended."""
        since = moment_of(self.active_since)
        return timedelta(seconds=self.active_seconds) + (now - since if since else timedelta())

    @property
    def coordinators_disruptions(self) -> int:
        """Disruptions as coordinators count them."""
        return self.disruptions + (self.misjudged.count if self.misjudged else 0)

    @property
    def incarnation(self) -> int:
        """The number that pods made now carry."""
        return max(0, self.next_incarnation - 1)


def set_condition(
    status: Status, kind: Condition, truth: Truth, reason: Reason, message: str, *, now: datetime
) -> Status:
    """The status with that condition; its transition time moves only when its truth does."""
    old = status.condition(kind)
    moved = old is None or old.status != truth
    new = ConditionState(
        type=kind.value,
        status=truth.value,
        reason=reason.value,
        message=message[:MESSAGE_MAX],
        last_transition_time=stamp(now) if old is None or moved else old.last_transition_time,
        observed_generation=status.observed_generation,
    )
    if old is not None and replace(old, observed_generation=new.observed_generation) == new:
        return replace(status, conditions=tuple(new if c.type == kind else c for c in status.conditions))
    others = [found for found in status.conditions if found.type != kind]
    order = list(Condition)
    conditions = sorted(
        [*others, new], key=lambda c: order.index(Condition(c.type)) if c.type in order else 99
    )
    return replace(status, conditions=tuple(conditions))


def read_status(document: object) -> Status:
    """The status in a resource. What cannot be read (another version wrote it) is as if it were not there."""
    return tolerant(Status, document)


def write_status(status: Status) -> dict[str, Any]:
    """The document that stands in the resource; zeros that people look for are spelled out."""
    document: dict[str, Any] = render(status)
    document["restarts"] = status.restarts
    document["disruptions"] = status.disruptions
    nodes = status.nodes
    document["nodes"] = {
        "desired": nodes.desired, "ready": nodes.ready, "active": nodes.active,
        "succeeded": nodes.succeeded, "failed": nodes.failed,
    }  # fmt: skip
    if status.progress is not None:
        document["progress"] = {"step": status.progress.step, **render(status.progress)}
    if status.runtime is not None:
        document["runtime"] = {
            "image": status.runtime.image,
            **({"trainerFrom": status.runtime.trainer_from} if status.runtime.trainer_from else {}),
            "trainerVersion": status.runtime.trainer_version,
            "protocol": status.runtime.protocol,
            "templateHash": status.runtime.template_hash,
            **({"specHash": status.runtime.spec_hash} if status.runtime.spec_hash else {}),
        }
    cleaned: dict[str, Any] = finite(document)
    return cleaned


def tolerant(kind: type[T], document: object) -> T:
    """A `kind` with every field that can be read; a required field that cannot takes its type's zero."""
    values: dict[str, Any] = {}
    given = document if isinstance(document, Mapping) else {}
    for shape in shapes(cast("Any", kind)):
        item = given.get(shape.name)
        if item is None:
            if shape.required:
                values[shape.field.name] = zero(shape.hint)
            continue
        if is_dataclass(shape.hint):
            values[shape.field.name] = tolerant(cast("type[Any]", shape.hint), item)
            continue
        if get_origin(shape.hint) is tuple and is_dataclass(get_args(shape.hint)[0]):
            inner = get_args(shape.hint)[0]
            items = item if isinstance(item, list) else []
            values[shape.field.name] = tuple(tolerant(inner, each) for each in items)
            continue
        problems: list[Problem] = []
        value = decode_value(shape.hint, item, (), shape.limits, problems)
        if not problems:
            values[shape.field.name] = value
        elif shape.required:
            values[shape.field.name] = zero(shape.hint)
    return kind(**values)


def zero(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return Reason.UNKNOWN if hint is Reason else next(iter(hint))
    return hint()


def finite(value: Any) -> Any:
    """The document without NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items() if not (isinstance(v, float) and not math.isfinite(v))}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return value


def stamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, UTC."""
    # Not strftime, whose years before 1000 have fewer than four digits.
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def moment_of(text: object) -> datetime | None:
    """The time in an RFC 3339 text; None where there is none, or one that no calendar has in UTC."""
    if not isinstance(text, str):
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
