"""Which combinations of settings are refused, warned of, or handled: one table for CRD, lint, operator and trainer.

Why apart: the same sentence must come from `kubectl apply`, from `ddpjob lint` and from the training process. Each
row says where it was learned; a row with a torch issue has a test that fails once torch has fixed it.
Must not: look anything up. What is not known at a place is None in `Facts`, and no row fires on what is not known.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from ddpjob_api.accelerators import Accelerator
from ddpjob_api.codec import Path
from ddpjob_api.names import is_reserved_env
from ddpjob_api.nested import contradictions, nested
from ddpjob_api.plan import Plan, Refused, micro_batch, plan
from ddpjob_api.spec import NAME_MAX_LENGTH, Backend, DDPJob, GradientCheckpointing, Overrides, Spec


class Verdict(StrEnum):
    REFUSE = "Refuse"
    WARN = "Warn"
    HANDLE = "Handle"
    """It would fail; we do what makes it work, and say so."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known where a rule is asked. None: not known there."""

    name: str
    spec: Spec
    plan: Plan
    accelerator_present: bool | None = None
    """At run time: whether torch sees the backend's device."""
    accelerator_missing: Accelerator | None = None
    """At run time, with Auto: what resourcesPerNode asks for, where torch sees no such device."""
    cpu_chosen: bool | None = None
    """At run time: the program itself names the CPU, or a backend for it."""
    backend_available: bool | None = None
    """At run time: whether torch has the backend, its plugin imported."""
    sync_batch_norm_on_cpu: bool | None = None
    has_buffers: bool | None = None
    bf16_hook_on_gloo: bool | None = None
    checkpointing_seen: GradientCheckpointing | None = None
    """What a script was seen to do; a task says it in its spec."""
    nothing_unused: bool | None = None
    """After some steps with findUnusedParameters: no parameter was unused."""
    claim_read_write_once: bool | None = None
    """The claim is not ReadWriteMany."""
    in_cluster: bool | None = None
    """The operator asks."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row."""

    id: str
    """Stable word for tests, docs and metrics."""
    verdict: Verdict
    path: Path
    """The field a reader should look at."""
    sentence: str
    """What is wrong, why, what to do."""
    applies: Callable[[Facts], bool]
    source: str | None = None
    in_crd: bool = False
    """Whether the CRD's CEL refuses it with the same sentence."""
    at_run_time: bool = False
    """Whether it needs facts that only the training process (or a look at the cluster) has."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A row that applies."""

    rule: str
    verdict: Verdict
    path: Path
    message: str


def exactly_one(*values: object) -> bool:
    return sum(value is not None for value in values) == 1


def reserved_names(facts: Facts) -> bool:
    return any(is_reserved_env(variable.name) for variable in facts.spec.env)


def against_command(facts: Facts) -> list[str]:
    if facts.spec.command is None:
        return []
    return contradictions(facts.spec.command, nodes=facts.plan.nodes, processes=facts.plan.processes_per_node)


def checkpointing(facts: Facts, *modes: GradientCheckpointing) -> bool:
    task = facts.spec.task
    return (task.gradient_checkpointing if task is not None else facts.checkpointing_seen) in modes


def undivided(facts: Facts) -> bool:
    if facts.spec.task is None:
        return False
    try:
        micro_batch(facts.spec.task.global_batch_size, facts.plan.world_size, facts.plan.accumulation)
    except Refused:
        return True
    return False


OF_THE_NODE = frozenset({"nccl-without-gpu-seen", "accelerator-not-seen"})
"""Refusals that a node can come to by itself, when its device or driver breaks."""


def lacks_device(facts: Facts, *backends: Backend) -> bool:
    """At admission by the resource's words, at run time by what torch sees."""
    if facts.plan.backend not in backends:
        return False
    if facts.accelerator_present is not None:
        return not facts.accelerator_present
    return facts.plan.accelerator is None


def on_cpu_all_the_same(facts: Facts) -> bool:
    """Whether a program goes on without the accelerator it asked for: it wants to, or its settings are not ours."""
    reported = facts.spec.ddp.overrides is Overrides.REPORT and facts.spec.task is None
    return bool(facts.cpu_chosen) or reported


