"""The DDPJob resource as types: what `crds/ddpjob.yaml` says, in Python.

Why apart: every side works on these values, parsed once at its edge; defaults stand here and in the CRD only, and a
test holds both equal. Must not: decide anything (`plan.py` derives, `rules.py` judges).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from ddpjob_api.fields import Json, limited

GROUP = "ddpjob.dev"
VERSION = "v1alpha1"
KIND = "DDPJob"
PLURAL = "ddpjobs"
API_VERSION = f"{GROUP}/{VERSION}"

NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_MAX_LENGTH = 40
"""Room for `-<index>-r<incarnation>` (up to 4 + 6 digits) within the 63 characters of a host name (RFC 1035)."""

QUANTITY_PATTERN = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$"
"""An amount of a resource, by the grammar of Kubernetes' `resource.Quantity`."""
QUANTITY_MAX_LENGTH = 64


class Backend(StrEnum):
    """Who carries the collectives (`spec.ddp.backend`; Hugging Face: `ddp_backend`)."""

    AUTO = "Auto"
    NCCL = "NCCL"
    GLOO = "Gloo"
    XCCL = "XCCL"
    HCCL = "HCCL"
    CNCL = "CNCL"
    MPI = "MPI"

    @property
    def torch_name(self) -> str:
        """What `torch.distributed.init_process_group` calls it."""
        return self.value.lower()


class Overrides(StrEnum):
    """What happens where the script asks for another value (`spec.ddp.overrides`)."""

    APPLY = "Apply"
    REPORT = "Report"


class Precision(StrEnum):
    """Arithmetic of forward and backward (`spec.task.precision`); parameters stay FP32."""

    FP32 = "FP32"
    BF16 = "BF16"
    FP16 = "FP16"


class GradientCheckpointing(StrEnum):
    """Recompute activations in backward (`spec.task.gradientCheckpointing`)."""

    NONE = "None"
    NON_REENTRANT = "NonReentrant"
    REENTRANT = "Reentrant"


class Placement(StrEnum):
    """How pods are laid over nodes (`spec.placement`)."""

    SPREAD = "Spread"
    REQUIRE = "Require"
    PACK = "Pack"


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The name of an object in the job's namespace."""

    name: str = limited(min_length=1, max_length=253)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """A container's ResourceRequirements (`spec.resourcesPerNode`), any vendor's names."""

    limits: Mapping[str, str] = limited(factory=dict, max_items=32)
    requests: Mapping[str, str] = limited(factory=dict, max_items=32)


@dataclass(frozen=True, kw_only=True)
class EnvVar:
    """One variable for the program (`spec.env`)."""

    name: str = limited(min_length=1, max_length=256, pattern="^[ -<>-~]+$")
    value: str | None = limited(None, max_length=32768)
    value_from: Json | None = None


@dataclass(frozen=True, kw_only=True)
class EnvFrom:
    """A ConfigMap or Secret whose keys become variables (`spec.envFrom`)."""

    prefix: str | None = limited(None, max_length=256)
    config_map_ref: Json | None = None
    secret_ref: Json | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """Train with DDPJob's own loop (`spec.task`)."""

    entrypoint: str = limited(
        min_length=3,
        max_length=512,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*$",
    )
    """`module:callable`, importable in the pod, returning a `ddpjob_trainer.Task`."""

    params: Json = limited(factory=dict)
    """Keyword arguments of that callable."""

    epochs: int | None = limited(None, minimum=1, maximum=1_000_000)
    max_steps: int | None = limited(None, minimum=1, maximum=1_000_000_000)
    """Optimizer steps. Exactly one of `epochs` and `maxSteps` is given."""

    global_batch_size: int = limited(minimum=1, maximum=100_000_000)
    """Samples per optimizer step over all ranks and accumulated micro-batches."""

    seed: int = limited(0, minimum=0, maximum=2**31 - 1)
    precision: Precision = Precision.FP32
    gradient_checkpointing: GradientCheckpointing = GradientCheckpointing.NONE


@dataclass(frozen=True, kw_only=True)
class Script:
    """Run an unmodified program once per process, torchrun's way (`spec.script`)."""

    args: tuple[str, ...] = limited(min_items=1, max_items=256)
    """What would follow `python`: `[train.py, --epochs, "3"]` or `[-m, pkg.train]`."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Code mounted read-only as the working directory (`spec.workspace`); exactly one source."""

    config_map: str | None = limited(None, min_length=1, max_length=253)
    persistent_volume_claim: str | None = limited(None, min_length=1, max_length=253)


