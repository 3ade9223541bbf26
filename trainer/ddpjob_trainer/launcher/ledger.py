"""What a job has spent: restarts, disruptions, and which generations' ends are in the two numbers.

Why apart: an incident is counted once, whatever is lost meanwhile, also the coordinator that would have counted it.
Must not: decide what an incident was (`halt.py`) or what follows from the counts (`coordinator.py`).
"""

from dataclasses import dataclass, field

from ddpjob_api.messages import Hello
from ddpjob_api.report import Failure
from ddpjob_trainer.launcher.halt import Charge, Verdict
from ddpjob_trainer.launcher.timing import BACKOFF_SECONDS

KEPT_FAILURES = 8


@dataclass(kw_only=True)
class Ledger:
    """Counts, and the failures behind them."""

    max_restarts: int
    max_disruptions: int
    restarts: int = 0
    """Restarts that followed a failure; never more than `max_restarts`."""
    exhausted: bool = False
    """A failure found no restart left."""
    disruptions: int = 0
    judged: int = 0
    """The newest generation whose end is in the counts."""
    failures: list[Failure] = field(default_factory=list)
    """The newest last."""
    uncounted: dict[int, Failure] = field(default_factory=dict)
    """Own failures, by node, that a lost coordinator may not have counted."""
    barren: int = 0
    """Failures in a row without a step between them."""
    not_before: float = 0.0
    """The next generation waits until then."""

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.exhausted or self.disruptions > self.max_disruptions

    def learn(self, hello: Hello) -> None:
        """Take the highest counts that anybody knows."""
        self.restarts = max(self.restarts, hello.restarts)
        self.disruptions = max(self.disruptions, hello.disruptions)

    def remember(self, node: int, failure: Failure) -> None:
        """A failure that no coordinator has counted as far as its launcher knows."""
        self.uncounted[node] = failure

    def enter(self, verdict: Verdict, charge: Charge, *, generation: int, fruitful: bool, now: float) -> None:
        """Count the end of a generation, and set the back-off; `fruitful`: it made a step."""
        if charge is Charge.RESTART:
            self.restart()
        self.disruptions += charge is Charge.DISRUPTION
        self.judged = generation
        self.uncounted.clear()
        self.keep(verdict.failure)
        if fruitful:
            self.barren = 0
        elif charge is Charge.RESTART:
            self.barren += 1
            self.not_before = now + BACKOFF_SECONDS[min(self.barren, len(BACKOFF_SECONDS)) - 1]

    def inherit(self, newest: int) -> Failure | None:
        """Count a failure of the newest generation that the coordinator before this one took with it, once."""
        found = [item for item in self.uncounted.values() if item.generation == newest > self.judged]
        self.uncounted.clear()
        if not found:
            return None
        self.restart()
        self.judged = newest
        self.keep(found[0])
        return found[0]

    def restart(self) -> None:
        """Take one restart, if one is left."""
        if self.restarts < self.max_restarts:
            self.restarts += 1
        else:
            self.exhausted = True

    def keep(self, failure: Failure | None) -> None:
        if failure is not None:
            self.failures = [*self.failures, failure][-KEPT_FAILURES:]
