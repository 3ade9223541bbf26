"""A coordinator that nobody finds by its name calls the launchers at addresses that it was given."""

import asyncio
import json
from collections.abc import Callable

import pytest
from tests.trainer.launcher.local import free_ports
from tests.trainer.launcher.world import coordinator

from ddpjob_api.messages import PROTOCOL, Beat, Hello, Message, Welcome, announcement
from ddpjob_trainer.launcher import server as server_module
from ddpjob_trainer.launcher.announcing import Announcer, addresses_of
from ddpjob_trainer.launcher.http import MAX_BODY_BYTES, HttpServer, Site
from ddpjob_trainer.launcher.link import Link
from ddpjob_trainer.launcher.server import Server

pytestmark = pytest.mark.timeout(60)
TOKEN = b"secret"
NOWHERE = "127.0.0.2"


def site(
    announced: Callable[[str, int], None],
    addresses: Callable[[bytes], None] | None = None,
    *,
    leads: bool = False,
) -> Site:
    return Site(
        metrics=str,
        history=bytes,
        ready=lambda: True,
        key="key",
        status=(lambda: b"{}") if leads else None,
        stop=None,
        proof=lambda caller: announcement(TOKEN, caller),
        announced=announced,
        addresses=addresses,
    )


def link_to(
    host: str,
    port: int,
    *,
    on_state: Callable[[bool], None],
    on_message: Callable[[Message], None] = lambda message: None,
) -> Link:
    def greet(nonce: str, proof: str) -> Hello:
        return Hello(protocol=PROTOCOL, nonce=nonce, proof=proof, node=1, incarnation=0)

    return Link(
        host=host, port=port, token=TOKEN, hello=greet, on_message=on_message, on_state=on_state,
        on_refused=lambda why: None, beat=Beat, say=lambda text: None,
    )  # fmt: skip


async def post(port: int, path: str, bearer: str, body: bytes = b"", length: int | None = None) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    size = len(body) if length is None else length
    writer.write(
        f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {bearer}\r\nContent-Length: {size}\r\n\r\n".encode()
        + body
    )
    status = int((await reader.readline()).split()[1])
    writer.close()
    await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
    return status


async def test_a_launcher_that_is_called_leaves_the_name_and_connects_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "FINISH_SECONDS", 0.1)
    port, http_port = free_ports(2)
    core = coordinator(2)
    server = Server(core, TOKEN, say=lambda text: None, on_bug=lambda error: None)
    await server.start("127.0.0.1", port)
    up = asyncio.Event()
    link = link_to(NOWHERE, port, on_state=lambda state: up.set() if state else None)
    http = HttpServer(site(link.announced))
    await http.start("127.0.0.1", http_port)
    task = asyncio.create_task(link.run())
    announcer = Announcer(
        address="127.0.0.1", term=1, port=http_port, token=TOKEN, missing=lambda: core.members.missing
    )
    try:
        await announcer.call({0: NOWHERE, 1: "127.0.0.1"})
        await asyncio.wait_for(up.wait(), 20)
        assert core.members.missing == (0,)
    finally:
        task.cancel()
        await asyncio.wait([task])
        http.close()
        await server.close()


async def test_a_launcher_that_is_called_leaves_an_older_coordinator_and_no_newer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Node 0 may be cut off from the operator alone, and its launchers not from node 0."""
    monkeypatch.setattr(server_module, "FINISH_SECONDS", 0.1)
    port, http_port = free_ports(2)
    hosts = ("127.0.0.1", "127.0.0.2")
    cores = [coordinator(2, incarnation=incarnation) for incarnation in (0, 1)]
    servers = [Server(core, TOKEN, say=lambda text: None, on_bug=lambda error: None) for core in cores]
    for server, host in zip(servers, hosts, strict=True):
        await server.start(host, port)
    states: list[bool] = []
    messages: asyncio.Queue[Message] = asyncio.Queue()

    async def hear(kind: type[Message]) -> Message:
        while not isinstance(message := await asyncio.wait_for(messages.get(), 20), kind):
            pass
        return message

    link = link_to(hosts[0], port, on_state=states.append, on_message=messages.put_nowait)
    http = HttpServer(site(link.announced))
    await http.start(hosts[0], http_port)
    old, new = (
        Announcer(address=host, term=core.term, port=http_port, token=TOKEN, missing=lambda: (1,))
        for core, host in zip(cores, hosts, strict=True)
    )
    task = asyncio.create_task(link.run())
    try:
        await hear(Welcome)
        await new.call({1: hosts[0]})
        welcome = await hear(Welcome)
        assert isinstance(welcome, Welcome) and welcome.term == 2
        assert cores[1].members.missing == (0,)
        for stale in (old, new):
            await stale.call({1: hosts[0]})
        while not messages.empty():
            messages.get_nowait()
        await hear(Beat)
        assert states == [True, False, True]
    finally:
        task.cancel()
        await asyncio.wait([task])
        http.close()
        for server in servers:
            await server.close()


async def test_only_those_that_are_missing_are_called() -> None:
    (port,) = free_ports(1)
    heard: list[tuple[str, int]] = []
    http = HttpServer(site(lambda *caller: heard.append(caller)))
    await http.start("127.0.0.1", port)
    announcer = Announcer(address="10.0.0.7", term=1, port=port, token=TOKEN, missing=lambda: (2,))
    await announcer.call({1: "127.0.0.1"})
    assert heard == []
    await announcer.call({1: "127.0.0.1", 2: "127.0.0.1"})
    assert heard == [("10.0.0.7", 1)]
    http.close()


async def test_a_call_without_the_token_or_for_another_caller_is_refused() -> None:
    (port,) = free_ports(1)
    heard: list[tuple[str, int]] = []
    http = HttpServer(site(lambda *caller: heard.append(caller)))
    await http.start("127.0.0.1", port)
    assert await post(port, "/coordinator?10.0.0.7&1", "key") == 401
    for other in ("10.0.0.8&1", "10.0.0.7&2", "10.0.0.7"):
        assert await post(port, "/coordinator?10.0.0.7&1", announcement(TOKEN, other)) == 401
    assert await post(port, "/coordinator?10.0.0.7", announcement(TOKEN, "10.0.0.7")) == 400
    assert await post(port, "/addresses", "key", b"{}") == 404
    assert heard == []
    assert await post(port, "/coordinator?10.0.0.7&1", announcement(TOKEN, "10.0.0.7&1")) == 202
    assert heard == [("10.0.0.7", 1)]
    http.close()


async def test_addresses_are_taken_from_key_holders_and_within_bounds() -> None:
    (port,) = free_ports(1)
    heard: list[dict[int, str]] = []
    http = HttpServer(site(lambda *caller: None, lambda body: heard.append(addresses_of(body)), leads=True))
    await http.start("127.0.0.1", port)
    body = json.dumps({"1": "10.0.0.1", "2": "fd00::1", "x": "10.0.0.2", "3": "a b\r\n", "4": 5}).encode()
    assert await post(port, "/addresses", "wrong", body) == 401
    assert await post(port, "/addresses", "key", b"[]") == 400
    assert await post(port, "/addresses", "key", b"not json") == 400
    assert await post(port, "/addresses", "key", b"", length=MAX_BODY_BYTES + 1) == 400
    assert heard == []
    assert await post(port, "/addresses", "key", body) == 202
    assert heard == [{1: "10.0.0.1", 2: "fd00::1"}]
    http.close()
