"""An API server that knows one job of two pods."""

from collections.abc import Iterator

import pytest
from tests.cli.api_server import ApiServer, listed
from tests.cli.cluster import JOB, JOBS, PODS, pod
from tests.cli.test_top import metrics


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr("ddpjob_cli.scraping.FIRST_SECONDS", 0.01)
    with ApiServer() as server:
        server.answers = {
            f"GET {JOBS}/digits": (200, JOB),
            f"GET {JOBS}?limit=500": listed(JOB),
            f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500": listed(pod(1, "Succeeded"), pod(0)),
            "GET /api/v1/namespaces/team/events?limit=500": listed(
                {
                    "involvedObject": {"uid": "p1"},
                    "reason": "BackOff",
                    "message": "slow\n down",
                    "type": "Warning",
                    "count": 3,
                },
                {
                    "involvedObject": {"uid": "another"},
                    "reason": "BackOff",
                    "message": "not ours",
                    "type": "Warning",
                },
            ),
            f"GET {PODS}/digits-0:9464/proxy/metrics": (200, metrics(20, data=0.2, comm=0.4, rank=0)),
            f"GET {PODS}/digits-0/log?container=trainer": (200, "[rank 0] one\n[rank 0] two"),
            f"GET {PODS}/digits-1/log?container=trainer": (200, "[rank 1] three\n[ddpjob] history: x\n"),
        }
        yield server


@pytest.fixture
def deleted(api: ApiServer) -> ApiServer:
    """Beside the pods of the job those of an earlier one of its name, which save for as long as they may."""
    earlier = [pod(0, incarnation=3, job="earlier"), pod(1, "Failed", incarnation=2, job="earlier")]
    for one in earlier:
        one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        log = f"GET {PODS}/{one['metadata']['name']}/log?container=trainer"
        api.answers[log] = (200, "[rank 0] the earlier job's\n")
        api.answers[f"{log}&follow=true&timestamps=true"] = (
            200, "2026-01-01T00:00:00.200000000Z [rank 0] the earlier job's\n",
        )  # fmt: skip
        api.answers[f"GET {PODS}/{one['metadata']['name']}"] = (404, {})
    pods = f"GET {PODS}?labelSelector=ddpjob.dev/name=digits&limit=500"
    api.answers[pods] = listed(*earlier, pod(1, "Succeeded"), pod(0))
    return api
