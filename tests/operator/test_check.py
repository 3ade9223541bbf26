"""`helm test`: what it finds wrong with an installation, in words."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from tests.operator.fake_api import FakeApi

from ddpjob_operator import check
from ddpjob_operator.client import Answer, Client


def refusing(status: int, reason: str, message: str) -> Client:
    api = FakeApi()
    api.before = lambda method, path: Answer(
        status=status, body={"kind": "Status", "reason": reason, "message": message}
    )
    return Client(api, manager="test")


async def test_a_whole_installation_has_no_trouble() -> None:
    client = Client(FakeApi(), manager="test")
    assert await check.not_served(client, ()) is None
    assert await check.not_served(client, ("a", "b")) is None


@pytest.mark.parametrize(
    ("client", "words"),
    [
        (refusing(404, "NotFound", "no such page"), "install the chart with crds.enabled"),
        (
            refusing(403, "Forbidden", "cannot list"),
            "may not list DDPJobs in a (rbac.create makes its roles)",
        ),
        (refusing(500, "InternalError", "etcd"), "cannot be listed: 500 InternalError: etcd"),
    ],
)
async def test_ddpjobs_that_cannot_be_read_are_said_with_what_to_do(client: Client, words: str) -> None:
    assert words in (await check.not_served(client, ("a",)) or "")


@pytest.fixture
def operator() -> Iterator[tuple[str, list[int]]]:
    """An address of /readyz, and the statuses that it answers with, the last one for ever."""
    answers = [200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"ok" if status == 200 else b"not all objects are listed yet")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/readyz", answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("statuses", "words"), [([200], None), ([503, 503, 200], None), ([503], "not all objects are listed yet")]
)
async def test_an_operator_that_is_not_ready_is_waited_for_and_quoted(
    operator: tuple[str, list[int]], statuses: list[int], words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, answers = operator
    answers[:] = statuses
    monkeypatch.setattr(check, "PAUSE_SECONDS", 0)
    trouble = await check.not_ready(url)
    assert trouble is None if words is None else words in (trouble or "")


async def test_an_operator_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "PAUSE_SECONDS", 0)
    assert "no answer" in (await check.not_ready("http://127.0.0.1:9/readyz") or "")
