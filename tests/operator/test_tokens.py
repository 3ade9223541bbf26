"""The jobs' tokens, which nobody is shown."""

import pytest
from tests.operator.world import KEY, World

pytestmark = pytest.mark.timeout(60)


async def test_a_token_is_never_shown() -> None:
    world = await World().start()
    await world.apply()
    token = await world.operator.tokens.look_up(world.operator.cache.entry(KEY).job)  # type: ignore[arg-type]
    assert token is not None
    assert token.decode() not in repr(world.operator.tokens) + str(vars(world.operator.poller))
