"""Layout of the page: the memory-mapped file each worker writes and its launcher reads.

Why a page: the training process needs no thread, socket or lock to be observed; the file survives kill -9, so a dead
or hung rank's last step and phase are known; the launcher's words (pause, stop) come back the same way. Every slot is
an aligned 8-byte float64, one store each, so that a reader never sees half a value. A JSON area holds facts that are
written a few times per life. `ddpjob_trainer.page` maps it.
"""

from enum import IntEnum, StrEnum

MAGIC = b"DDPJPG01"
"""First 8 bytes; another layout has another number."""
SLOT_BASE = 64
SLOT_COUNT = 120
FACTS_BASE = 4096
"""The JSON area: 8 bytes sequence (odd while it is written), 8 bytes length, then UTF-8."""
PAGE_BYTES = 65536


class Phase(IntEnum):
    """What a rank is doing."""

    BETWEEN = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    DATA = 4
    CHECKPOINT = 5
    EVALUATION = 6
    PAUSED = 7
    LOADING = 8
    TO_DEVICE = 9


PATIENT = frozenset({Phase.CHECKPOINT, Phase.EVALUATION, Phase.LOADING})
"""Phases in which no step is made, by design."""
PATIENCE = 10
"""How many times `recovery.progressTimeoutSeconds` a rank may spend in one of them, before its first step, or ending."""


class WorkerState(IntEnum):
    """Where a worker is in its life."""

    NONE = 0
    STARTED = 1
    RUNNING = 2
    """The user's program runs."""
    EXITING = 3
    FINISHED = 4
    """`EXIT_CODE` is final: what kills the process after this is no failure."""


class Slot(IntEnum):
    """Indexes of the float64 slots. Seconds are of the monotonic clock of the machine; byte counts are exact < 2^53."""

    PID = 0
    GENERATION = 1
    RANK = 2
    STATE = 3
    EXIT_CODE = 4
    STARTED_AT = 5
    TORCH_IMPORTED_AT = 6
    PROCESS_GROUP_AT = 7
    DDP_AT = 8
    FIRST_STEP_AT = 9
    STEP = 10
    """Optimizer steps since the start of the training (resumed ones included)."""
    GENERATION_STEPS = 11
    """Optimizer steps of this process."""
    MICRO_BATCHES = 12
    MICRO_BATCHES_SYNCED = 13
    BACKWARDS = 14
    SAMPLES = 15
    TOKENS = 16
    LAST_STEP_AT = 17
    PHASE = 18
    PHASE_SINCE = 19
    DATA_SECONDS = 20
    FORWARD_SECONDS = 21
    BACKWARD_SECONDS = 22
    """Without what is in `COMM_EXPOSED_SECONDS`."""
    OPTIMIZER_SECONDS = 23
    OTHER_SECONDS = 24
    STEP_SECONDS = 25
    CHECKPOINT_SECONDS = 26
    EVALUATION_SECONDS = 27
    REDUCER_FORWARD_NS = 28
    REDUCER_BACKWARD_NS = 29
    REDUCER_COMM_NS = 30
    REDUCER_OVERLAP_NS = 31
    REDUCER_ITERATIONS = 32
    """Iterations that the four sums above stand for."""
    ALL_REDUCES = 33
    """Synchronised backward passes as torch's reducer counts them."""
    ALL_REDUCE_BYTES = 34
    BUCKETS = 35
    LOSS = 36
    GRAD_NORM = 37
    LEARNING_RATE = 38
    NON_FINITE_STEPS = 39
    WORLD_SIZE = 40
    EPOCH = 41
    TOTAL_STEPS = 42
    CHECKPOINT_STEP = 43
    CHECKPOINTS = 44
    CHECKPOINT_FAILURES = 45
    CHECKPOINT_AT = 46
    """Wall-clock seconds (time.time)."""
    CHECKPOINT_BYTES = 47
    RESUMED_STEP = 48
    OVERRIDES = 49
    WARNINGS = 50
    OBSERVED_ACCUMULATION = 51
    DDP_MODELS = 52
    REPLICA_MISMATCHES = 53
    COLLECTIVE_SEQUENCE = 54
    WARM = 55
    """1: this worker waited as a standby, its imports done, before its generation began."""
    UNMEASURED = 56
    """1: the steps of this rank are not counted: the instrumentation has failed and stands aside, or the program has
    compiled a step with all that could be seen of it, or started processes that may train, and none has been counted since."""
    H2D_SECONDS = 57
    """Batches on their way to the device; only our own loop knows."""
    COMM_EXPOSED_SECONDS = 58
    """Waiting for other ranks: for gradients in backward (as torch's reducer samples it), for buffers in forward."""
    DEVICE_ALLOCATED_BYTES = 59
    DEVICE_RESERVED_BYTES = 60
    """Both 0 without a device; looked at now and then."""
    TORCH_IMPORT_AT = 61
    """Not 0: its import has begun."""
    STEP_DURATIONS = 64
    """The first of `len(STEP_BOUNDS) + 1` counts: steps not longer than each bound, and the longer ones."""
    DEVICE_PEAK_BYTES = 84
    """The most that tensors have taken of the device; this and the two below as `DEVICE_ALLOCATED_BYTES`."""
    DEVICE_ALLOC_RETRIES = 85
    DEVICE_OOMS = 86
    CHECKPOINT_DURATION_SECONDS = 87
    """How long this rank has written at the newest checkpoint; 0 where it has written none."""
    # words of the launcher
    PAUSE = 96
    """Not 0: hold at the next step boundary."""
    STOP_AT = 97
    """Not 0: save and end when this boundary is reached."""
    # answers of the worker
    BOUNDARY = 98
    """The newest step boundary; published before PAUSE is read."""
    PAUSED_AT = 99
    CAN_STOP_AT = 100
    """Not 0: it has made this many steps and can still save and stop there (an evaluation that lets itself be ended)."""
    ERROR_AT = 101
    """Not 0: its error file was written then, with what the program has ended with; the process may take long to end."""


LAUNCHERS_WORDS = frozenset({Slot.PAUSE, Slot.STOP_AT})
"""Slots that the launcher writes; all others are the worker's."""

STEP_BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Seconds from optimizer step to optimizer step; each count at `Slot.STEP_DURATIONS` is of the steps between two."""


class Fact(StrEnum):
    """Keys of the JSON area."""

    DDP = "ddp"
    """`report.InEffect`."""
    RESULT = "result"
    """What the program reported at its end."""
    TORCH = "torch"
    """Its version."""
    CHECKPOINT = "checkpoint"
    """Why the newest checkpoint could not be written, as a sentence; empty once one could."""
