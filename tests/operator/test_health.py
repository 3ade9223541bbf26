"""What a kubelet and Prometheus ask the operator, over real HTTP."""

from datetime import timedelta

import aiohttp
import pytest

from ddpjob_operator.health import Health, Metrics

pytestmark = pytest.mark.timeout(60)


async def test_health_speaks_of_syncs_and_stuck_jobs() -> None:
    oldest = 0.0
    metrics = Metrics()
    health = Health(
        metrics, resync=timedelta(minutes=10), oldest_seconds=lambda: oldest, refresh=lambda: None
    )
    port = await health.start("127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

            async def get(path: str) -> tuple[int, str]:
                async with session.get(path) as answer:
                    return answer.status, await answer.text()

            assert (await get("/readyz"))[0] == 503
            assert await get("/healthz") == (200, "ok")
            health.synced()
            assert await get("/readyz") == (200, "ok")
            metrics.request("GET", "pods", 200, 0.01)
            assert "ddpjob_operator_api_requests_total" in (await get("/metrics"))[1]
            oldest = 1000.0
            assert await get("/healthz") == (503, "a job has waited for 1000 s")
    finally:
        await health.stop()
