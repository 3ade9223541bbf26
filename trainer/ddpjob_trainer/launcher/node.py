"""The launcher of one pod: obeys the coordinator, goes when its pod must, and says how it ended.

Why apart: this is the place where connection, workers and signals meet; each of them is in its own module.
Must not: decide about the job (`coordinator.py`), or start workers that no coordinator asked for.

How and when it goes is in `departure.py`.
"""

import asyncio
import signal
from collections.abc import Coroutine
from dataclasses import replace

from ddpjob_api.exits import Exit
from ddpjob_api.history import LOG_MARK, pack
from ddpjob_api.messages import (
    BEAT_SECONDS,
    Beat,
    Finish,
    Hello,
    Message,
    Pause,
    Prepare,
    Reject,
    Start,
    Stop,
    StopAt,
    Welcome,
    announcement,
    status_key,
)
from ddpjob_api.report import Outcome, TerminationMessage
from ddpjob_trainer.launcher import leading, status, words
from ddpjob_trainer.launcher.announcing import Announcer, addresses_of
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.departure import Departure
from ddpjob_trainer.launcher.foreman import Foreman
from ddpjob_trainer.launcher.halt import loss_of
from ddpjob_trainer.launcher.http import HttpServer, Site
from ddpjob_trainer.launcher.link import Link
from ddpjob_trainer.launcher.memory import Memory, wall
from ddpjob_trainer.launcher.output import Sink
from ddpjob_trainer.launcher.peers.preparation import Preparation
from ddpjob_trainer.launcher.postmortems import PostMortems
from ddpjob_trainer.launcher.server import Server
from ddpjob_trainer.launcher.view import View


class CannotStart(OSError):
    """A port or folder of this launcher cannot be used; the message says which and what to change."""


