"""The launcher of one pod: obeys the coordinator with one crew of workers, and says how it ended.

Why apart: this is the place where connection, processes, pages and signals meet; each of them is in its own module.
Must not: decide about the job (`coordinator.py`), or start workers that no coordinator asked for.

Signals: SIGTERM means that this pod must go (`Leave`); SIGINT, from a terminal, that the whole job stops. Either may
come at any time and again: before the first connection it ends the launcher at once, later it waits for the
coordinator's Finish, never longer than the grace period.
"""

import asyncio
import os
import signal
from collections.abc import Coroutine
from datetime import UTC, datetime

from ddpjob_api.exits import Exit
from ddpjob_api.fields import Json
from ddpjob_api.messages import (
    BEAT_SECONDS,
    PROTOCOL,
    Beat,
    Done,
    Failed,
    Finish,
    Hello,
    Leave,
    Message,
    Pause,
    Paused,
    Reject,
    Start,
    Stop,
    StopAt,
    Stopped,
    Welcome,
    status_key,
)
from ddpjob_api.report import Cause, Failure, Outcome, TerminationMessage, WorkerExit
from ddpjob_trainer.launcher import exposition, status, termination, words
from ddpjob_trainer.launcher.children import Children
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.coordinator import Coordinator, Settings
from ddpjob_trainer.launcher.crew import Crew, Unkillable
from ddpjob_trainer.launcher.environment import term_file
from ddpjob_trainer.launcher.halt import failure_of
from ddpjob_trainer.launcher.http import HttpServer, Site
from ddpjob_trainer.launcher.ledger import Ledger
from ddpjob_trainer.launcher.link import Link
from ddpjob_trainer.launcher.oom import OomCounter
from ddpjob_trainer.launcher.output import Sink
from ddpjob_trainer.launcher.progress import Gauge
from ddpjob_trainer.launcher.rendezvous import free_port
from ddpjob_trainer.launcher.server import Server
from ddpjob_trainer.launcher.timing import (
    KILL_FRACTION,
    LEAVE_FRACTION,
    LOST_GRACE_SECONDS,
    PAUSE_SETTLE_SECONDS,
)


class CannotStart(OSError):
    """A port or folder of this launcher cannot be used; the message says which and what to change."""


