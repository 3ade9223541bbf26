"""A launcher's connection to its coordinator: finding it, proving each other, staying in touch, coming back.

Why apart: what is said (`node.py`) does not depend on how often the line broke meanwhile. Must not: obey anything, or
say anything before the coordinator has proved that it knows the token.
"""

import asyncio
import contextlib
import hmac
import os
from collections.abc import Callable

from ddpjob_api.messages import (
    BEAT_SECONDS,
    PROTOCOL,
    Beat,
    Challenge,
    Hello,
    Message,
    Reject,
    Welcome,
    prove,
)
from ddpjob_trainer.launcher.timing import (
    ALONE_SECONDS,
    AUTHENTICATION_SECONDS,
    CONNECT_SECONDS,
    RECONNECT_FIRST_SECONDS,
    RECONNECT_MAX_SECONDS,
    REFUSED_RETRY_SECONDS,
    REMIND_SECONDS,
)
from ddpjob_trainer.launcher.wire import Lines, Lost, other_protocol, read


class Refused(ConnectionError):
    """The coordinator does not take this launcher, or is not this job's; the message is its words or says why."""


class Link:
    """Connects again and again until it is closed."""

    def __init__(
        self,
        *,
        host: str,
        port: int,
        token: bytes,
        hello: Callable[[str, str], Hello],
        on_message: Callable[[Message], None],
        on_state: Callable[[bool], None],
        on_refused: Callable[[str], None],
        beat: Callable[[], Beat],
        say: Callable[[str], None],
    ) -> None:
        """Nothing is opened yet.

        Args:
            hello: builds the Hello from nonce and proof.
            on_message: each message, from a coordinator that proved itself; the Welcome first.
            on_state: whether the connection is up.
            on_refused: each refusal, in words.
        """
        self._host = host
        self._port = port
        self._token = token
        self._hello = hello
        self._on_message = on_message
        self._on_state = on_state
        self._on_refused = on_refused
        self._beat = beat
        self._say = say
        self._lines: Lines | None = None
        self._announced: str | None = None
        """Where a coordinator said that it is; the name is the fallback."""
        self._term = 0
        """Of the newest coordinator that proved itself."""
        self._news = asyncio.Event()
        self._tries = 0
        self._said_at = float("-inf")
        self._said = ""

    @property
    def up(self) -> bool:
        return self._lines is not None

    def send(self, message: Message) -> None:
        """Send if the connection is up; what matters is repeated by the next Hello."""
        if self._lines is not None:
            self._lines.send(message)

    def announced(self, host: str, term: int) -> None:
        """A coordinator of this job says where it is: look there first, and now if there is none or an older one."""
        if term < self._term:
            return
        if term > self._term and self._lines is not None:
            self._lines.abort(f"a coordinator of term {term} has taken its place")
        if host != self._announced or not self.up:
            self._announced = host
            self._tries = 0
            self._news.set()

    async def run(self) -> None:
        """Stay connected until cancelled."""
        wait = RECONNECT_FIRST_SECONDS
        loop = asyncio.get_running_loop()
        alone_since = loop.time()
        me = asyncio.current_task()
        # A cancellation that meets a connection's own end is lost in wait_for (Python 3.11), but not forgotten.
        while me is None or not me.cancelling():
            try:
                await self._session()
                wait, alone_since, self._tries = RECONNECT_FIRST_SECONDS, loop.time(), 0
            except Refused as refused:
                self._once(f"refused by the coordinator: {refused}")
                self._on_refused(str(refused))
                wait = REFUSED_RETRY_SECONDS
            except (OSError, TimeoutError) as error:
                reason = str(error) or "no answer"
                if loop.time() - alone_since >= ALONE_SECONDS:
                    self._once(f"no coordinator at {self._host}:{self._port}: {reason}")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait * jitter())
                wait = RECONNECT_FIRST_SECONDS
            wait = min(wait * 2, RECONNECT_MAX_SECONDS)

    async def _session(self) -> None:
        """One connection, to its end."""
        lines = await self._connect()
        try:
            welcome = await self._meet(lines)
            self._lines = lines
            self._term = max(self._term, welcome.term)
            self._said = ""
            self._on_state(True)
            self._deliver(welcome)
            beats = asyncio.ensure_future(self._beats(lines))
            try:
                while True:
                    self._deliver(read(await lines.receive()))
            finally:
                beats.cancel()
        except Lost as lost:
            if not self.up:
                raise
            self._say(f"connection to the coordinator lost: {lost}")
        finally:
            lines.close()
            if self.up:
                self._lines = None
                self._on_state(False)

    async def _connect(self) -> Lines:
        """A connection to where the coordinator said it is, or to its name, in turn.

        Raises:
            OSError, TimeoutError: nobody is there, or another address was announced meanwhile.
        """
        hosts = [self._host] if self._announced is None else [self._announced, self._host]
        host = hosts[self._tries % len(hosts)]
        self._tries += 1
        self._news.clear()
        loop = asyncio.get_running_loop()
        connecting = asyncio.ensure_future(loop.create_connection(Lines, host, self._port))
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait(
                {connecting, news}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if connecting.done():
                return connecting.result()[1]
            raise Lost("announced elsewhere" if self._news.is_set() else "no answer")
        finally:
            for task in (connecting, news):
                task.cancel()

    async def _meet(self, lines: Lines) -> Welcome:
        """Challenge and proof, both ways.

        Raises:
            Refused: not by this coordinator.
            Lost: it went away, or speaks otherwise.
        """
        challenge = read(await lines.receive(AUTHENTICATION_SECONDS))
        if not isinstance(challenge, Challenge):
            raise Refused(f"it began with {type(challenge).__name__}: no coordinator")
        if challenge.protocol != PROTOCOL:
            raise Refused(other_protocol(challenge.protocol))
        nonce = os.urandom(16).hex()
        lines.send(self._hello(nonce, prove(self._token, "launcher", challenge.nonce, nonce)))
        answer = read(await lines.receive(AUTHENTICATION_SECONDS))
        if isinstance(answer, Reject):
            raise Refused(answer.message)
        if not isinstance(answer, Welcome):
            raise Refused(f"it answered with {type(answer).__name__}: no coordinator")
        expected = prove(self._token, "coordinator", nonce, challenge.nonce)
        if not hmac.compare_digest(answer.proof.encode(), expected.encode()):
            raise Refused("it does not know this job's token, so it is not obeyed")
        return answer

    def _deliver(self, message: Message) -> None:
        """Hand a message over; what fails there is not the network's error.

        Raises:
            RuntimeError: it could not be obeyed.
        """
        try:
            self._on_message(message)
        except OSError as error:
            raise RuntimeError(f"{type(message).__name__} could not be obeyed: {error}") from error

    async def _beats(self, lines: Lines) -> None:
        while True:
            lines.send(self._beat())
            await asyncio.sleep(BEAT_SECONDS)

    def _once(self, text: str) -> None:
        """Log a state that lasts, now and then."""
        now = asyncio.get_running_loop().time()
        if text != self._said or now - self._said_at >= REMIND_SECONDS:
            self._said, self._said_at = text, now
            self._say(text)


def jitter() -> float:
    """0.8 to 1.2, so that a thousand launchers do not come back in one instant (`random` costs its import)."""
    return 0.8 + 0.4 * os.urandom(1)[0] / 255
