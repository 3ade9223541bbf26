"""What torch's reducer of one DDP model says about itself: its count, its clock, its buckets.

Why apart: these are torch's own numbers, read from its logger (`_get_ddp_logging_data`), never computed by us. The
logger samples: the first 10 iterations, then one in some, so that a sample is taken about every `SAMPLE_SECONDS`; it
stands for the iterations since the one before. Nothing is recorded under `no_sync`, so `iteration` counts the forward
passes that were prepared for synchronisation, one for each synchronised backward pass.
Must not: keep the model alive (it holds logger and reducer, which know nothing of the Python object).
"""

from time import monotonic
from typing import Any

from ddpjob_api.page import Slot
from ddpjob_trainer.device_time import Measured
from ddpjob_trainer.worker import Worker

SAMPLE_RATE = 20
"""One iteration in so many at first, and on a device, where a sample waits for it."""
RAREST_RATE = 100
"""And at most in so many where iterations are short; torch's own."""
SAMPLE_SECONDS = 0.25
"""Longer iterations are sampled more often: it costs them less, and the numbers are wanted soon."""
MARGIN = 0.001
"""A backward pass is another one if it takes half or twice as long, and by this many seconds."""
FULLY_SAMPLED = 10
"""torch records each of the first iterations."""

ALL_REDUCES, ALL_REDUCE_BYTES = int(Slot.ALL_REDUCES), int(Slot.ALL_REDUCE_BYTES)
CLOCK = (
    (int(Slot.REDUCER_FORWARD_NS), "forward_compute_time"),
    (int(Slot.REDUCER_BACKWARD_NS), "backward_compute_time"),
    (int(Slot.REDUCER_COMM_NS), "backward_comm_time"),
    (int(Slot.REDUCER_OVERLAP_NS), "backward_compute_comm_overlap_time"),
)
ITERATIONS = int(Slot.REDUCER_ITERATIONS)


class Reducer:
    """The reducer of one model."""

    def __init__(self, worker: Worker, model: Any) -> None:
        self._slots = worker.page.slots
        self._logger = model.logger
        self._reducer = model.reducer
        self._bytes = sum(
            parameter.numel() * parameter.element_size()
            for parameter in model._module_parameters
            if parameter.requires_grad
        )
        self.exposed_share = 0.0
        """Part of a backward pass that waits for other ranks, 0 … 1, in the newest sample; 0 on a device."""
        self.on_device: Measured | None = None
        """The newest sample of a device; None on a CPU, whose passes take as long as the host's."""
        self._low, self._high = 0.0, 0.0
        """A pass that takes less or more than these is sampled soon."""
        self._on_cpu = model.device_type == "cpu"
        self._rate = SAMPLE_RATE
        self._sampled_at = 0.0
        self._sampled_count = 0
        self._prepared = 0
        self._next = 2
        self._counted = 0
        self._clocked = 0
        self._exposed_ns = self._forward_ns = self._computed_ns = 0
        """Of the newest sample."""
        self.unused_bytes = 0
        """Of parameters that this rank has not used, in the newest sample."""
        self._reducer._set_ddp_runtime_logging_sample_rate(SAMPLE_RATE)

    def prepared(self, backward_seconds: float) -> bool:
        """A synchronised forward pass began, and the pass before took this long backwards.

        Returns:
            Whether torch has just written a sample, from which `exposed_share` and `on_device` are.
        """
        self._prepared = count = self._prepared + 1
        self._slots[ALL_REDUCE_BYTES] += self._bytes
        if count < self._next:
            if self._on_cpu and not self._low <= backward_seconds <= self._high and count + 2 < self._next:
                # Something has changed: the present iteration is not recorded any more, the next one is.
                self._sample_every(1)
                self._next = count + 2
            return False
        if count <= FULLY_SAMPLED:
            self._next = count + 1
        else:
            if self._on_cpu:
                self._adapt(count)
            self._next = (count // self._rate + 1) * self._rate + 1
        self._read(self._logger._get_ddp_logging_data().ints_map)
        exposed = max(0.0, self._exposed_ns / 1e9)
        if self._on_cpu:
            self.exposed_share = min(1.0, exposed / backward_seconds) if exposed and backward_seconds else 0.0
        else:
            self.on_device = Measured(
                forward_seconds=max(0, self._forward_ns) / 1e9,
                backward_seconds=max(0, self._computed_ns) / 1e9,
                exposed_seconds=exposed,
            )
        self._low, self._high = 0.5 * backward_seconds - MARGIN, 2 * backward_seconds + MARGIN
        return True

    def _adapt(self, count: int) -> None:
        """Sample so often that it is about every `SAMPLE_SECONDS`."""
        now = monotonic()
        if self._sampled_at:
            each = (now - self._sampled_at) / (count - self._sampled_count)
            rate = min(RAREST_RATE, max(1, int(SAMPLE_SECONDS / each))) if each > 0 else RAREST_RATE
            self._sample_every(rate)
        self._sampled_at, self._sampled_count = now, count

    def _sample_every(self, rate: int) -> None:
        if rate != self._rate:
            self._rate = rate
            self._reducer._set_ddp_runtime_logging_sample_rate(rate)

    def read(self) -> tuple[int, ...]:
        """Have torch record the newest iteration now, whatever its sampling says.

        Returns:
            Bytes of the buckets in use, in the order in which they are reduced.
        """
        self._reducer._set_ddp_runtime_logging_sample_rate(1)
        self._logger.set_runtime_stats_and_log()
        self._reducer._set_ddp_runtime_logging_sample_rate(self._rate)
        data = self._logger._get_ddp_logging_data()
        self._read(data.ints_map)
        names = data.strs_map
        sizes = names.get("rebuilt_bucket_sizes") or names.get("bucket_sizes") or ""
        return tuple(int(size) for size in sizes.split(",")) if sizes else ()

    @property
    def count(self) -> int:
        """Synchronised backward passes as torch counted them at the newest reading."""
        return self._counted

    def _read(self, numbers: dict[str, int]) -> None:
        slots = self._slots
        iteration = numbers.get("iteration", 0)
        slots[ALL_REDUCES] += iteration - self._counted
        self._counted = iteration
        weight = iteration - self._clocked
        if weight > 0:
            for slot, name in CLOCK:
                slots[slot] += weight * numbers.get(name, 0)
            slots[ITERATIONS] += weight
            self._clocked = iteration
            self.unused_bytes = numbers.get("unused_parameter_size", 0)
            self._forward_ns = numbers.get("forward_compute_time", 0)
            self._computed_ns = numbers.get("backward_compute_time", 0)
            self._exposed_ns = numbers.get("backward_comm_time", 0) - numbers.get(
                "backward_compute_comm_overlap_time", 0
            )
