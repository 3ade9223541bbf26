"""What others see of one launcher's ranks: progress, metrics and history, across generations.

Why apart: pages come and go with their crew, what was read from them stays. Must not: change anything.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from ddpjob_api import metrics
from ddpjob_api.history import RankSums, Row
from ddpjob_api.metrics import PHASES
from ddpjob_api.page import Slot
from ddpjob_api.report import JobReport
from ddpjob_trainer.launcher import exposition
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.crew import Crew
from ddpjob_trainer.launcher.memory import Memory
from ddpjob_trainer.launcher.progress import Gauge, finite
from ddpjob_trainer.launcher.recorder import Recorder
from ddpjob_trainer.launcher.reserve import Held
from ddpjob_trainer.page import Page


class View:
    """Reads the pages of whatever crew there is."""

    def __init__(self, config: Config, memory: Memory, say: Callable[[str], None]) -> None:
        self.gauge = Gauge(config.plan.world_size)
        self.recorder = Recorder(
            config.history,
            job=config.uid if config.on_cluster else config.name,
            node=config.node,
            ranks=config.plan.processes_per_node,
            say=say,
        )
        self._totals = exposition.Totals()
        self._config = config
        self._memory = memory

    def begin(self) -> None:
        """Another generation."""
        self.gauge.begin()

    def look(self, crew: Crew | None) -> None:
        """Read how far the first rank here is."""
        if crew is not None and crew.workers:
            self.gauge.read(crew.workers[0].page, asyncio.get_running_loop().time())
            if self.recorder.due(time.time()):
                self._record(crew)

    def put_away(self, crew: Crew) -> None:
        """Keep what the pages of an ended crew say."""
        self.look(crew)
        self._record(crew)
        for rank in crew.ranks:
            self._totals.add(rank.rank, rank.page)

    def metrics(self, crew: Crew | None, standbys: Mapping[int, Held], report: JobReport | None) -> str:
        """The body of `/metrics`."""
        job = exposition.Job(
            restarts=self._memory.restarts,
            disruptions=self._memory.disruptions,
            generation=self._memory.generation,
            fetched_bytes=self._memory.fetched_bytes,
            fetch_seconds=self._memory.fetch_seconds,
            backend=self._config.plan.backend.value,
            world_size=self._config.plan.world_size,
            report=report,
        )
        # A page nobody has begun belongs to a rank that a `command` may never start.
        command = self._config.spec.command is not None
        begun = (
            [rank for rank in crew.ranks if not command or rank.page[Slot.PID]] if crew is not None else []
        )
        return self._totals.render({rank.rank: rank.page for rank in begun}, job, standbys)

    def _record(self, crew: Crew) -> None:
        """One row of the history."""
        first = crew.workers[0].page
        self.recorder.add(
            Row(
                at=time.time(),
                generation=crew.generation,
                step=int(first[Slot.STEP]),
                loss=finite(first[Slot.LOSS]) if first[Slot.STEP] else None,
                ranks=tuple(self._sums(rank.rank, rank.page) for rank in crew.ranks),
            )
        )

    def _sums(self, rank: int, page: Page) -> RankSums:
        totals = self._totals
        return RankSums(
            rank=rank,
            steps=int(totals.of(metrics.OPTIMIZER_STEPS, rank, page)),
            samples=int(totals.of(metrics.SAMPLES, rank, page)),
            seconds=round(totals.of(metrics.STEP_SECONDS, rank, page), 3),
            phases=tuple(round(totals.phase(phase, rank, page), 3) for phase in PHASES),
        )