class Launcher:
    """One launcher, from its start to its exit code."""

    def __init__(self, config: Config, sink: Sink) -> None:
        """Made in the running loop that it will live in."""
        self.config = config
        self.sink = sink
        self.memory = Memory(config)
        self.view = View(config, self.memory, sink.say)
        self.link = Link(
            # The leader's own: the name may still lead to its predecessor.
            host=config.advertise_host if config.leads and config.on_cluster else config.coordinator_host,
            port=config.coordinator_port,
            token=config.token,
            hello=self.hello,
            on_message=self.obey,
            on_state=self.link_changed,
            on_refused=self.refused,
            beat=self.beat,
            say=sink.say,
        )
        self.preparation = Preparation(config, self.memory, say=sink.say, send=self.link.send, keep=self.keep)
        self.post_mortems = PostMortems(config.post_mortem_dir, in_log=config.on_cluster, say=sink.say)
        self.foreman = Foreman(
            config,
            self.memory,
            self.view,
            sink=sink,
            preparation=self.preparation,
            post_mortems=self.post_mortems,
            send=self.link.send,
            keep=self.keep,
            on_unkillable=self.unkillable,
        )
        self.departure = Departure(
            self.config,
            self.memory,
            self.view.gauge,
            foreman=self.foreman,
            link=self.link,
            sink=self.sink,
            keep=self.keep,
            before_last_words=self.hand_down,
        )
        self.server: Server | None = None
        self.announcer: Announcer | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> TerminationMessage:
        """Work until the end; the message has the exit code.

        Raises:
            CannotStart: a port is not free, or the run folder cannot be made.
        """
        loop = asyncio.get_running_loop()
        self.make_folders()
        self.foreman.children.adopt(loop)
        loop.add_signal_handler(signal.SIGTERM, self.departure.leave)
        loop.add_signal_handler(signal.SIGINT, self.departure.leave, True)
        http = HttpServer(self.site())
        ports = self.config.spec.ports
        await listen(http.start(self.config.bind_host, ports.metrics), "metrics", ports.metrics)
        if self.config.leads:
            core = leading.coordinator(self.config)
            self.server = Server(core, self.config.token, say=self.sink.say, on_bug=self.departure.fail)
            port = self.config.coordinator_port
            await listen(self.server.start(self.config.bind_host, port), "coordinator", port)
            self.announcer = Announcer(
                address=self.config.advertise_host,
                term=core.term,
                port=ports.metrics,
                token=self.config.token,
                missing=lambda: core.members.missing,
            )
        self.preparation.start()
        self.keep(self.watch())
        self.keep(self.foreman.keep_reserve())
        link = self.keep(self.link.run())
        try:
            return await self.departure.over
        finally:
            link.cancel()
            await asyncio.wait([link])
            self.preparation.close()
            await self.foreman.reserve.close()
            if self.foreman.crew is not None:
                await self.foreman.crew.close()
            if self.server is not None:
                await self.server.close()
            http.close()

    def make_folders(self) -> None:
        """The run folder, which must be there, and the checkpoints', without which training goes on.

        Raises:
            CannotStart: the run folder cannot be made.
        """
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

    # the connection

    def link_changed(self, up: bool) -> None:
        self.departure.link_changed(up)

    def refused(self, why: str) -> None:
        self.departure.refused(why)

    # what the coordinator says

    def obey(self, message: Message) -> None:
        """Do as told, by the highest (term, generation) only."""
        if isinstance(message, Welcome | Prepare | Start | Stop | Pause | StopAt | Finish):
            if message.term < self.memory.term:
                self.sink.say(
                    f"{type(message).__name__} of term {message.term} ignored: term {self.memory.term} is obeyed"
                )
                return
            self.memory.raise_term(message.term)
        match message:
            case Welcome():
                self.foreman.repeat_failures()
            case Beat():
                self.memory.counted(message)
                self.foreman.heard(message)
            case Prepare():
                self.preparation.obey(message)
            case Start():
                self.foreman.start(message)
            case Pause():
                self.foreman.pause(message)
            case StopAt():
                self.foreman.stop_at(message)
            case Stop():
                self.foreman.stop(message)
            case Finish():
                self.keep(self.finish(message))
            case Reject():
                if message.replaced:
                    self.keep(self.give_way(message.message))
            case _:
                pass

    async def finish(self, message: Finish) -> None:
        self.preparation.cancel()
        self.memory.restarts, self.memory.disruptions = message.restarts, message.disruptions
        self.memory.spend(message.spent)
        await self.foreman.end()
        self.departure.end(
            message.outcome,
            message.exit_code,
            words.outcome(message, self.config.plan.nodes),
            failure=message.failure,
            result=message.result,
        )

    async def give_way(self, why: str) -> None:
        """Another pod has this index."""
        await self.foreman.end()
        self.departure.end(Outcome.STOPPED, Exit.STOPPED, why)

    def unkillable(self, why: str) -> None:
        """A worker does not end, so nothing can be run here any more; another pod can, where somebody makes one."""
        outcome = Outcome.STOPPED if self.config.on_cluster else Outcome.FAILED
        of = self.memory.hello("", "", running=True)
        failure = replace(loss_of(of, generation=of.generation, at=wall()), message=why)
        self.departure.end(outcome, Exit.PEER_LOST, why, failure=failure)

    # what others see

    def hello(self, nonce: str, proof: str) -> Hello:
        return self.memory.hello(nonce, proof, running=self.foreman.crew is not None)

    def beat(self) -> Beat:
        return self.foreman.beat()

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            self.view.look(self.foreman.crew)
            self.learn()
            self.foreman.watch(asyncio.get_running_loop().time())
            self.departure.give_up()

    def learn(self) -> None:
        """The job's incidents, into history and post-mortems of node 0, and how well its ranks work together."""
        if self.server is not None:
            report = self.server.core.report()
            self.view.recorder.learn(report.failures)
            self.view.gauge.efficiency = report.efficiency
            self.post_mortems.judged(report.failures)

    def hand_down(self) -> None:
        """What is known of the run, into the log: a pod that has ended answers nobody, and its log is kept."""
        self.learn()
        self.post_mortems.repeat()
        if self.config.on_cluster:
            self.sink.say(LOG_MARK + pack(self.view.recorder.all()))

    def site(self) -> Site:
        leads, foreman = self.config.leads, self.foreman
        return Site(
            metrics=lambda: self.view.metrics(
                foreman.crew, foreman.reserve.held(), self.server.core.report() if self.server else None
            ),
            history=self.view.recorder.public,
            ready=lambda: self.memory.done or (foreman.crew is not None and foreman.crew.joined),
            key=status_key(self.config.token),
            status=self.report if leads else None,
            stop=self.stop_job if leads else None,
            proof=lambda caller: announcement(self.config.token, caller),
            announced=self.link.announced,
            addresses=self.call if leads else None,
        )

    def call(self, body: bytes) -> None:
        """Tell launchers that are missing where the coordinator is."""
        found = addresses_of(body)
        if self.announcer is not None:
            self.keep(self.announcer.call(found))

    def report(self) -> bytes:
        assert self.server is not None
        self.view.look(self.foreman.crew)
        return status.encode(self.server.core.report(), self.view.gauge)

    def stop_job(self) -> None:
        assert self.server is not None
        self.server.stop_job()

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
            self.departure.fail(error)


async def listen(starting: Coroutine[None, None, None], name: str, port: int) -> None:
    try:
        await starting
    except OSError as error:
        raise CannotStart(
            f"port {port} (spec.ports.{name}) cannot be listened on: {error.strerror or error}; "
            "end what uses it, or choose another"
        ) from error
