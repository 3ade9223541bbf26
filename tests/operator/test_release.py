"""What an uninstalled operator leaves behind."""

import pytest
from tests.operator.world import World

from ddpjob_operator.client import Client
from ddpjob_operator.release import release

pytestmark = pytest.mark.timeout(60)


async def test_release_takes_every_tracking_finalizer_off() -> None:
    world = await World().start()
    await world.apply()
    world.operators.clear()
    assert await release(Client(world.api, manager="m"), ()) == 2
    assert world.tracked() == []
    assert await release(Client(world.api, manager="m"), ()) == 0
