"""Names, kinds and help of the metrics that launchers serve.

Why apart: dashboards, alerts, docs and the operator's poller read these names; `docs/metrics.md` is checked against
this list. Base units, `_total` on counters, labels bounded by the ranks of one pod. Counters go on across
generations: a launcher adds what earlier workers of its pod counted.
"""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "ddpjob_trainer_"


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric; a counter's name stands here without `_total`, which the exposition adds."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ("rank",)


def counter(name: str, help_text: str, labels: tuple[str, ...] = ("rank",)) -> Metric:
    return Metric(name=PREFIX + name, kind=MetricKind.COUNTER, help=help_text, labels=labels)


def gauge(name: str, help_text: str, labels: tuple[str, ...] = ("rank",)) -> Metric:
    return Metric(name=PREFIX + name, kind=MetricKind.GAUGE, help=help_text, labels=labels)


INFO = Metric(
    name=PREFIX + "info",
    kind=MetricKind.GAUGE,
    help="Always 1; the labels say what runs: version (of DDPJob), backend, world size, torch (its version), accumulation "
    "(backward passes of an optimizer step). The last two are empty until they are known.",
    labels=("rank", "version", "backend", "world_size", "torch", "accumulation"),
)
STATE = gauge(
    "state",
    "1 for what the rank does, else 0: starting (imports, meeting the others, whatever comes before its first forward "
    "pass or step), or the phase it is in.",
    ("rank", "state"),
)
STEP = gauge("step", "Optimizer step the training has reached, resumed steps included.")
RESUMED_FROM_STEP = gauge(
    "resumed_from_step", "Step of the checkpoint that this generation goes on from, where it is known."
)
OPTIMIZER_STEPS = counter(
    "optimizer_steps", "Optimizer steps made by this pod's rank, repeated ones included."
)
MICRO_BATCHES = counter("micro_batches", "Forward passes with gradients.")
SAMPLES = counter("samples", "Samples seen by this rank.")
TOKENS = counter("tokens", "Tokens seen by this rank, where the input is a batch of token ids.")
LAST_STEP_TIMESTAMP = gauge("last_step_timestamp_seconds", "Unix time of the newest optimizer step.")
STEP_SECONDS = counter("step_seconds", "Wall time from optimizer step to optimizer step.")
STEP_DURATION = Metric(
    name=PREFIX + "step_duration_seconds",
    kind=MetricKind.HISTOGRAM,
    help="Wall time of each step, from optimizer step to optimizer step.",
)
PHASE_SECONDS = counter(
    "phase_seconds",
    "Wall time by phase: data_wait, h2d (batch to the device, with the built-in loop only), forward, backward_compute, "
    "comm_exposed (waiting for other ranks, as DDP's own clock samples it; without a sample it is in "
    "backward_compute), optimizer, checkpoint, evaluation, other. A slow rank shows its own excess, the others show "
    "comm_exposed.",
    ("rank", "phase"),
)
COMM_SECONDS = counter("comm_seconds", "Time of gradient all-reduce by DDP's own clock (sampled, weighted).")
COMM_OVERLAPPED_SECONDS = counter(
    "comm_overlapped_seconds", "The part of comm_seconds hidden behind backward."
)
BACKWARD_COMPUTE_SECONDS = counter("backward_compute_seconds", "Backward computation by DDP's own clock.")
ALL_REDUCES = counter("all_reduces", "Synchronised backward passes, counted by DDP's reducer.")
ALL_REDUCE_BYTES = counter("all_reduce_bytes", "Gradient bytes handed to all-reduce.")
BUCKETS = gauge("buckets", "Gradient buckets in use.")
LOSS = gauge("loss", "Loss of the newest optimizer step (in scripts: root of the newest backward).")
GRAD_NORM = gauge("grad_norm", "Gradient norm before clipping, where it is computed.")
LEARNING_RATE = gauge("learning_rate", "Learning rate of the first parameter group.")
NON_FINITE_STEPS = counter("non_finite_steps", "Optimizer steps skipped on all ranks for a NaN or infinity.")
REPLICA_MISMATCHES = counter(
    "replica_mismatches",
    "Times that the ranks' models were found to differ; that ends the generation. With the built-in loop only.",
)
CHECKPOINTS = counter("checkpoints", "Checkpoints written.")
CHECKPOINT_FAILURES = counter(
    "checkpoint_failures", "Checkpoints that could not be written; training went on."
)
CHECKPOINT_STEP = gauge("checkpoint_step", "Step of the newest complete checkpoint.")
CHECKPOINT_TIMESTAMP = gauge("checkpoint_timestamp_seconds", "Unix time of the newest complete checkpoint.")
CHECKPOINT_BYTES = gauge("checkpoint_bytes", "Size of the newest checkpoint.")
CHECKPOINT_DURATION = gauge(
    "checkpoint_duration_seconds",
    "Time in which this rank wrote the newest checkpoint; in a script without a framework, its newest torch.save into a "
    "file.",
)
CHECKPOINT_FETCHED_BYTES = counter(
    "checkpoint_fetched_bytes", "Bytes of checkpoints that this pod took from other pods.", ()
)
CHECKPOINT_FETCH_SECONDS = counter(
    "checkpoint_fetch_seconds", "Time in which this pod took checkpoints from other pods.", ()
)
CHECKPOINT_FAILING = gauge("checkpoint_failing", "1 while the newest checkpoint could not be saved, else 0.")
COLLECTIVE_SEQUENCE = gauge(
    "collective_sequence", "Collectives that the rank has begun, where its backend counts them."
)
RESIDENT_BYTES = gauge("resident_memory_bytes", "Memory of the rank's process (RSS).")
DEVICE_ALLOCATED_BYTES = gauge(
    "device_memory_allocated_bytes", "Device memory in use by tensors, where there is a device."
)
DEVICE_RESERVED_BYTES = gauge(
    "device_memory_reserved_bytes", "Device memory that torch holds, where there is a device."
)
DEVICE_PEAK_BYTES = gauge(
    "device_memory_peak_bytes",
    "The most device memory that tensors have taken so far, or since the program reset torch's own peak. CUDA only.",
)
CUDA_ALLOC_RETRIES = counter(
    "cuda_alloc_retries",
    "Allocations for which torch had to give its cached memory back first: the device is full, and steps are slower.",
)
CUDA_OOMS = counter(
    "cuda_ooms", "Allocations that failed, also those that the program caught: out of device memory."
)
STRAGGLER = gauge(
    "straggler",
    "1 while this rank makes the others wait; cause is the phase in which it is slower. From the coordinator's pod "
    "only, and absent while no rank does.",
    ("rank", "cause"),
)
HUNG = gauge("hung", "1 while a hang of the job is dealt with, else 0. From the coordinator's pod only.", ())
OVERRIDES = gauge("overrides", "Settings where the script asked for another value than the resource.")
WARNINGS = gauge("config_warnings", "Settings that work but cost something; see the log.")
RESTARTS = counter("restarts", "Restarts of the job as this pod knows them.", ())
DISRUPTIONS = counter("disruptions", "Disruptions of the job as this pod knows them.", ())
GENERATION = gauge("generation", "Generation that runs.", ())

WARM_STARTS = counter("warm_starts", "Generations that this pod's rank began in a standby, its imports done.")
STANDBY_READY = gauge(
    "standby_ready", "1 where a standby waits to take the rank over, 0 while it still imports."
)
STANDBY_BYTES = gauge("standby_bytes", "Memory that the rank's standby holds for itself.")

STARTING = "starting"
"""What `state` of STATE can be beside the names of `page.Phase`."""
PHASES = (
    "data_wait", "h2d", "forward", "backward_compute", "comm_exposed", "optimizer", "checkpoint", "evaluation", "other",
)  # fmt: skip
"""What `phase` of PHASE_SECONDS can be."""
LOCAL_PHASES = ("data_wait", "h2d", "forward", "backward_compute", "optimizer")
"""A rank's own work in a step: what it takes longer with, the others wait for. Also what `cause` can be."""

METRICS = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""All of the above."""
