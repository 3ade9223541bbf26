"""What torch's allocator says of the memory of a CUDA device, onto the page.

Why apart: its numbers come from one call, which is too dear for every step, and are looked at from two places.
Must not: touch a device that the program has not begun to use.
"""

from typing import Any

from ddpjob_api.page import Slot

STATISTICS = {
    Slot.DEVICE_ALLOCATED_BYTES: "allocated_bytes.all.current",
    Slot.DEVICE_RESERVED_BYTES: "reserved_bytes.all.current",
    Slot.DEVICE_PEAK_BYTES: "allocated_bytes.all.peak",
    Slot.DEVICE_ALLOC_RETRIES: "num_alloc_retries",
    Slot.DEVICE_OOMS: "num_ooms",
}
"""Their names in `torch.cuda.memory_stats`; an allocator of the program's own may not have all of them."""


def put_memory(slots: Any, cuda: Any) -> None:
    """Read all of them; `cuda` is `torch.cuda`."""
    found = cuda.memory_stats()
    for slot, name in STATISTICS.items():
        slots[slot] = found.get(name, 0)
