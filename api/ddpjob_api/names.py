"""Names that more than one side writes or reads: environment, labels, annotations, objects.

Why apart: a name spelled twice drifts. The environment is the contract between operator (or `ddpjob run`) and
launcher, and between launcher and worker; nothing else passes between them but the wire (`messages.py`), the page
(`page.py`) and the termination message (`report.py`).
"""

from enum import StrEnum


class LauncherEnv(StrEnum):
    """What a launcher is told; the operator sets it in the pod, `ddpjob run` in a process."""

    NAME = "DDPJOB_NAME"
    NAMESPACE = "DDPJOB_NAMESPACE"
    UID = "DDPJOB_UID"
    SPEC = "DDPJOB_SPEC"
    """The resource's spec as JSON, without what only Kubernetes reads (template, env, image)."""
    NODE_INDEX = "DDPJOB_NODE_INDEX"
    INCARNATION = "DDPJOB_INCARNATION"
    """How many pods of this index came before; the term of a coordinator is that of index 0."""
    COORDINATOR = "DDPJOB_COORDINATOR"
    """`host:port` of the launcher of index 0."""
    BIND_HOST = "DDPJOB_BIND_HOST"
    """Address the launcher's servers listen on; default: all."""
    ADVERTISE_HOST = "DDPJOB_ADVERTISE_HOST"
    """Address under which other pods reach this launcher's workers (MASTER_ADDR of index 0)."""
    TOKEN_FILE = "DDPJOB_TOKEN_FILE"
    """File with the job's token: both ends of every connection prove that they know it."""
    RESTARTS = "DDPJOB_RESTARTS"
    """Restarts spent according to the ledger when this pod was made."""
    DISRUPTIONS = "DDPJOB_DISRUPTIONS"
    GENERATION = "DDPJOB_GENERATION"
    """In a launcher: the newest generation the ledger knows. In a worker: the generation it belongs to."""
    SPENT = "DDPJOB_SPENT"
    """`goodput.Spent` as JSON, for the launcher of index 0: what the job's time went to before this pod was made."""
    RUN_DIR = "DDPJOB_RUN_DIR"
    """Memory volume for pages, error files and stacks."""
    CHECKPOINT_DIR = "DDPJOB_CHECKPOINT_DIR"
    HISTORY = "DDPJOB_HISTORY"
    """File in which the node's history is kept; default: beside the checkpoints of a shared claim, else nowhere."""
    TERMINATION_LOG = "DDPJOB_TERMINATION_LOG"
    POD_NAME = "DDPJOB_POD_NAME"
    POD_UID = "DDPJOB_POD_UID"
    HOST_NODE = "DDPJOB_HOST_NODE"
    """Name of the Kubernetes node, for messages."""


class WorkerEnv(StrEnum):
    """What a worker (one rank) is told beside torchrun's names below."""

    GENERATION = "DDPJOB_GENERATION"
    PAGE = "DDPJOB_PAGE"
    """Path of the memory-mapped page this worker writes."""
    SETTINGS = "DDPJOB_SETTINGS"
    """`spec.ddp` as JSON. `Auto` stays: a script keeps its own backend, our loop takes the accelerator torch sees."""
    ACCELERATOR = "DDPJOB_ACCELERATOR"
    """Resource name (`accelerators.ACCELERATORS`) of the accelerator that the pod asks for; absent: none."""
    TASK = "DDPJOB_TASK"
    """`spec.task` as JSON (task mode only)."""
    CHECKPOINT = "DDPJOB_CHECKPOINT"
    """`spec.checkpoint` as JSON, absent without one."""
    CHECKPOINT_DIR = "DDPJOB_CHECKPOINT_DIR"
    RESUME = "DDPJOB_RESUME"
    """In a script or `command`: path of the newest complete checkpoint in `CHECKPOINT_DIR` when it began, or empty; absent
    without `checkpoint`. Ranks that torchrun starts again find what was saved since."""
    RESUME_STEP = "DDPJOB_RESUME_STEP"
    """Step of the checkpoint that every rank loads; absent: start anew."""
    RESUME_DIR = "DDPJOB_RESUME_DIR"
    """The folder that holds it; the launcher has compared its files with their hashes."""
    MEMORY_DIR = "DDPJOB_MEMORY_DIR"
    """Where copies go every `checkpoint.inMemoryEverySteps`; absent: nowhere."""
    TERM = "DDPJOB_TERM"
    """The coordinator's term: a checkpoint writer checks `TERM_FILE` against it before its rename."""
    TERM_FILE = "DDPJOB_TERM_FILE"
    STACKS_FILE = "DDPJOB_STACKS_FILE"
    WORKER_PID = "DDPJOB_WORKER_PID"
    """Pid of the instrumented process; its children see a foreign one and stay untouched."""
    IMPORTS_FILE = "DDPJOB_IMPORTS_FILE"
    """Where a worker leaves the names of the installed modules it has imported by its first step, one a line."""
    STANDBY = "DDPJOB_STANDBY"
    """In a process that only waits to become a worker: `fd`, its socket to the launcher, and `without`, packages that
    it must not import, as JSON. Gone once it is a worker."""
    GRADIENT_ACCUMULATION_STEPS = "DDPJOB_GRADIENT_ACCUMULATION_STEPS"
    """Offered to plain loops, which own their accumulation."""
    JOB_NAME = "DDPJOB_NAME"
    RANK_DIR = "DDPJOB_RANK_DIR"
    """Below a `command`: where each rank of this node finds the page that is its own."""
    AGENT_PID = "DDPJOB_AGENT_PID"
    """Set by a launcher below a `command` (torchrun, accelerate) for what it starts."""


