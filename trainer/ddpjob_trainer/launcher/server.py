"""The coordinator on its socket: who may speak to it, its clock, and the execution of its actions.

Why apart: proofs, limits and dead peers are dealt with here, so that the state machine only meets launchers of this
job. A peer that cannot prove itself is dropped and counted. Must not: decide anything about the job.
"""

import asyncio
import hmac
import itertools
import os
from collections.abc import Callable, Coroutine

from ddpjob_api.messages import BEAT_SECONDS, PROTOCOL, Challenge, Hello, Reject, Welcome, prove
from ddpjob_trainer.launcher.actions import Action, Admit, Close, Refuse, Say, Send
from ddpjob_trainer.launcher.coordinator import Coordinator
from ddpjob_trainer.launcher.timing import AUTHENTICATION_SECONDS, FINISH_SECONDS, TICK_SECONDS
from ddpjob_trainer.launcher.wire import Lines, Lost, foreign_protocol, other_protocol, read

MAX_STRANGERS = 64
"""Connections, beside one per node, that may be open without proof."""


class Server:
    """Listens for launchers and keeps the coordinator going."""

    def __init__(
        self,
        core: Coordinator,
        token: bytes,
        *,
        say: Callable[[str], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        """Nothing is opened yet; `on_bug` gets what no peer should be able to cause."""
        self.core = core
        self.dropped = 0
        """Peers that did not prove themselves."""
        self._token = token
        self._say = say
        self._on_bug = on_bug
        self._links = itertools.count(1)
        self._peers: dict[int, Lines] = {}
        self._hellos: dict[int, Hello] = {}
        self._nonces: dict[int, str] = {}
        self._strangers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self, host: str | None, port: int) -> None:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)
        self._ticking = self._keep(self._clock())

    async def close(self) -> None:
        """Stay until every launcher has gone (bounded), if the job is over, then stop listening.

        If it is not, the others wait for the next coordinator, and must not obey one that can do nothing more meanwhile.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + FINISH_SECONDS
        while self.core.final is not None and self._tasks - {self._ticking} and loop.time() < end:
            await asyncio.wait(self._tasks - {self._ticking}, timeout=end - loop.time())
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for peer in self._peers.values():
            peer.close()

    def stop_job(self) -> None:
        self._do(self.core.stop_job(self._now()))

    def _accept(self) -> Lines:
        lines = Lines()
        self._keep(self._serve(lines))
        return lines

    async def _serve(self, lines: Lines) -> None:
        """One connection, from its challenge to its end."""
        await lines.connected.wait()
        if self._strangers >= MAX_STRANGERS + self.core.settings.nodes:
            self.dropped += 1
            lines.abort("too many connections without proof")
            return
        link = next(self._links)
        self._strangers += 1
        try:
            hello = await asyncio.wait_for(self._meet(link, lines), AUTHENTICATION_SECONDS)
        except (Lost, TimeoutError) as error:
            self.dropped += 1
            if self.dropped <= 16 or self.dropped % 1000 == 0:
                why = "no proof in time" if isinstance(error, TimeoutError) else str(error)
                self._say(f"connection from {lines.peer} dropped: {why} ({self.dropped} so far)")
            lines.close()
            return
        finally:
            self._strangers -= 1
        self._peers[link] = lines
        self._hellos[link] = hello
        self._do(self.core.hello(self._now(), link, hello))
        why = "closed"
        try:
            while True:
                message = read(await lines.receive())
                self._do(self.core.received(self._now(), link, message))
        except Lost as error:
            why = str(error)
        finally:
            self._peers.pop(link, None)
            self._nonces.pop(link, None)
            self._hellos.pop(link, None)
            lines.close()
        if self.core.final is None and why != "closed by the other end":
            self._say(f"node {hello.node}: {why}")
        self._do(self.core.closed(self._now(), link))

    async def _meet(self, link: int, lines: Lines) -> Hello:
        """Challenge and proof.

        Raises:
            Lost: the peer is no launcher of this job; where it can read it, it was told why.
        """
        nonce = os.urandom(16).hex()
        self._nonces[link] = nonce
        lines.send(Challenge(protocol=PROTOCOL, nonce=nonce))
        line = await lines.receive(AUTHENTICATION_SECONDS)
        other = foreign_protocol(line)
        if other is not None and other != PROTOCOL:
            # No proof is asked for: a version is no secret, and its proof may be another.
            lines.send(Reject(message=f"the coordinator speaks protocol {PROTOCOL}, this launcher {other}"))
            raise Lost(other_protocol(other))
        hello = read(line)
        if not isinstance(hello, Hello):
            raise Lost(f"it began with {type(hello).__name__}")
        if not hmac.compare_digest(
            hello.proof.encode(), prove(self._token, "launcher", nonce, hello.nonce).encode()
        ):
            lines.send(Reject(message="the token is not this job's; mount the Secret of this DDPJob"))
            raise Lost(f"as node {hello.node} without the job's token")
        return hello

    async def _clock(self) -> None:
        loop = asyncio.get_running_loop()
        beat_at = loop.time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._do(self.core.tick(loop.time()))
            if loop.time() >= beat_at:
                beat_at = loop.time() + BEAT_SECONDS
                beat = self.core.beat()
                for peer in list(self._peers.values()):
                    peer.send(beat)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Say(text):
                    self._say(text)
                case Send(link, message):
                    if link in self._peers:
                        self._peers[link].send(message)
                case Admit(link):
                    if link in self._peers:
                        proof = prove(
                            self._token, "coordinator", self._hellos[link].nonce, self._nonces[link]
                        )
                        self._peers[link].send(Welcome(proof=proof, term=self.core.term))
                case Refuse(link, text, replaced):
                    self._say(f"refused: {text}")
                    if link in self._peers:
                        self._peers[link].send(Reject(message=text[:512], replaced=replaced))
                        self._peers[link].close()
                case Close(link):
                    if link in self._peers:
                        self._peers[link].close()

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_bug(error)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
