"""Each training program runs once per session; many assertions read what it left."""

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.worker.ranks import DEADLINE_SECONDS, Rank, Ranks, run

from ddpjob_api.page import Slot
from ddpjob_api.spec import DDP, Backend, Overrides

PROGRAM = str(Path(__file__).with_name("program.py"))
Folder = Callable[[str], Path]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the ranks did not get there"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return lambda name: tmp_path_factory.mktemp(name)


@pytest.fixture(scope="session")
def bare(folder: Folder) -> list[Rank]:
    """The program under plain python."""
    return run(folder("bare"), [PROGRAM], bootstrap=False)


FAULTY = f"""
import os, runpy, sys
from ddpjob_trainer.instrumentation.clock import Clock

original, calls = Clock.forward, []

def forward(*args, **kwargs):
    calls.append(args)
    if len(calls) > 5 and os.environ["RANK"] == "1":
        raise TypeError("a fault of ours")
    return original(*args, **kwargs)

Clock.forward = forward
runpy.run_path({PROGRAM!r}, run_name="__main__")
"""


@pytest.fixture(scope="session")
def faulty(folder: Folder) -> list[Rank]:
    """The program, and from its sixth step on the instrumentation of rank 1 fails."""
    where = folder("faulty")
    (where / "faulty.py").write_text(FAULTY)
    return run(where, ["faulty.py"])


@pytest.fixture(scope="session")
def untouched(folder: Folder) -> list[Rank]:
    """A resource that sets nothing."""
    return run(folder("untouched"), [PROGRAM])


OVERRIDDEN: dict[str, Any] = {
    "args": [
        PROGRAM,
        "--accumulate",
        "4",
        "--arguments",
        '{"bucket_cap_mb": 50, "broadcast_buffers": true, "find_unused_parameters": true}',
    ],
    "ddp": DDP(
        backend=Backend.GLOO,
        gradient_accumulation_steps=4,
        bucket_cap_mb=1,
        broadcast_buffers=False,
        find_unused_parameters=False,
        gradient_as_bucket_view=True,
        timeout=timedelta(seconds=77),
    ),
}


@pytest.fixture(scope="session")
def overridden(folder: Folder) -> list[Rank]:
    """A resource that sets all, a script that wants all otherwise."""
    return run(folder("overridden"), **OVERRIDDEN)


@pytest.fixture(scope="session")
def overridden_warm(folder: Folder) -> list[Rank]:
    """The same in standbys that had imported torch before."""
    imports = ["torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo"]
    return run(folder("overridden"), standby=imports, **OVERRIDDEN)


@pytest.fixture(scope="session")
def failed(folder: Folder) -> list[Rank]:
    """Overrides are only reported, accumulation is not as asked and without no_sync; then rank 1 fails."""
    return run(
        folder("failed"),
        [
            PROGRAM,
            "--accumulate",
            "2",
            "--sync-all",
            "--fail",
            "--arguments",
            '{"find_unused_parameters": true}',
        ],
        ddp=DDP(
            bucket_cap_mb=1,
            find_unused_parameters=False,
            gradient_accumulation_steps=4,
            overrides=Overrides.REPORT,
        ),
    )


@pytest.fixture(scope="session")
def stopped(folder: Folder) -> list[Rank]:
    """A static graph accumulated under no_sync, with one bucket of 25 MiB, stopped on request."""
    ranks = Ranks(
        folder("stopped"),
        [PROGRAM, "--accumulate", "4", "--until-stopped"],
        ddp=DDP(bucket_cap_mb=25, static_graph=True, broadcast_buffers=True),
    )
    pages = [ranks.page(0), ranks.page(1)]

    def alive() -> None:
        assert all(process.poll() is None for process in ranks.processes), ranks.wait()

    def all_reach(slot: Slot, least: float) -> bool:
        alive()
        return all(page[slot] >= least for page in pages)

    wait_for(lambda: all_reach(Slot.STEP, 5))
    for page in pages:
        page[Slot.PAUSE] = 1
    # A rank whose peer is held waits for it inside its next step, so one held rank is enough to know the highest.
    wait_for(lambda: any(page[Slot.PAUSED_AT] for page in pages))
    time.sleep(0.05)
    stop_at = max(page[Slot.BOUNDARY] for page in pages) + 1
    for page in pages:
        page[Slot.STOP_AT] = stop_at
        page[Slot.PAUSE] = 0
    return ranks.wait()
