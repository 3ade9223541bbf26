"""How a launcher goes: told to by its pod or a terminal, released by the coordinator, or left alone by it.

Why apart: every way out must lead to one exit code and one termination message, within the grace period.
Must not: end workers otherwise than through the foreman, or judge a failure.

Signals: SIGTERM means that this pod must go (`Leave`); SIGINT, from a terminal, that the whole job stops. Either may
come at any time and again: before the first connection it ends the launcher at once, later it waits for the
coordinator's Finish, never longer than the grace period.
"""

import asyncio
from collections.abc import Callable, Coroutine

from ddpjob_api.exits import Exit
from ddpjob_api.fields import Json
from ddpjob_api.messages import PROTOCOL, Leave
from ddpjob_api.report import Failure, Outcome, TerminationMessage
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.foreman import Foreman
from ddpjob_trainer.launcher.link import Link
from ddpjob_trainer.launcher.memory import Memory
from ddpjob_trainer.launcher.output import Sink
from ddpjob_trainer.launcher.progress import Gauge
from ddpjob_trainer.launcher.termination import clip
from ddpjob_trainer.launcher.timing import LEAVE_FRACTION, LOST_GRACE_SECONDS


class Departure:
    """Waits for a reason to go, and has the last words."""

    def __init__(
        self,
        config: Config,
        memory: Memory,
        gauge: Gauge,
        *,
        foreman: Foreman,
        link: Link,
        sink: Sink,
        keep: Callable[[Coroutine[None, None, None]], object],
        before_last_words: Callable[[], None],
    ) -> None:
        """Must be made in a running loop; `keep` runs a coroutine beside and takes its errors."""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[TerminationMessage] = self._loop.create_future()
        self._config = config
        self._memory = memory
        self._gauge = gauge
        self._foreman = foreman
        self._link = link
        self._sink = sink
        self._keep = keep
        self._before_last_words = before_last_words
        self._whole_job = False
        """Its leaving stops the whole job."""
        self._refusal = ""
        self._changed_at = self._loop.time()
        """When the connection came or went."""

    # told to

    def leave(self, whole_job: bool = False) -> None:
        """Go, for the pod must; `whole_job`: the whole job stops."""
        memory = self._memory
        if memory.leaving and (self._whole_job or not whole_job):
            return
        self._whole_job = self._whole_job or whole_job
        if not memory.leaving:
            memory.leaving = True
            self._sink.say("told to stop" if whole_job else "told to leave")
            seconds = self._config.grace_seconds * LEAVE_FRACTION
            self._loop.call_later(seconds, lambda: self._keep(self.leave_alone(at_once=True)))
        if self._link.up:
            self._link.send(Leave(generation=memory.generation, whole_job=whole_job))
        else:
            self._keep(self.leave_alone())

    async def leave_alone(self, *, at_once: bool = False) -> None:
        """Go without the coordinator's word: there is none, or there is no more time."""
        if self.over.done():
            return
        await self._foreman.end(at_once=at_once)
        why = "the grace period was over" if at_once else "there is no coordinator"
        self.end(Outcome.STOPPED, Exit.STOPPED, f"stopped on request; {why}")

    # left alone

    def link_changed(self, up: bool) -> None:
        self._changed_at = self._loop.time()
        if up:
            self._refusal = ""
        else:
            self._loop.call_later(LOST_GRACE_SECONDS, self.still_alone, self._changed_at)

    def still_alone(self, since: float) -> None:
        """The coordinator did not come back: nobody can tell these workers of a lost peer."""
        if self._link.up or self._changed_at != since or self.over.done():
            return
        crew = self._foreman.crew
        if self._memory.leaving:
            self._keep(self.leave_alone())
        elif crew is not None and not crew.stopping and not self._memory.done:
            self._sink.say("the coordinator is gone: the workers are stopped until there is another")
            self._keep(self._foreman.end())

    def refused(self, why: str) -> None:
        self._refusal = why

    def give_up(self) -> None:
        """Outside of a cluster nobody replaces a coordinator that does not come."""
        seconds = self._config.spec.recovery.rendezvous_timeout.total_seconds()
        waited = self._loop.time() - self._changed_at
        if self._config.on_cluster or self._link.up or waited < seconds + LOST_GRACE_SECONDS:
            return
        at = f"{self._config.coordinator_host}:{self._config.coordinator_port}"
        reason = f"; it refused: {self._refusal}" if self._refusal else ""
        self.end(
            Outcome.FAILED,
            Exit.PEER_LOST,
            f"no coordinator at {at} took this launcher for {waited:.0f} s{reason}",
        )

    # the last words

    def end(
        self,
        outcome: Outcome,
        code: int,
        message: str,
        *,
        failure: Failure | None = None,
        result: Json | None = None,
    ) -> None:
        """Exit, once, with these words."""
        if self.over.done():
            return
        self._before_last_words()
        self._sink.say(message)
        memory, gauge = self._memory, self._gauge
        self.over.set_result(
            TerminationMessage(
                protocol=PROTOCOL,
                outcome=outcome,
                exit_code=int(code),
                node=self._config.node,
                term=memory.term,
                generation=memory.generation,
                restarts=memory.restarts,
                disruptions=memory.disruptions,
                message=clip(message, 1024),
                failure=failure,
                progress=gauge.progress,
                result=result or {},
                ddp=gauge.ddp,
                spent=memory.spent,
                efficiency=gauge.efficiency,
            )
        )

    def fail(self, error: BaseException) -> None:
        """Something here is wrong that no user did."""
        if not self.over.done():
            self.over.set_exception(error)
