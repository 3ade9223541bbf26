"""The coordinator's socket towards peers that are slow, silent, malformed, of another version, or strangers."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from tests.trainer.launcher.local import free_ports
from tests.trainer.launcher.world import coordinator, hello

from ddpjob_api.messages import (
    MAX_LINE_BYTES,
    PROTOCOL,
    Beat,
    Challenge,
    Finish,
    Hello,
    Welcome,
    decode,
    encode,
    prove,
)
from ddpjob_trainer.launcher import server as server_module
from ddpjob_trainer.launcher.link import Link
from ddpjob_trainer.launcher.server import Server
from ddpjob_trainer.launcher.wire import Lines, Lost

pytestmark = pytest.mark.timeout(60)
TOKEN = b"secret"


class Listening:
    def __init__(self, server: Server, port: int, said: list[str], bugs: list[BaseException]) -> None:
        self.server, self.port, self.said, self.bugs = server, port, said, bugs
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        return reader, writer

    async def join(self) -> asyncio.StreamReader:
        """A launcher that has proved itself, and says nothing more."""
        reader, writer = await self.open()
        challenge = decode(await reader.readline())
        assert isinstance(challenge, Challenge)
        proof = prove(TOKEN, "launcher", challenge.nonce, "mine")
        writer.write(encode(Hello(protocol=PROTOCOL, nonce="mine", proof=proof, node=0, incarnation=0)))
        assert isinstance(decode(await reader.readline()), Welcome)
        return reader

    async def close(self) -> None:
        for writer in self.writers:
            writer.close()
            await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
        await self.server.close()


def patience(monkeypatch: pytest.MonkeyPatch, silence_seconds: float) -> None:
    """How long a peer may be silent."""
    receive = Lines.receive
    monkeypatch.setattr(Lines, "receive", lambda self, seconds=silence_seconds: receive(self, seconds))


@pytest.fixture
async def listening(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listening]:
    monkeypatch.setattr(server_module, "AUTHENTICATION_SECONDS", 1.0)
    monkeypatch.setattr(server_module, "FINISH_SECONDS", 0.1)
    said: list[str] = []
    bugs: list[BaseException] = []
    server = Server(coordinator(1), TOKEN, say=said.append, on_bug=bugs.append)
    (port,) = free_ports(1)
    await server.start("127.0.0.1", port)
    listening = Listening(server, port, said, bugs)
    yield listening
    await listening.close()
    assert not bugs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"GET / HTTP/1.1\r\n", "not a message"),
        (b"\xff\xfe\n", "not a message"),
        (b"[" * 5000 + b"\n", "not a message"),
        (b"x" * (MAX_LINE_BYTES + 10), "more than"),
        (encode(Beat()), "it began with Beat"),
        (encode(hello(0)), "without the job's token"),
        (b'{"op":"Hello","protocol":7}\n', "protocol 7"),
    ],
)
async def test_a_peer_that_proves_nothing_is_dropped_and_counted(
    listening: Listening, line: bytes, words: str
) -> None:
    reader, writer = await listening.open()
    assert isinstance(decode(await reader.readline()), Challenge)
    writer.write(line)
    rest = await asyncio.wait_for(reader.read(), 20)
    assert listening.server.dropped == 1
    assert any(words in text for text in listening.said)
    assert b"Welcome" not in rest
    assert not list(listening.server.core.members)


async def test_a_half_open_connection_times_out(listening: Listening) -> None:
    reader, _ = await listening.open()
    await reader.readline()
    assert await asyncio.wait_for(reader.read(), 20) == b""
    assert listening.server.dropped == 1


async def test_another_protocol_is_told_so(listening: Listening) -> None:
    reader, writer = await listening.open()
    await reader.readline()
    writer.write(b'{"op":"Hello","protocol":2,"new":"field"}\n')
    rejected = json.loads(await asyncio.wait_for(reader.readline(), 20))
    assert rejected["op"] == "Reject"
    assert f"protocol {PROTOCOL}, this launcher 2" in rejected["message"]


async def test_a_silent_launcher_is_lost(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    patience(monkeypatch, 0.5)
    reader = await listening.join()
    await asyncio.wait_for(reader.read(), 20)
    assert any("silent" in text for text in listening.said)


async def test_a_coordinator_that_goes_alone_lets_the_others_go_at_once(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FINISH_SECONDS", 3600.0)
    patience(monkeypatch, 3600.0)
    reader = await listening.join()
    await asyncio.wait_for(listening.server.close(), 20)
    await asyncio.wait_for(reader.read(), 20)


async def test_the_coordinator_of_a_job_that_is_over_stays_until_its_launchers_have_gone(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FINISH_SECONDS", 3600.0)
    patience(monkeypatch, 3600.0)
    listening.server.stop_job()
    reader = await listening.join()
    closing = asyncio.create_task(listening.server.close())
    async with asyncio.timeout(20):
        assert isinstance(decode(await reader.readline()), Finish)
        assert isinstance(decode(await reader.readline()), Beat)
        assert not closing.done()
        listening.writers[-1].close()
        await closing


async def test_a_coordinator_without_the_token_is_not_obeyed() -> None:
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(encode(Challenge(protocol=PROTOCOL, nonce="n")))
        await reader.readline()
        writer.write(
            b'{"op":"Welcome","proof":"0","term":9}\n{"op":"Stop","term":9,"generation":1,"why":""}\n'
        )
        await reader.read()
        writer.close()

    obeyed: list[object] = []
    refused: asyncio.Queue[str] = asyncio.Queue()
    server = await asyncio.start_server(impostor, "127.0.0.1", 0)
    link = Link(
        host="127.0.0.1",
        port=server.sockets[0].getsockname()[1],
        token=TOKEN,
        hello=lambda nonce, proof: hello(0),
        on_message=obeyed.append,
        on_state=lambda up: None,
        on_refused=refused.put_nowait,
        beat=Beat,
        say=lambda text: None,
    )
    task = asyncio.create_task(link.run())
    assert "does not know this job's token" in await asyncio.wait_for(refused.get(), 20)
    assert not obeyed
    task.cancel()
    await asyncio.wait([task])
    server.close()


async def test_a_peer_that_sends_more_than_is_read_is_cut_off() -> None:
    opened: asyncio.Queue[Lines] = asyncio.Queue()

    def accept() -> Lines:
        lines = Lines()
        opened.put_nowait(lines)
        return lines

    server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    lines = await opened.get()
    writer.write(b"{}\n" * 5000)
    with pytest.raises(Lost, match="more than"):  # noqa: PT012  (some lines come through before the limit)
        while True:
            await asyncio.wait_for(lines.receive(), 20)
    writer.close()
    await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])
    server.close()
