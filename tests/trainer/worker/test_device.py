"""What torch's allocator says reaches the page; no GPU is needed to show it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.trainer.worker.ranks import run

from ddpjob_api.page import Slot
from ddpjob_trainer.instrumentation import device
from ddpjob_trainer.page import Page

SAID = {
    "allocated_bytes.all.current": 100,
    "allocated_bytes.all.peak": 300,
    "reserved_bytes.all.current": 400,
    "num_alloc_retries": 2,
    "num_ooms": 1,
}
SLOTS = (
    Slot.DEVICE_ALLOCATED_BYTES, Slot.DEVICE_PEAK_BYTES, Slot.DEVICE_RESERVED_BYTES, Slot.DEVICE_ALLOC_RETRIES,
    Slot.DEVICE_OOMS,
)  # fmt: skip


@pytest.mark.parametrize(
    ("statistics", "slots"), [(SAID, [100, 300, 400, 2, 1]), ({"num_ooms": 1}, [0, 0, 0, 0, 1])]
)
def test_the_memory_of_a_device_is_on_the_page(
    tmp_path: Path, statistics: dict[str, int], slots: list[int]
) -> None:
    cuda: Any = SimpleNamespace(memory_stats=lambda: statistics)
    with Page(tmp_path / "page", create=True) as page:
        device.put_memory(page.slots, cuda)
        assert [page[slot] for slot in SLOTS] == slots


MODEL = """
import torch, torch.distributed as dist
from types import SimpleNamespace
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
said = {said}
if {cuda}:
    torch.cuda.is_initialized = lambda: True
    torch.cuda.memory_stats = lambda: said
    model.device_type = "cuda"
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if {cuda}:
    from ddpjob_api.page import Slot
    from ddpjob_trainer import worker
    assert worker.current().page[Slot.DEVICE_PEAK_BYTES] == 300, "while it trains"
said["num_ooms"] = 7
raise MemoryError("out of memory")
"""


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("cuda", "slots"), [(True, [100, 300, 400, 2, 7]), (False, [0] * 5)])
def test_it_is_looked_at_while_a_program_trains_and_once_more_at_its_end(
    tmp_path: Path, cuda: bool, slots: list[int]
) -> None:
    (tmp_path / "train.py").write_text(MODEL.format(said=SAID, cuda=cuda))
    [rank] = run(tmp_path, ["train.py"], world_size=1)
    assert "out of memory" in rank.stderr.splitlines()[-1], rank.stderr
    assert [rank[slot] for slot in SLOTS] == slots
