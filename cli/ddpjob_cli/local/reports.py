"""What launchers say about a run: `/status` while it lasts, termination files at its end.

Why apart: the two are checked against the api's types here and nowhere else. A launcher that does not answer is no
error: it may be starting, or already gone.
"""

import asyncio
import http.client
import json
from pathlib import Path

from ddpjob_api.codec import Invalid, load
from ddpjob_api.messages import status_key
from ddpjob_api.report import MAX_REPORT_BYTES, MAX_TERMINATION_BYTES, JobReport, TerminationMessage
from ddpjob_cli.local.ports import HOST

TIMEOUT_SECONDS = 2.0


class Coordinator:
    """The HTTP side of the launcher of node 0."""

    def __init__(self, *, port: int, token: bytes) -> None:
        self.port = port
        self._headers = {"Authorization": f"Bearer {status_key(token)}"}

    async def report(self) -> JobReport | None:
        """Where the job stands; None while nobody answers."""
        status, body = await asyncio.to_thread(self._ask, "GET", "/status")
        if status != http.HTTPStatus.OK:
            return None
        try:
            return load(JobReport, json.loads(body))
        except (ValueError, Invalid):
            return None

    async def stop(self) -> bool:
        """Ask all ranks to save at one step and end; whether the request was taken."""
        status, _ = await asyncio.to_thread(self._ask, "POST", "/stop")
        return status is not None and 200 <= status < 300

    def _ask(self, method: str, path: str) -> tuple[int | None, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, headers=self._headers)
            response = connection.getresponse()
            return response.status, response.read(MAX_REPORT_BYTES + 1)[:MAX_REPORT_BYTES]
        except (OSError, http.client.HTTPException):
            return None, b""
        finally:
            connection.close()


def read_termination(path: Path) -> TerminationMessage | None:
    """What a launcher left; None where it did not come to that."""
    try:
        return load(TerminationMessage, json.loads(path.read_bytes()[:MAX_TERMINATION_BYTES]))
    except (OSError, ValueError, Invalid):
        return None
