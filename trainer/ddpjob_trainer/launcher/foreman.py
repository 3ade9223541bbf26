"""The crew of one launcher, as the coordinator wants it: begun, held, stopped, and its end reported.

Why apart: a generation here goes from Start to Stopped or Done, whatever the connection and the pod do meanwhile.
Must not: decide that a generation begins or ends (`coordinator.py`), or that the launcher goes (`node.py`).
"""

import asyncio
import os
from collections.abc import Callable, Coroutine

from ddpjob_api.fields import Json
from ddpjob_api.messages import (
    Beat,
    Done,
    Failed,
    Hung,
    Message,
    Pace,
    Pause,
    Paused,
    Start,
    Stop,
    StopAt,
    Stopped,
)
from ddpjob_api.report import Cause, RankView, WorkerExit
from ddpjob_api.spec import DDP, Spec
from ddpjob_trainer.launcher.children import Children
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.crew import Crew, Unkillable
from ddpjob_trainer.launcher.exposition import sums_of
from ddpjob_trainer.launcher.halt import failure_of
from ddpjob_trainer.launcher.memory import Memory, wall
from ddpjob_trainer.launcher.oom import OomCounter
from ddpjob_trainer.launcher.output import Sink
from ddpjob_trainer.launcher.pace import pace_of
from ddpjob_trainer.launcher.peers.preparation import Preparation
from ddpjob_trainer.launcher.postmortems import PostMortems
from ddpjob_trainer.launcher.reserve import Reserve
from ddpjob_trainer.launcher.room import Room
from ddpjob_trainer.launcher.timing import (
    HEALTHY_SECONDS,
    KILL_FRACTION,
    PAUSE_SETTLE_SECONDS,
    SUMS_RANKS_PER_SECOND,
    SUMS_SECONDS,
    TICK_SECONDS,
)
from ddpjob_trainer.launcher.view import View
from ddpjob_trainer.launcher.watchdog import Watchdog, patient_step, waits