VENDOR_BACKENDS = (Backend.XCCL, Backend.HCCL, Backend.CNCL)

WITHOUT_DEVICE = {
    "accelerator-not-seen": "resourcesPerNode asks for {resource} and torch sees no {device} device, so the program "
    "would train on the CPU; install {package} in the image and look at the node's driver, or take it out of "
    "resourcesPerNode, or set backend: Gloo where the CPU is meant",
    "accelerator-not-used": "resourcesPerNode asks for {resource} and torch sees no {device} device, so the program "
    "trains on the CPU; install {package} in the image and look at the node's driver, or take it out of "
    "resourcesPerNode",
}
"""Rows that name the accelerator where it is known."""

ANY_DEVICE = {
    "resource": "an accelerator",
    "device": "such",
    "package": "what brings it to torch (a torch build for it, or its vendor's plugin)",
}

RULES = (
    Rule(
        id="one-program",
        verdict=Verdict.REFUSE,
        path=("spec",),
        sentence="exactly one of task, script and command must be given",
        applies=lambda f: not exactly_one(f.spec.task, f.spec.script, f.spec.command),
        in_crd=True,
    ),
    Rule(
        id="name",
        verdict=Verdict.REFUSE,
        path=("metadata", "name"),
        sentence=f"must start with a lower-case letter, have only a-z, 0-9 and -, end with a letter or digit and be "
        f"at most {NAME_MAX_LENGTH} characters long, because it becomes host and pod names (RFC 1035)",
        applies=lambda f: not valid_name(f.name),
        source="https://www.rfc-editor.org/rfc/rfc1035",
        in_crd=True,
    ),
    Rule(
        id="reserved-env",
        verdict=Verdict.REFUSE,
        path=("spec", "env"),
        sentence="names that begin with DDPJOB_, and torchrun's names (RANK, WORLD_SIZE, MASTER_ADDR, PET_NNODES …), "
        "are set by the launcher; take them out",
        applies=reserved_names,
        in_crd=True,
    ),
    Rule(
        id="command-contradicts",
        verdict=Verdict.REFUSE,
        path=("spec", "command"),
        sentence="an argument of torchrun or accelerate launch contradicts the resource; take it out, it is added",
        applies=lambda f: bool(against_command(f)),
    ),
    Rule(
        id="image-is-missing",
        verdict=Verdict.REFUSE,
        path=("spec",),
        sentence="python and keepEntrypoint speak of an image of your own; give it in image, or take them out",
        applies=lambda f: f.spec.image is None and (f.spec.python is not None or f.spec.keep_entrypoint),
    ),
    Rule(
        id="bucket-cap",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "bucketCapMB"),
        sentence="must be at least 1 (MiB): torch takes 0 as one all-reduce per parameter and a negative number as a "
        "single bucket, both silently; leave it out for torch's default",
        applies=lambda f: f.spec.ddp.bucket_cap_mb is not None and f.spec.ddp.bucket_cap_mb < 1,
        source="pytorch#118421",
        in_crd=True,
    ),
    Rule(
        id="epochs-or-steps",
        verdict=Verdict.REFUSE,
        path=("spec", "task"),
        sentence="exactly one of epochs and maxSteps must be given",
        applies=lambda f: (
            f.spec.task is not None and not exactly_one(f.spec.task.epochs, f.spec.task.max_steps)
        ),
        in_crd=True,
    ),
    Rule(
        id="workspace-source",
        verdict=Verdict.REFUSE,
        path=("spec", "workspace"),
        sentence="exactly one of configMap and persistentVolumeClaim must be given",
        applies=lambda f: (
            f.spec.workspace is not None
            and not exactly_one(f.spec.workspace.config_map, f.spec.workspace.persistent_volume_claim)
        ),
        in_crd=True,
    ),
    Rule(
        id="env-value",
        verdict=Verdict.REFUSE,
        path=("spec", "env"),
        sentence="a variable has value or valueFrom, not both",
        applies=lambda f: any(v.value is not None and v.value_from is not None for v in f.spec.env),
        in_crd=True,
    ),
    Rule(
        id="reentrant-unused",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "findUnusedParameters"),
        sentence="findUnusedParameters with reentrant gradient checkpointing fails in torch; set "
        "task.gradientCheckpointing: NonReentrant, or findUnusedParameters: false, or staticGraph: true",
        applies=lambda f: (
            f.spec.task is not None
            and checkpointing(f, GradientCheckpointing.REENTRANT)
            and bool(f.spec.ddp.find_unused_parameters)
            and not f.spec.ddp.static_graph
        ),
        source="pytorch#24005",
        in_crd=True,
    ),
    Rule(
        id="reentrant-unused-seen",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "findUnusedParameters"),
        sentence="findUnusedParameters with reentrant gradient checkpointing fails in torch; set use_reentrant=False "
        "where the program turns checkpointing on (Hugging Face: gradient_checkpointing_kwargs), or "
        "findUnusedParameters: false, or staticGraph: true",
        applies=lambda f: (
            f.spec.task is None
            and checkpointing(f, GradientCheckpointing.REENTRANT)
            and bool(f.spec.ddp.find_unused_parameters)
            and not f.spec.ddp.static_graph
        ),
        source="pytorch#24005",
        at_run_time=True,
    ),
    Rule(
        id="ports-overlap",
        verdict=Verdict.REFUSE,
        path=("spec", "ports"),
        sentence="metrics, coordinator and the 64 ports from rendezvous on must not overlap",
        applies=lambda f: ports_overlap(f.spec),
        in_crd=True,
    ),
    Rule(
        id="global-batch",
        verdict=Verdict.REFUSE,
        path=("spec", "task", "globalBatchSize"),
        sentence="must be divisible by ranks (nodes × processesPerNode) × ddp.gradientAccumulationSteps, so that every "
        "rank has the same share",
        applies=undivided,
    ),
    Rule(
        id="sync-batch-norm-cpu",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "backend"),
        sentence="SyncBatchNorm needs an accelerator: torch refuses it on a CPU; use BatchNorm, or ask for a GPU",
        applies=lambda f: bool(f.sync_batch_norm_on_cpu),
        at_run_time=True,
    ),
    Rule(
        id="bf16-hook-gloo",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "backend"),
        sentence="bf16_compress_hook needs NCCL 2.10 or XCCL and raises on Gloo; use fp16_compress_hook, or no hook",
        applies=lambda f: bool(f.bf16_hook_on_gloo),
        at_run_time=True,
    ),
    Rule(
        id="copies-of-a-script",
        verdict=Verdict.WARN,
        path=("spec", "checkpoint", "inMemoryEverySteps"),
        sentence="inMemoryEverySteps is for tasks, and no copies are made: what a script saves is its own affair",
        applies=lambda f: (
            f.spec.task is None
            and f.spec.checkpoint is not None
            and f.spec.checkpoint.in_memory_every_steps is not None
        ),
    ),
    Rule(
        id="claim-read-write-once",
        verdict=Verdict.REFUSE,
        path=("spec", "checkpoint", "persistentVolumeClaim"),
        sentence="the claim is not ReadWriteMany, so only one node can write to it, and the job has more; use a "
        "ReadWriteMany claim, or leave it out: each node then keeps a copy of its own and gets a lost one from another",
        applies=lambda f: bool(f.claim_read_write_once) and f.plan.nodes > 1,
        at_run_time=True,
    ),
    Rule(
        id="checkpoint-on-nodes",
        verdict=Verdict.WARN,
        path=("spec", "checkpoint"),
        sentence="without persistentVolumeClaim each node keeps a copy of its own: a replaced pod gets it from another "
        "node, but when all pods are gone, as after a suspension or in a job of one node, the training starts anew; "
        "name a ReadWriteMany claim",
        applies=lambda f: (
            bool(f.in_cluster)
            and f.spec.checkpoint is not None
            and f.spec.checkpoint.persistent_volume_claim is None
        ),
        at_run_time=True,
    ),
    Rule(
        id="checkpoint-of-a-script",
        verdict=Verdict.WARN,
        path=("spec", "checkpoint"),
        sentence="everySteps and everySeconds reach tasks, Hugging Face's Trainer and Lightning; any other script or "
        "command saves by itself, into the folder that DDPJOB_CHECKPOINT_DIR names",
        applies=lambda f: (
            f.spec.task is None
            and f.spec.checkpoint is not None
            and (f.spec.checkpoint.every_steps is not None or f.spec.checkpoint.every is not None)
        ),
    ),
    Rule(
        id="nccl-without-gpu",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "backend"),
        sentence="NCCL needs a GPU and resourcesPerNode asks for none; the job is refused at its start (exit 86) unless "
        "the pod gets one by the template or a resource claim; use Auto or Gloo on a CPU",
        applies=lambda f: f.accelerator_present is None and lacks_device(f, Backend.NCCL),
    ),
    Rule(
        id="nccl-without-gpu-seen",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "backend"),
        sentence="NCCL needs a GPU and torch sees none; use Auto or Gloo on a CPU, or ask for GPUs in resourcesPerNode",
        applies=lambda f: f.accelerator_present is False and f.plan.backend is Backend.NCCL,
        at_run_time=True,
    ),
    Rule(
        id="vendor-backend-without-device",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "backend"),
        sentence="this backend needs its vendor's device (XCCL: Intel GPU, HCCL: Ascend or Gaudi, CNCL: MLU) and "
        "resourcesPerNode asks for none; the job is refused at its start (exit 86) unless the pod gets one otherwise",
        applies=lambda f: f.accelerator_present is None and lacks_device(f, *VENDOR_BACKENDS),
    ),
    Rule(
        id="accelerator-not-seen",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "backend"),
        sentence=WITHOUT_DEVICE["accelerator-not-seen"].format(**ANY_DEVICE),
        applies=lambda f: f.accelerator_missing is not None and not on_cpu_all_the_same(f),
        at_run_time=True,
    ),
    Rule(
        id="accelerator-not-used",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "backend"),
        sentence=WITHOUT_DEVICE["accelerator-not-used"].format(**ANY_DEVICE),
        applies=lambda f: f.accelerator_missing is not None and on_cpu_all_the_same(f),
        at_run_time=True,
    ),
    Rule(
        id="backend-not-available",
        verdict=Verdict.REFUSE,
        path=("spec", "ddp", "backend"),
        sentence="this torch does not have the backend; install the vendor's plugin (XCCL: torch with XPU, HCCL: "
        "torch_npu or habana_frameworks, CNCL: torch_mlu, MPI: torch built with MPI), or use Auto",
        applies=lambda f: f.backend_available is False,
        at_run_time=True,
    ),
    Rule(
        id="unused-non-reentrant",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "findUnusedParameters"),
        sentence="findUnusedParameters with gradient checkpointing works (non-reentrant) but walks the graph at every "
        "step and keeps DDP from rebuilding its buckets; set it to false if every parameter is used",
        applies=lambda f: (
            checkpointing(f, GradientCheckpointing.NON_REENTRANT) and bool(f.spec.ddp.find_unused_parameters)
        ),
    ),
    Rule(
        id="unused-not-needed",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "findUnusedParameters"),
        sentence="findUnusedParameters is on and no parameter was unused on this rank so far; set it to false if no "
        "rank ever skips a part of the model: it costs a walk of the graph at every step",
        applies=lambda f: bool(f.nothing_unused),
        at_run_time=True,
    ),
    Rule(
        id="buffers-and-checkpointing",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "broadcastBuffers"),
        sentence="broadcastBuffers with gradient checkpointing: Hugging Face's guide to DDP says not to combine them; "
        "set broadcastBuffers: false unless ranks must share BatchNorm statistics",
        applies=lambda f: (
            bool(f.spec.ddp.broadcast_buffers)
            and checkpointing(f, GradientCheckpointing.NON_REENTRANT, GradientCheckpointing.REENTRANT)
        ),
    ),
    Rule(
        id="no-buffers",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "broadcastBuffers"),
        sentence="broadcastBuffers is set and the model has no buffers, so it does nothing",
        applies=lambda f: bool(f.spec.ddp.broadcast_buffers) and f.has_buffers is False,
        at_run_time=True,
    ),
    Rule(
        id="gloo-on-gpu",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "backend"),
        sentence="Gloo on a GPU copies every gradient through the host; use Auto or NCCL",
        applies=lambda f: (
            f.plan.backend is Backend.GLOO and (f.plan.accelerator is not None or bool(f.accelerator_present))
        ),
    ),
    Rule(
        id="bucket-cap-25",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "bucketCapMB"),
        sentence="25 is not torch's default: it makes the first bucket 25 MiB too, where the default starts with "
        "1 MiB so that communication begins early; leave bucketCapMB out for the default",
        applies=lambda f: f.spec.ddp.bucket_cap_mb == 25,
    ),
    Rule(
        id="hang-of-a-command",
        verdict=Verdict.WARN,
        path=("spec", "recovery", "progressTimeoutSeconds"),
        sentence="the steps of a command other than torchrun and accelerate launch may not be seen, and "
        "progressTimeoutSeconds then has no effect; use script, or leave it to ddp.timeoutSeconds",
        applies=lambda f: (
            f.spec.command is not None
            and nested(f.spec.command) is None
            and bool(f.spec.recovery.progress_timeout)
        ),
    ),
    Rule(
        id="static-graph-overrides-unused",
        verdict=Verdict.WARN,
        path=("spec", "ddp", "findUnusedParameters"),
        sentence="staticGraph finds unused parameters by itself; findUnusedParameters has no effect beside it",
        applies=lambda f: bool(f.spec.ddp.static_graph) and bool(f.spec.ddp.find_unused_parameters),
    ),
    Rule(
        id="static-graph-accumulation",
        verdict=Verdict.HANDLE,
        path=("spec", "ddp", "staticGraph"),
        sentence="staticGraph with accumulation crashes torch when the first micro-batch runs under no_sync, so the "
        "first window is synchronised at every micro-batch",
        applies=lambda f: bool(f.spec.ddp.static_graph) and f.plan.accumulation > 1,
        source="pytorch#143580",
    ),
)


