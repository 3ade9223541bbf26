"""Work by key, on a real loop."""

import asyncio

import pytest

from ddpjob_operator.queue import Queue

pytestmark = pytest.mark.timeout(60)


async def test_a_key_is_worked_on_by_one_worker_and_once_more_if_it_was_added_meanwhile() -> None:
    going, most, calls = 0, 0, []
    hold, begun = asyncio.Event(), asyncio.Event()

    async def work(key: str) -> None:
        nonlocal going, most
        going += 1
        most = max(most, going)
        calls.append(key)
        begun.set()
        await hold.wait()
        going -= 1

    queue: Queue[str] = Queue(work, workers=4)
    queue.start()
    queue.add("a")
    queue.add("a")
    await asyncio.wait_for(begun.wait(), 30)
    for _ in range(5):
        queue.add("a")
    assert queue.depth == 1
    hold.set()
    await queue.idle()
    await queue.stop()
    assert (calls, most) == (["a", "a"], 1)


async def test_a_failure_is_tried_again_later_and_reported() -> None:
    failures, done = [], asyncio.Event()

    async def work(key: str) -> None:
        if len(failures) < 2:
            raise ValueError(key)
        done.set()

    queue: Queue[str] = Queue(work, workers=1)
    queue.failed = lambda key, error: failures.append(str(error))
    queue.start()
    queue.add("a")
    await asyncio.wait_for(done.wait(), 30)
    await queue.stop()
    assert failures == ["a", "a"]


async def test_the_earliest_of_two_times_wins_and_work_may_ask_for_another() -> None:
    seen: list[float] = []
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    async def work(key: str) -> float | None:
        seen.append(loop.time())
        if len(seen) == 2:
            done.set()
            return None
        return 0.01

    queue: Queue[str] = Queue(work, workers=1)
    queue.start()
    queue.add_after("a", 3600)
    queue.add_after("a", 0.01)
    queue.add_after("a", 7200)
    await asyncio.wait_for(done.wait(), 30)
    assert queue.oldest_seconds == 0.0
    await queue.stop()
