"""What torch's reducer of one DDP model says about itself: its count, its clock, its buckets.

Why apart: these are torch's own numbers, read from its logger (`_get_ddp_logging_data`), never computed by us. The
logger samples: the first 10 iterations, then one in `SAMPLE_RATE`; a sample stands for the iterations since the one
before. Nothing is recorded under `no_sync`, so `iteration` counts the forward passes that were prepared for
synchronisation, one for each synchronised backward pass.
Must not: keep the model alive (it holds logger and reducer, which know nothing of the Python object).
"""

from typing import Any

from ddpjob_api.page import Slot
from ddpjob_trainer.worker import Worker

SAMPLE_RATE = 20
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
        self._prepared = 0
        self._next = 2
        self._counted = 0
        self._clocked = 0
        self._reducer._set_ddp_runtime_logging_sample_rate(SAMPLE_RATE)

    def prepared(self) -> bool:
        """A synchronised forward pass began; True where torch has just written a sample."""
        self._prepared += 1
        self._slots[ALL_REDUCE_BYTES] += self._bytes
        if self._prepared < self._next:
            return False
        count = self._prepared
        self._next = count + 1 if count <= FULLY_SAMPLED else (count // SAMPLE_RATE + 1) * SAMPLE_RATE + 1
        self._read(self._logger._get_ddp_logging_data().ints_map)
        return True

    def read(self) -> tuple[int, ...]:
        """Have torch record the newest iteration now, whatever its sampling says.

        Returns:
            Bytes of the buckets in use, in the order in which they are reduced.
        """
        self._reducer._set_ddp_runtime_logging_sample_rate(1)
        self._logger.set_runtime_stats_and_log()
        self._reducer._set_ddp_runtime_logging_sample_rate(SAMPLE_RATE)
        data = self._logger._get_ddp_logging_data()
        self._read(data.ints_map)
        names = data.strs_map
        sizes = names.get("rebuilt_bucket_sizes") or names.get("bucket_sizes") or ""
        return tuple(int(size) for size in sizes.split(",")) if sizes else ()

    def nothing_unused(self) -> bool:
        """Whether the newest sample saw every parameter used."""
        return bool(self._logger._get_ddp_logging_data().ints_map.get("unused_parameter_size", 1) == 0)

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