class Foreman:
    """Has at most one crew at a time."""

    def __init__(
        self,
        config: Config,
        memory: Memory,
        view: View,
        *,
        sink: Sink,
        preparation: Preparation,
        post_mortems: PostMortems,
        send: Callable[[Message], None],
        keep: Callable[[Coroutine[None, None, None]], object],
        on_unkillable: Callable[[str], None],
    ) -> None:
        """Nothing runs yet; `keep` runs a coroutine beside and takes its errors."""
        self.children = Children()
        self.crew: Crew | None = None
        self._config = config
        self._memory = memory
        self._view = view
        self._sink = sink
        self._preparation = preparation
        self._post_mortems = post_mortems
        self._send = send
        self._keep = keep
        self._on_unkillable = on_unkillable
        self._oom = OomCounter()
        self.reserve = Reserve(
            wanted=config.standby,
            folder=config.run_dir,
            children=self.children,
            room=Room().left,
            say=sink.say,
        )
        self._limit = config.spec.recovery.progress_timeout.total_seconds()
        self._in_vain = in_vain(config.spec)
        """What it may have to be said of that it has no effect."""
        self._began = 0.0
        """When the newest crew was."""
        self._watchdog = Watchdog(self._limit)
        self._patient_step: int | None = None
        """At which step a rank of the job does what takes long, as the coordinator says."""
        self._hung_said = 0
        """The generation whose hang was told."""
        self._idle = 0.0
        self._sums_at = 0.0
        """When the sums of the ranks were said last."""
        self._sums_seconds = min(SUMS_SECONDS, config.plan.world_size / SUMS_RANKS_PER_SECOND)
        self._views: tuple[RankView, ...] = ()
        """Where the ranks of the newest crew stood at its end."""
        self._pace: Pace | None = None
        """And how far the first was."""
        self._stop_by: float | None = None
        """Until when workers of a soft stop may live."""

    # what the coordinator says

    def start(self, message: Start) -> None:
        """Begin a generation."""
        if message.generation <= self._memory.generation or self.crew is not None:
            self._sink.say(f"Start of generation {message.generation} ignored: at {self._memory.generation}")
            return
        self._memory.begin(message)
        self._stop_by = None
        self._views = ()
        self._watchdog = Watchdog(self._limit)
        self._began = asyncio.get_running_loop().time()
        self._patient_step = None
        self._view.begin()
        self.crew = Crew(
            self._config,
            message,
            children=self.children,
            sink=self._sink,
            oom=self._oom,
            reserve=self.reserve,
            post_mortems=self._post_mortems,
            on_exit=self._worker_ended,
            keep=self._keep,
        )
        self.crew.begin(os.environ, self._preparation.begin(message))
        self._preparation.keep_for(message.neighbour)

    def heard(self, message: Beat) -> None:
        """What the ranks of other launchers do."""
        current = message.generation == self._memory.generation
        self._patient_step = message.patient_step if current else None

    def pause(self, message: Pause) -> None:
        """Hold the ranks at their next boundary, and say which they have reached."""
        crew = self.crew
        if crew is None or crew.generation != message.generation or crew.ended.is_set():
            return
        loop = asyncio.get_running_loop()
        self._stop_by = loop.time() + self._config.grace_seconds * KILL_FRACTION
        crew.pause()
        loop.call_later(PAUSE_SETTLE_SECONDS, self._paused, crew)

    def _paused(self, crew: Crew) -> None:
        if crew is self.crew:
            # Before the boundary: a rank that goes on meanwhile has taken its offer back, and seen the pause word.
            held = crew.held
            self._send(Paused(generation=crew.generation, boundary=crew.boundary, held=held))

    def stop_at(self, message: StopAt) -> None:
        """Let the ranks go on to this step, save and end."""
        if self.crew is not None and self.crew.generation == message.generation:
            self.crew.stop_at(message.step)

    def stop(self, message: Stop) -> None:
        """End a generation at once."""
        crew = self.crew
        if crew is None or crew.generation != message.generation:
            steps, tree = self._memory.stock()
            self._send(Stopped(generation=message.generation, checkpoints=steps, tree=tree))
        elif not crew.stopping and not crew.ended.is_set():
            stacks = self._stop_by is None or message.post_mortem
            self._keep(self.end(stacks=stacks, post_mortem=message.post_mortem))
        elif not crew.stopping:
            self._keep(self._crew_over(crew, post_mortem=message.post_mortem))

    async def keep_reserve(self) -> None:
        """Have standbys for the next generation; none where there will be none here."""
        await self.reserve.run(lambda: None if self._memory.leaving else self.crew)

    # what it says

    def repeat_failures(self) -> None:
        """Say again what may have been lost with the last connection; the coordinator hears each rank once."""
        crew = self.crew
        failed = crew.failures if crew is not None else ()
        if crew is not None and failed and not crew.stopping:
            self._send(Failed(generation=crew.generation, exits=failed))
        if crew is not None and not crew.stopping and self._hung_said == crew.generation:
            self._say_hung(crew)

    def beat(self) -> Beat:
        crew = self.crew
        if crew is None or crew.stopping:
            return Beat(generation=self._memory.generation)
        now = asyncio.get_running_loop().time()
        told = now >= self._sums_at + self._sums_seconds
        if told:
            self._sums_at = now
        return Beat(
            generation=self._memory.generation,
            steps=crew.steps,
            ended=any(item.returncode == 0 for item in crew.exits),
            waits_seconds=round(waits(crew.pages.values(), now), 1),
            patient_step=patient_step(crew.pages.values(), now, self._limit),
            pace=self._pace_of(crew),
            sums=sums_of([rank.page for rank in crew.ranks]) if told else (),
        )

    def _pace_of(self, crew: Crew) -> Pace | None:
        return pace_of((rank.page for rank in crew.ranks), asyncio.get_running_loop().time())

    def result(self) -> Json:
        return self._view.gauge.result if self._config.leads else {}

    # what the workers do

    def _worker_ended(self, crew: Crew, item: WorkerExit) -> None:
        if crew is not self.crew or crew.stopping:
            return
        if crew.failed(item):
            if not crew.was_foretold(item.rank):
                self._say_failed(crew, item)
        elif crew.succeeded or crew.stopped_on_request:
            self._keep(self._crew_over(crew))

    def _say_failed(self, crew: Crew, item: WorkerExit) -> None:
        memory = self._memory
        if item.cause is Cause.OWN and memory.last_failure is None:
            of = memory.hello("", "", running=True)
            memory.last_failure = failure_of(item, of, generation=crew.generation, at=wall())
        self._send(Failed(generation=crew.generation, exits=(item,)))

    def _foretell(self, crew: Crew) -> None:
        """Tell of workers that have written their failure and do not end."""
        if crew is not self.crew or crew.stopping:
            return
        for item in crew.overdue(asyncio.get_running_loop().time() + TICK_SECONDS):
            self._sink.say(
                f"rank {item.rank} has failed and does not end: a thread or an exit handler holds it"
            )
            self._say_failed(crew, item)

    async def _crew_over(self, crew: Crew, *, post_mortem: bool = False) -> None:
        """All workers have ended by themselves."""
        if crew.stopping:
            return
        crew.stopping = True
        if post_mortem:
            await crew.examination.examine(post_mortem=True)
        if crew.succeeded:
            self._say_unseen(crew)
            await crew.drain()  # what a worker left running may still have something to say
        await self._put_away(crew)
        if crew.succeeded:
            self._memory.done = True
            self._send(
                Done(generation=crew.generation, result=self.result(), ranks=self._views, pace=self._pace)
            )
        else:
            self._report_stopped(crew)

    def watch(self, now: float) -> None:
        """Tell the coordinator once of a rank that has failed and does not end, or makes no progress."""
        self._oom.look()
        crew = self.crew
        if crew is None or crew.stopping:
            return
        overdue_at = crew.overdue_at
        if overdue_at is not None:
            asyncio.get_running_loop().call_at(max(overdue_at, now), self._foretell, crew)
        if self._hung_said == crew.generation:
            return
        if now >= self._began + max(self._limit, HEALTHY_SECONDS):
            self._say_unseen(crew)
        idle = self._watchdog.overdue(crew.pages, now, self._patient_step)
        if idle is not None:
            self._hung_said = crew.generation
            self._idle = idle
            self._say_hung(crew)

    def _say_unseen(self, crew: Crew) -> None:
        """Once: no rank has shown its steps in all the time that was given to it."""
        names, self._in_vain = self._in_vain, ()
        if names and not crew.shown:
            effect = f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} no effect so far"
            self._sink.say(
                f"{effect}: the command has started no Python rank whose steps are seen"
                if self._config.spec.command is not None
                else f"{effect}: no process of the script itself has imported torch, and what it starts or becomes "
                "(subprocess, os.exec) is not seen; with `command: [python, …]` instead of `script` it is"
            )

    def _say_hung(self, crew: Crew) -> None:
        self._send(
            Hung(generation=crew.generation, seconds=round(self._idle, 1), ranks=crew.examination.glance())
        )

    async def end(self, *, stacks: bool = False, post_mortem: bool = False, at_once: bool = False) -> None:
        """End the workers, as far as there are any, and say that none lives any more."""
        crew = self.crew
        if crew is None:
            return
        seconds = self._config.grace_seconds
        if self._stop_by is not None:
            seconds = max(self._stop_by - asyncio.get_running_loop().time(), 1.0)
        try:
            await crew.stop(0.0 if at_once else seconds, stacks=stacks, post_mortem=post_mortem)
        except Unkillable as error:
            self._on_unkillable(str(error))
            return
        if self.crew is crew:
            await self._put_away(crew)
            self._report_stopped(crew)

    def _report_stopped(self, crew: Crew) -> None:
        """No worker lives any more; those that ended as they were asked to are no news."""
        exits = tuple(item for item in crew.exits if crew.failed(item))
        steps, tree = self._memory.stock()
        self._send(
            Stopped(
                generation=crew.generation,
                exits=exits,
                checkpoints=steps,
                tree=tree,
                ranks=self._views,
                pace=self._pace,
            )
        )

    async def _put_away(self, crew: Crew) -> None:
        """Keep what the pages of an ended crew say, and leave nothing of it behind."""
        self._preparation.cancel()
        await crew.close()
        if self.crew is not crew:
            return
        self._view.put_away(crew)
        self._pace = self._pace_of(crew)
        self._views = crew.examination.glance()
        self.crew = None
        crew.discard()


def in_vain(spec: Spec) -> tuple[str, ...]:
    """What is set and has no effect where no rank shows its steps."""
    limit = ("recovery.progressTimeoutSeconds",) if spec.recovery.progress_timeout else ()
    # What a command does with them is its own.
    ddp = ("spec.ddp",) if spec.script is not None and spec.ddp != DDP(overrides=spec.ddp.overrides) else ()
    return (*ddp, *limit)