@dataclass(frozen=True, kw_only=True)
class DDP:
    """The settings of torch's DistributedDataParallel (`spec.ddp`). An absent one touches nothing."""

    backend: Backend = Backend.AUTO
    gradient_accumulation_steps: int | None = limited(None, minimum=1, maximum=65536)
    bucket_cap_mb: int | None = limited(None, name="bucketCapMB", maximum=1_048_576)
    """MiB per gradient bucket; absent leaves torch's default (25 MiB, the first bucket 1 MiB)."""

    broadcast_buffers: bool | None = None
    find_unused_parameters: bool | None = None
    static_graph: bool | None = None
    gradient_as_bucket_view: bool | None = None
    timeout: timedelta | None = limited(None, minimum=1, maximum=31_536_000)
    """How long a collective may take (Hugging Face: `ddp_timeout`)."""

    overrides: Overrides = Overrides.APPLY


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where and how often the state is saved (`spec.checkpoint`)."""

    persistent_volume_claim: str | None = limited(None, min_length=1, max_length=253)
    """A ReadWriteMany claim; without it each node keeps a copy of its own, and a replaced pod gets it from another."""

    every_steps: int | None = limited(None, minimum=1, maximum=1_000_000_000)
    every: timedelta | None = limited(None, name="everySeconds", minimum=1, maximum=31_536_000)
    """Save at the first step after this long; with `everySteps`, whichever comes first. Neither: at stop and end."""

    keep: int = limited(3, minimum=1, maximum=1000)

    in_memory_every_steps: int | None = limited(None, minimum=1, maximum=1_000_000_000)
    """A task copies its state this often into memory of its node, where the loss of a worker does not reach it."""


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """How a job survives failures (`spec.recovery`)."""

    max_restarts: int = limited(3, minimum=0, maximum=1_000_000)
    """Failures of the program tolerated over the job's life; each incident counts once."""

    max_disruptions: int = limited(100, minimum=0, maximum=1_000_000)
    """Evictions, preemptions, lost pods tolerated; they never count as restarts."""

    rendezvous_timeout: timedelta = limited(timedelta(seconds=600), minimum=5, maximum=86_400)
    """How long the ranks may take to meet, from the moment the last pod is scheduled, or since they were last together."""

    node_lost_timeout: timedelta = limited(timedelta(seconds=120), minimum=10, maximum=86_400)
    """How long a node may be NotReady before its pods, if their ranks are not seen alive, are replaced elsewhere."""

    progress_timeout: timedelta = limited(timedelta(), minimum=0, maximum=31_536_000)
    """No optimizer step on a rank for this long means hung; 0 never does. Starting, evaluating, checkpointing and
    ending may take `page.PATIENCE` times as long."""

    grace_period: timedelta = limited(timedelta(seconds=60), minimum=1, maximum=86_400)
    """How long workers may take to save and end before they are killed."""

    warm_standby: bool = True
    """Keep a process per rank waiting with its imports done, so that the next generation begins without them."""


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports in the pods (`spec.ports`)."""

    metrics: int = limited(9464, minimum=1024, maximum=65535)
    coordinator: int = limited(29400, minimum=1024, maximum=65535)
    rendezvous: int = limited(29500, minimum=1024, maximum=65472)
    """First of a window of 64: each generation takes another, so that no store is ever met twice."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """`spec` of a DDPJob; exactly one of task, script and command is given."""

    nodes: int = limited(1, minimum=1, maximum=4096)
    processes_per_node: int | None = limited(None, minimum=1, maximum=256)
    """Default: the accelerators in `resourcesPerNode`, else 1."""

    image: str | None = limited(None, min_length=1, max_length=1024)
    python: str | None = limited(None, min_length=2, max_length=1024, pattern="^/")
    """The Python of `image`; default: the first that is found there."""

    keep_entrypoint: bool = False
    """Run the image's entrypoint, with our launcher as its arguments."""

    image_pull_secrets: tuple[Reference, ...] = limited((), max_items=16)
    resources_per_node: Resources = limited(factory=Resources)
    env: tuple[EnvVar, ...] = limited((), max_items=256)
    env_from: tuple[EnvFrom, ...] = limited((), max_items=32)
    task: Task | None = None
    script: Script | None = None
    command: tuple[str, ...] | None = limited(None, min_items=1, max_items=256)
    workspace: Workspace | None = None
    ddp: DDP = limited(factory=DDP)
    checkpoint: Checkpoint | None = None
    recovery: Recovery = limited(factory=Recovery)
    placement: Placement = Placement.SPREAD
    suspend: bool = False
    active_deadline: timedelta | None = limited(None, minimum=1, maximum=31_536_000)
    ttl_after_finished: timedelta | None = limited(
        None, name="ttlSecondsAfterFinished", minimum=0, maximum=31_536_000
    )
    ports: Ports = limited(factory=Ports)
    template: Json = limited(factory=dict)
    """A PodTemplateSpec laid over the pods we make (docs/settings.md, merge rules)."""


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The part of ObjectMeta that DDPJob reads."""

    name: str
    namespace: str = "default"


@dataclass(frozen=True, kw_only=True)
class DDPJob:
    """One training: its name and what it should be."""

    metadata: Metadata
    spec: Spec
