"""Ranks that come before rank 0's store meet it as soon as it listens."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from tests.trainer.worker.ranks import free_port

from ddpjob_trainer.instrumentation import meeting


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