def valid_name(name: str) -> bool:
    body = name.replace("-", "a")
    return (
        0 < len(name) <= NAME_MAX_LENGTH
        and name.isascii()
        and body.isalnum()
        and name == name.lower()
        and name[0].isalpha()
        and name[-1] != "-"
    )


def ports_overlap(spec: Spec) -> bool:
    ports = spec.ports
    window = range(ports.rendezvous, ports.rendezvous + 64)
    return ports.metrics == ports.coordinator or ports.metrics in window or ports.coordinator in window


def rule(identity: str) -> Rule:
    """The row of that name."""
    return next(row for row in RULES if row.id == identity)


def facts_of(job: DDPJob) -> Facts:
    """What admission knows."""
    return Facts(name=job.metadata.name, spec=job.spec, plan=plan(job.spec))


def judge(facts: Facts, rules: Iterable[Rule] = RULES) -> tuple[Finding, ...]:
    """The rows that apply, refusals first."""
    order = list(Verdict)
    found = [
        Finding(rule=row.id, verdict=row.verdict, path=row.path, message=explain(row, facts))
        for row in rules
        if row.applies(facts)
    ]
    return tuple(sorted(found, key=lambda finding: order.index(finding.verdict)))


def explain(row: Rule, facts: Facts) -> str:
    """The row's sentence, with the numbers that would do and the source where there is one."""
    sentence = row.sentence
    if row.id == "global-batch" and facts.spec.task is not None:
        try:
            micro_batch(facts.spec.task.global_batch_size, facts.plan.world_size, facts.plan.accumulation)
        except Refused as refused:
            sentence = str(refused)
    missing = facts.accelerator_missing
    if row.id in WITHOUT_DEVICE and missing is not None:
        sentence = WITHOUT_DEVICE[row.id].format(
            resource=missing.resource, device=missing.device, package=missing.package
        )
    if row.id == "command-contradicts":
        sentence = "; ".join(against_command(facts))
    if row.id == "reserved-env":
        taken = sorted(v.name for v in facts.spec.env if is_reserved_env(v.name))
        sentence = f"{', '.join(taken)}: {sentence}"
    return sentence + suffix(row)


def message_of(row: Rule) -> str:
    """The row's message where no numbers are known: what the CRD says."""
    return row.sentence + suffix(row)


def suffix(row: Rule) -> str:
    return f" ({row.source})" if row.source and row.source.startswith("pytorch#") else ""
