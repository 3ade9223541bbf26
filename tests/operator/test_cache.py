"""What the watches have told: older news never replaces newer."""

from typing import Any

import pytest
from tests.operator.world import KEY, World

from ddpjob_operator.cache import Cache
from ddpjob_operator.observe import pod_of

pytestmark = pytest.mark.timeout(60)


async def test_old_news_does_not_replace_new_and_the_dead_do_not_come_back() -> None:
    world = await World().start()
    await world.apply()
    cache, body = Cache(), world.pod("train-0")

    def seen(version: int) -> Any:
        return pod_of({**body, "metadata": {**body["metadata"], "resourceVersion": str(version)}})

    assert cache.put_pod(seen(5))
    assert not cache.put_pod(seen(4))
    assert not cache.put_pod(seen(5))
    assert cache.settle([], before=4) == []
    assert cache.settle([], before=5) == [KEY]
    assert not cache.put_pod(seen(6))
    assert cache.keys() == []