class Launcher:
    """One launcher, from its start to its exit code."""

    def __init__(self, config: Config, sink: Sink) -> None:
        # configuration
        self.config = config
        self.sink = sink
        # what it has been told
        self.term = 0
        self.generation = 0
        self.restarts = config.restarts
        self.disruptions = config.disruptions
        self.judged = 0
        # what runs
        self.crew: Crew | None = None
        self.done = False
        """All workers of `generation` ended with 0."""
        self.last_failure: Failure | None = None
        self.leaving = False
        self.whole_job = False
        self.stop_by: float | None = None
        """Until when workers of a soft stop may live."""
        self.refusal = ""
        self.connected_at: float
        # parts
        self.children = Children()
        self.oom = OomCounter()
        self.gauge = Gauge(config.plan.nodes * config.processes)
        self.totals = exposition.Totals()
        self.server: Server | None = None
        self.link = Link(
            host=config.coordinator_host,
            port=config.coordinator_port,
            token=config.token,
            hello=self.hello,
            on_message=self.obey,
            on_state=self.link_changed,
            on_refused=self.refused,
            beat=self.beat,
            say=sink.say,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._end: asyncio.Future[TerminationMessage]

    async def run(self) -> TerminationMessage:
        """Work until the end; the message has the exit code.

        Raises:
            CannotStart: a port is not free, or the run folder cannot be made.
        """
        loop = asyncio.get_running_loop()
        self._end = loop.create_future()
        self.connected_at = loop.time()
        try:
            self.config.run_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(f"the run folder (DDPJOB_RUN_DIR) cannot be made: {error}") from error
        if self.config.checkpoint_dir is not None:
            try:
                self.config.checkpoint_dir.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                self.sink.say(
                    f"checkpoints cannot be saved: their folder cannot be made: {error}; training goes on"
                )
        self.children.adopt(loop)
        loop.add_signal_handler(signal.SIGTERM, self.leave)
        loop.add_signal_handler(signal.SIGINT, self.leave, True)
        http = HttpServer(self.site())
        ports = self.config.spec.ports
        await listen(http.start(self.config.bind_host, ports.metrics), "metrics", ports.metrics)
        if self.config.leads:
            self.server = Server(self.coordinator(), self.config.token, say=self.sink.say, on_bug=self.fail)
            port = self.config.coordinator_port
            await listen(self.server.start(self.config.bind_host, port), "coordinator", port)
        self.keep(self.watch())
        link = self.keep(self.link.run())
        try:
            return await self._end
        finally:
            link.cancel()
            await asyncio.wait([link])
            if self.crew is not None:
                await self.crew.close()
            if self.server is not None:
                await self.server.close()
            http.close()

    # what the coordinator says

    def obey(self, message: Message) -> None:
        """Do as told, by the highest (term, generation) only."""
        if isinstance(message, Welcome | Start | Stop | Pause | StopAt | Finish):
            if message.term < self.term:
                self.sink.say(
                    f"{type(message).__name__} of term {message.term} ignored: term {self.term} is obeyed"
                )
                return
            self.raise_term(message.term)
        match message:
            case Welcome():
                self.repeat_failures()
            case Beat():
                self.counted(message)
            case Start():
                self.start(message)
            case Pause():
                self.pause(message)
            case StopAt():
                if self.crew is not None and self.crew.generation == message.generation:
                    self.crew.stop_at(message.step)
            case Stop():
                self.stop(message)
            case Finish():
                self.keep(self.finish(message))
            case Reject():
                if message.replaced:
                    self.keep(self.give_way(message.message))
            case _:
                pass

    def repeat_failures(self) -> None:
        """Say again what may have been lost with the last connection; the coordinator hears each rank once."""
        crew = self.crew
        failed = tuple(item for item in crew.exits if crew.failed(item)) if crew is not None else ()
        if crew is not None and failed and not crew.stopping:
            self.link.send(Failed(generation=crew.generation, exits=failed))

    def raise_term(self, term: int) -> None:
        if term <= self.term:
            return
        self.term = term
        file = term_file(self.config.run_dir)
        fresh = file.with_name(f"term.{os.getpid()}")
        fresh.write_text(str(term))
        fresh.replace(file)

    def counted(self, beat: Beat) -> None:
        self.restarts = max(self.restarts, beat.restarts)
        self.disruptions = max(self.disruptions, beat.disruptions)
        self.judged = max(self.judged, beat.judged)
        if self.last_failure is not None and self.last_failure.generation <= self.judged:
            self.last_failure = None

    def start(self, message: Start) -> None:
        """Begin a generation."""
        if message.generation <= self.generation or self.crew is not None:
            self.sink.say(f"Start of generation {message.generation} ignored: at {self.generation}")
            return
        self.generation = message.generation
        self.restarts, self.disruptions = message.restarts, message.disruptions
        self.done, self.last_failure, self.stop_by = False, None, None
        self.gauge.begin()
        self.crew = Crew(
            self.config,
            message,
            children=self.children,
            sink=self.sink,
            oom=self.oom,
            on_exit=self.worker_ended,
            keep=self.keep,
        )
        self.crew.begin(os.environ)

    def pause(self, message: Pause) -> None:
        """Hold the ranks at their next boundary, and say which they have reached."""
        crew = self.crew
        if crew is None or crew.generation != message.generation or crew.ended.is_set():
            return
        loop = asyncio.get_running_loop()
        self.stop_by = loop.time() + self.config.grace_seconds * KILL_FRACTION
        crew.pause()
        loop.call_later(PAUSE_SETTLE_SECONDS, self.paused, crew)

    def paused(self, crew: Crew) -> None:
        if crew is self.crew:
            self.link.send(Paused(generation=crew.generation, boundary=crew.boundary))

    def stop(self, message: Stop) -> None:
        crew = self.crew
        if crew is None or crew.generation != message.generation:
            self.link.send(Stopped(generation=message.generation, checkpoints=self.checkpoints()))
        elif not crew.stopping and not crew.ended.is_set():
            self.keep(self.end_crew(crew, stacks=self.stop_by is None))
        elif not crew.stopping:
            self.keep(self.crew_over(crew))

    async def finish(self, message: Finish) -> None:
        self.restarts, self.disruptions = message.restarts, message.disruptions
        if self.crew is not None:
            await self.end_crew(self.crew, stacks=False)
        self.end(
            message.outcome,
            message.exit_code,
            words.outcome(message, self.config.plan.nodes),
            failure=message.failure,
            result=message.result,
        )

    async def give_way(self, why: str) -> None:
        """Another pod has this index."""
        if self.crew is not None:
            await self.end_crew(self.crew, stacks=False)
        self.end(Outcome.STOPPED, Exit.STOPPED, why)

    # what the workers do

    def worker_ended(self, crew: Crew, item: WorkerExit) -> None:
        if crew is not self.crew or crew.stopping:
            return
        if crew.failed(item):
            if item.cause is Cause.OWN and self.last_failure is None:
                self.last_failure = failure_of(item, self.me(), generation=crew.generation, at=wall())
            self.link.send(Failed(generation=crew.generation, exits=(item,)))
        elif crew.succeeded or crew.stopped_on_request:
            self.keep(self.crew_over(crew))

    async def crew_over(self, crew: Crew) -> None:
        """All workers have ended by themselves."""
        if crew.stopping:
            return
        crew.stopping = True
        if crew.succeeded:
            await crew.drain()  # what a worker left running may still have something to say
        await self.put_away(crew)
        if crew.succeeded:
            self.done = True
            self.link.send(Done(generation=crew.generation, result=self.result()))
        else:
            self.report_stopped(crew)

    async def end_crew(self, crew: Crew, *, stacks: bool, at_once: bool = False) -> None:
        """End the workers, as far as they live, and say that none does any more."""
        seconds = self.config.grace_seconds
        if self.stop_by is not None:
            seconds = max(self.stop_by - asyncio.get_running_loop().time(), 1.0)
        try:
            await crew.stop(0.0 if at_once else seconds, stacks=stacks)
        except Unkillable as error:
            self.end(Outcome.FAILED, Exit.PEER_LOST, str(error))
            return
        if self.crew is crew:
            await self.put_away(crew)
            self.report_stopped(crew)

    def report_stopped(self, crew: Crew) -> None:
        """No worker lives any more; those that ended as they were asked to are no news."""
        exits = tuple(item for item in crew.exits if crew.failed(item))
        self.link.send(Stopped(generation=crew.generation, exits=exits, checkpoints=self.checkpoints()))

    async def put_away(self, crew: Crew) -> None:
        """Keep what the pages of an ended crew say, and leave nothing of it behind."""
        await crew.close()
        if self.crew is not crew:
            return
        self.look()
        for worker in crew.workers:
            self.totals.add(worker.rank, worker.page)
        self.crew = None
        crew.discard()

    # going

    def leave(self, whole_job: bool = False) -> None:
        """Go, for the pod must; `whole_job`: the whole job stops."""
        if self.leaving and (self.whole_job or not whole_job):
            return
        self.whole_job = self.whole_job or whole_job
        loop = asyncio.get_running_loop()
        if not self.leaving:
            self.leaving = True
            self.sink.say("told to stop" if whole_job else "told to leave")
            seconds = self.config.grace_seconds * LEAVE_FRACTION
            loop.call_later(seconds, lambda: self.keep(self.leave_alone(at_once=True)))
        if self.link.up:
            self.link.send(Leave(generation=self.generation, whole_job=whole_job))
        else:
            self.keep(self.leave_alone())

    async def leave_alone(self, *, at_once: bool = False) -> None:
        """Go without the coordinator's word: there is none, or there is no more time."""
        if self._end.done():
            return
        if self.crew is not None:
            await self.end_crew(self.crew, stacks=False, at_once=at_once)
        why = "the grace period was over" if at_once else "there is no coordinator"
        self.end(Outcome.STOPPED, Exit.STOPPED, f"stopped on request; {why}")

    def link_changed(self, up: bool) -> None:
        loop = asyncio.get_running_loop()
        self.connected_at = loop.time()
        if up:
            self.refusal = ""
        else:
            loop.call_later(LOST_GRACE_SECONDS, self.still_alone, self.connected_at)

    def still_alone(self, since: float) -> None:
        """The coordinator did not come back: nobody can tell these workers of a lost peer."""
        if self.link.up or self.connected_at != since or self._end.done():
            return
        if self.leaving:
            self.keep(self.leave_alone())
        elif self.crew is not None and not self.crew.stopping and not self.done:
            self.sink.say("the coordinator is gone: the workers are stopped until there is another")
            self.keep(self.end_crew(self.crew, stacks=False))

    def refused(self, why: str) -> None:
        self.refusal = why

    def give_up(self) -> None:
        """Outside of a cluster nobody replaces a coordinator that does not come."""
        seconds = self.config.spec.recovery.rendezvous_timeout.total_seconds()
        waited = asyncio.get_running_loop().time() - self.connected_at
        if self.config.on_cluster or self.link.up or waited < seconds + LOST_GRACE_SECONDS:
            return
        at = f"{self.config.coordinator_host}:{self.config.coordinator_port}"
        reason = f"; it refused: {self.refusal}" if self.refusal else ""
        self.end(
            Outcome.FAILED,
            Exit.PEER_LOST,
            f"no coordinator at {at} took this launcher for {waited:.0f} s{reason}",
        )

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
        if self._end.done():
            return
        self.sink.say(message)
        self._end.set_result(
            TerminationMessage(
                protocol=PROTOCOL,
                outcome=outcome,
                exit_code=int(code),
                node=self.config.node,
                term=self.term,
                generation=self.generation,
                restarts=self.restarts,
                disruptions=self.disruptions,
                message=termination.clip(message, 1024),
                failure=failure,
                progress=self.gauge.progress,
                result=result or {},
                ddp=self.gauge.ddp,
            )
        )

    def fail(self, error: BaseException) -> None:
        """Something here is wrong that no user did."""
        if not self._end.done():
            self._end.set_exception(error)

    # what it says of itself

    def me(self) -> Hello:
        return self.hello("", "")

    def hello(self, nonce: str, proof: str) -> Hello:
        config = self.config
        return Hello(
            protocol=PROTOCOL,
            nonce=nonce,
            proof=proof,
            node=config.node,
            incarnation=config.incarnation,
            pod=config.pod_name,
            pod_uid=config.pod_uid,
            host_node=config.host_node,
            address=config.advertise_host,
            term=self.term,
            generation=self.generation,
            running=self.crew is not None,
            restarts=self.restarts,
            disruptions=self.disruptions,
            last_failure=self.last_failure,
            checkpoints=self.checkpoints(),
            done=self.done,
            leaving=self.leaving,
        )

    def beat(self) -> Beat:
        return Beat(generation=self.generation, steps=self.crew.steps if self.crew is not None else ())

    def checkpoints(self) -> tuple[int, ...]:
        """Steps of the complete checkpoints here."""
        if self.config.checkpoint_dir is None:
            return ()
        from ddpjob_trainer.checkpoints import complete_steps

        return complete_steps(self.config.checkpoint_dir)[-1024:]

    def result(self) -> Json:
        return self.gauge.result if self.config.leads else {}

    def look(self) -> None:
        """Read how far the first rank here is."""
        if self.crew is not None and self.crew.workers:
            self.gauge.read(self.crew.workers[0].page, asyncio.get_running_loop().time())

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.look()
            self.give_up()

    # the parts that others see

    def site(self) -> Site:
        leads = self.config.leads
        return Site(
            metrics=self.metrics,
            ready=lambda: self.done or (self.crew is not None and self.crew.joined),
            key=status_key(self.config.token),
            status=self.report if leads else None,
            stop=self.stop_job if leads else None,
        )

    def metrics(self) -> str:
        job = exposition.Job(
            restarts=self.restarts,
            disruptions=self.disruptions,
            generation=self.generation,
            backend=self.config.plan.backend.value,
            world_size=self.config.plan.world_size,
        )
        workers = self.crew.workers if self.crew is not None else []
        return self.totals.render({worker.rank: worker.page for worker in workers}, job)

    def report(self) -> bytes:
        assert self.server is not None
        self.look()
        return status.encode(self.server.core.report(), self.gauge)

    def stop_job(self) -> None:
        assert self.server is not None
        self.server.stop_job()

    def coordinator(self) -> Coordinator:
        config, recovery = self.config, self.config.spec.recovery
        settings = Settings(
            name=config.name,
            nodes=config.plan.nodes,
            processes_per_node=config.plan.processes_per_node,
            incarnation=config.incarnation,
            grace_seconds=config.grace_seconds,
            rendezvous_seconds=recovery.rendezvous_timeout.total_seconds(),
            decides_rendezvous=not config.on_cluster,
            master_address=config.advertise_host,
            port=lambda generation: free_port(config.bind_host, config.spec.ports.rendezvous, generation),
            wall=wall,
        )
        ledger = Ledger(
            max_restarts=recovery.max_restarts,
            max_disruptions=recovery.max_disruptions,
            restarts=config.restarts,
            disruptions=config.disruptions,
        )
        return Coordinator(settings=settings, ledger=ledger, newest=config.generation)

    def keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run beside; an error that nobody expected ends the launcher."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_over)
        return task

    def _task_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.fail(error)


async def listen(starting: Coroutine[None, None, None], name: str, port: int) -> None:
    try:
        await starting
    except OSError as error:
        raise CannotStart(
            f"port {port} (spec.ports.{name}) cannot be listened on: {error.strerror or error}; "
            "end what uses it, or choose another"
        ) from error


def wall() -> str:
    """Now, RFC 3339 in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
