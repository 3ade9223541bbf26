"""What a device is at, while the host launches more or waits for it.

How it works: the host launches work that a device does later, so that host time says nothing of a phase: whoever asks
for the loss first seems to take the whole step. Each micro-batch therefore leaves as much to do as torch's reducer
measured on the device itself (its events, sampled). Time that passes on the host while something is left belongs to
the device: forward, then backward, then its wait for other ranks. Only time beyond that is the host's own phase, as
waiting for data is.

Why apart: two count phases, the instrumentation's clock and the built-in loop's board. Must not: touch torch or a device.
"""

from dataclasses import dataclass

from ddpjob_api.page import Slot

AHEAD = 4
"""Micro-batches that a host gets ahead of its device at most. A sample that was too long must not eat what comes later."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one micro-batch takes on the device."""

    forward_seconds: float
    backward_seconds: float
    exposed_seconds: float
    """Waiting for other ranks with nothing to compute; only where gradients are synchronised."""


class DeviceTime:
    """What is left to do for the device of this process. All zero, and without effect, where it trains on a CPU."""

    def __init__(self, slots: "memoryview[float]") -> None:
        self._slots = slots
        self.left = 0.0
        """Seconds, of all parts."""
        self._parts = {
            int(slot): 0.0
            for slot in (Slot.FORWARD_SECONDS, Slot.BACKWARD_SECONDS, Slot.COMM_EXPOSED_SECONDS)
        }

    def launched(self, micro_batch: Measured, *, synced: bool) -> None:
        """A forward and a backward pass are under way on the device."""
        exposed = micro_batch.exposed_seconds if synced else 0.0
        for slot, seconds in zip(
            self._parts, (micro_batch.forward_seconds, micro_batch.backward_seconds, exposed), strict=True
        ):
            if seconds:
                self._parts[slot] = min(self._parts[slot] + seconds, AHEAD * seconds)
        self.left = sum(self._parts.values())

    def passed(self, seconds: float) -> float:
        """Count what the device did in these seconds; returned is how many of them it had nothing to do."""
        for slot, left in self._parts.items():
            taken = min(left, seconds)
            self._parts[slot] -= taken
            self._slots[slot] += taken
            seconds -= taken
        self.left = sum(self._parts.values())
        return seconds
