"""What can be seen of a job, as typed values: the same of a DDPJob on a cluster and of a run on this machine.

Why apart: findings are a pure function of this, so every sentence has a row in a test. Must not: judge.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpjob_api.conditions import Condition
from ddpjob_api.efficiency import Efficiency
from ddpjob_api.goodput import Times
from ddpjob_api.report import Failure, InEffect
from ddpjob_api.spec import Spec
from ddpjob_cli.ranks import Rank


@dataclass(frozen=True, kw_only=True)
class ConditionSeen:
    """One of `status.conditions`."""

    status: str
    """True, False, Unknown."""
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class PodSeen:
    """One pod of the job."""

    name: str
    index: int
    phase: str
    """Kubernetes' word: Pending, Running, Succeeded, Failed."""
    host: str = ""
    ready: bool = False
    leaving: bool = False
    reason: str = ""
    """Of what it waits for or ended with: the kubelet's, the scheduler's or the container's word."""
    message: str = ""
    exit_code: int | None = None
    gated: bool = False
    """Scheduling gates are on it: a queue holds it."""
    memory_limit: str = ""
    age_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class EventSeen:
    """One event about the job or one of its pods, newest last."""

    about: str
    """`pod digits-0`."""
    reason: str
    message: str
    warning: bool
    count: int = 1
    age_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that findings follow from."""

    name: str
    place: str
    """`namespace default`, or the folder of a local run."""
    local: bool = False
    namespace: str = ""
    """Of a job on a cluster, which has these two."""
    uid: str = ""
    age_seconds: float = 0.0
    spec: Spec | None = None
    """None where it cannot be read as one."""
    managed: bool = True
    """Whether an operator has written a status."""
    state: str = ""
    conditions: Mapping[str, ConditionSeen] = field(default_factory=dict)
    nodes: int = 0
    ready: int = 0
    restarts: int = 0
    disruptions: int = 0
    step: int = 0
    total_steps: int | None = None
    checkpoint_step: int | None = None
    samples_per_second: float | None = None
    loss: float | None = None
    eta_seconds: float | None = None
    goodput_percent: float | None = None
    time: Times | None = None
    """What its seconds went to, where that is known."""
    efficiency: Efficiency | None = None
    """How well the ranks work together, once that is known."""
    last_failure: Failure | None = None
    ddp: InEffect | None = None
    pods: tuple[PodSeen, ...] = ()
    events: tuple[EventSeen, ...] = ()
    ranks: tuple[Rank, ...] = ()
    blind: tuple[str, ...] = ()
    """What could not be looked at, as sentences."""
    now: float = 0.0
    """Unix time of the look."""

    def condition(self, kind: Condition) -> ConditionSeen | None:
        return self.conditions.get(kind.value)

    def is_true(self, kind: Condition) -> bool:
        found = self.condition(kind)
        return found is not None and found.status == "True"

    @property
    def argument(self) -> str:
        """What a command takes for it, whatever the namespace of the context and the runs of this folder."""
        return argument(self.name, self.namespace)

    @property
    def ddp_efficiency_percent(self) -> int | None:
        """As the coordinator has it."""
        return self.efficiency.ddp_efficiency_percent if self.efficiency else None

    @property
    def finished(self) -> bool:
        return self.is_true(Condition.COMPLETE) or self.is_true(Condition.FAILED)


def argument(name: str, namespace: str) -> str:
    """A job, or a pod of one, as a command takes it, also kubectl's; a local run has no namespace."""
    return f"{name} -n {namespace}" if namespace else name
