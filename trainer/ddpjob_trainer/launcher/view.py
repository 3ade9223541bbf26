"""What others see of one launcher's ranks: progress and metrics, across generations.

Why apart: pages come and go with their crew, what was read from them stays. Must not: change anything.
"""

import asyncio

from ddpjob_trainer.launcher import exposition
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.crew import Crew
from ddpjob_trainer.launcher.memory import Memory
from ddpjob_trainer.launcher.progress import Gauge


class View:
    """Reads the pages of whatever crew there is."""

    def __init__(self, config: Config, memory: Memory) -> None:
        self.gauge = Gauge(config.plan.nodes * config.processes)
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

    def put_away(self, crew: Crew) -> None:
        """Keep what the pages of an ended crew say."""
        self.look(crew)
        for worker in crew.workers:
            self._totals.add(worker.rank, worker.page)

    def metrics(self, crew: Crew | None) -> str:
        """The body of `/metrics`."""
        job = exposition.Job(
            restarts=self._memory.restarts,
            disruptions=self._memory.disruptions,
            generation=self._memory.generation,
            backend=self._config.plan.backend.value,
            world_size=self._config.plan.world_size,
        )
        workers = crew.workers if crew is not None else []
        return self._totals.render({worker.rank: worker.page for worker in workers}, job)