TORCHRUN_ENV = (
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_ERROR_FILE",
)
"""torchrun's names, which scripts and frameworks test for; a worker has all of them."""

GENERATION_ENV = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_ERROR_FILE",
        WorkerEnv.GENERATION.value,
        WorkerEnv.PAGE.value,
        WorkerEnv.STACKS_FILE.value,
        WorkerEnv.TERM.value,
        WorkerEnv.RESUME_STEP.value,
    }
)
"""What may differ between two generations of one rank; everything else in its environment is the job's and stays."""

RESERVED_ENV = frozenset(
    {*TORCHRUN_ENV, "NODE_RANK", "TORCHELASTIC_USE_AGENT_STORE", *(f"PET_{name}" for name in (
        "NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "RDZV_BACKEND", "RDZV_ENDPOINT",
        "RDZV_ID", "RDZV_CONF", "MAX_RESTARTS", "STANDALONE",
    ))}
)  # fmt: skip
"""Variables that the launcher owns; a resource may not set them, nor any that begins with `RESERVED_ENV_PREFIX`."""

RESERVED_ENV_PREFIX = "DDPJOB_"


def is_reserved_env(name: str) -> bool:
    return name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIX)


LABEL_JOB = "ddpjob.dev/name"
"""On every child object: the DDPJob's name; the operator's watches select by it."""
LABEL_INDEX = "ddpjob.dev/index"
LABEL_INCARNATION = "ddpjob.dev/incarnation"
ANNOTATION_JOB_UID = "ddpjob.dev/uid"
ANNOTATION_TEMPLATE_HASH = "ddpjob.dev/template-hash"
FINALIZER_TRACKING = "ddpjob.dev/tracking"
"""On pods: their outcome is not yet in the job's status."""
FIELD_MANAGER = "ddpjob-operator"
TRAINER_CONTAINER = "trainer"
"""Our container in the pod; its end decides the pod's outcome."""

WORKSPACE_PATH = "/workspace"
CHECKPOINT_PATH = "/checkpoints"
RUN_PATH = "/run/ddpjob"
MEMORY_FOLDER = "memory"
"""In the run folder: copies of checkpoints in memory; in a pod a volume of its own."""
CODE_PATH = "/opt/ddpjob-trainer"
"""The trainer, in pods whose image is not ours; its packages are in `CODE_LIBRARY` below."""
CODE_LIBRARY = "lib"
CODE_CONTAINER = "ddpjob-trainer"
"""The init container that puts it there."""
TOKEN_PATH = "/etc/ddpjob/token"
TERMINATION_LOG = "/dev/termination-log"


def service_name(job: str) -> str:
    """The headless Service, which is also the pods' subdomain."""
    return job


def secret_name(job: str) -> str:
    """The Secret with the job's token."""
    return f"{job}-token"


def host_name(job: str, index: int) -> str:
    """The stable name of one index: hostname of each of its incarnations."""
    return f"{job}-{index}"


def pod_name(job: str, index: int, incarnation: int) -> str:
    """`<job>-<index>`, replacements `<job>-<index>-r<k>`."""
    return host_name(job, index) if incarnation == 0 else f"{host_name(job, index)}-r{incarnation}"
