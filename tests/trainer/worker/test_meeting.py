"""Ranks that come before rank 0's store meet it as soon as it listens."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.trainer.worker.ranks import free_port, run

from ddpjob_trainer.instrumentation import meeting
from ddpjob_trainer.instrumentation.process_group import comes_to_a_store


@dataclass
class Clock:
    """Time that passes only while somebody sleeps."""

    now: float = 0.0
    pauses: list[float] = field(default_factory=list)
    listen_at: float | None = None
    port: int = 0
    store: socket.socket | None = None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds
        if self.listen_at is not None and self.now >= self.listen_at and self.store is None:
            self.store = socket.create_server(("127.0.0.1", self.port))


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock(port=free_port())
    yield clock
    if clock.store is not None:
        clock.store.close()


def environment(port: int, rank: int = 1, host: str = "127.0.0.1") -> dict[str, str]:
    return {"RANK": str(rank), "MASTER_ADDR": host, "MASTER_PORT": str(port)}


@pytest.mark.parametrize(("comes_after", "at_most"), [(0.02, 0.03), (0.5, 0.6), (4.0, 4.26)])
def test_a_rank_that_is_early_goes_on_shortly_after_the_store_is_there(
    clock: Clock, comes_after: float, at_most: float
) -> None:
    clock.listen_at = comes_after
    assert meeting.wait(environment(clock.port), clock=clock, sleep=clock.sleep)
    assert comes_after <= clock.now <= at_most
    assert clock.store is not None
    connection, _ = clock.store.accept()
    with connection:
        assert connection.recv(1) == b"", "it says nothing and goes"


def test_it_is_left_to_torch_after_a_while_and_asks_seldom_by_then(clock: Clock) -> None:
    assert not meeting.wait(environment(clock.port), clock=clock, sleep=clock.sleep)
    assert meeting.LONGEST_SECONDS <= clock.now < meeting.LONGEST_SECONDS + 1
    assert len(clock.pauses) < 200
    assert clock.pauses == sorted(clock.pauses)


@pytest.mark.parametrize(
    "told",
    [
        {},
        environment(1, rank=0),
        environment(1) | {"MASTER_PORT": "none"},
        environment(1, host="not a name"),
    ],
)
def test_it_does_not_wait_where_there_is_nothing_to_wait_for(clock: Clock, told: dict[str, str]) -> None:
    assert not meeting.wait(told, clock=clock, sleep=clock.sleep)
    assert clock.pauses == []


ENVIRONMENT = {"init_method": "env://", "rank": -1, "backend": None}


@pytest.mark.parametrize(
    ("asked", "comes"),
    [
        ({}, True),
        (ENVIRONMENT, True),
        ({"backend": "gloo", "rank": 1, "world_size": 2}, True),
        ({"rank": 0, "world_size": 1}, False),
        ({"backend": "mpi"}, False),
        ({"init_method": "tcp://127.0.0.1:1"}, False),
        ({"store": object()}, False),
    ],
)
def test_only_who_looks_for_the_store_of_rank_0_waits_for_it(asked: dict[str, Any], comes: bool) -> None:
    assert comes_to_a_store(asked) == comes


ALONE = """
import os, time, torch.distributed as dist
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + int(os.environ["RANK"]))
began = time.monotonic()
dist.init_process_group("gloo", rank=0, world_size=1)
print(time.monotonic() - began)
"""


def test_a_rank_with_a_group_of_its_own_waits_for_nobody(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ALONE)
    for rank in run(tmp_path, ["train.py"]):
        assert rank.returncode == 0, rank.stderr
        assert rank.printed < meeting.LONGEST_SECONDS
