"""What a job has spent: restarts, disruptions, and which generations' ends are in the two numbers.

Why apart: an incident is counted once, whatever is lost meanwhile, also the coordinator that would have counted it.
Must not: decide what an incident was (`halt.py`) or what follows from the counts (`coordinator.py`).
"""

import re
from dataclasses import dataclass, field, replace

from ddpjob_api.conditions import Reason
from ddpjob_api.messages import Hello
from ddpjob_api.report import Failure
from ddpjob_trainer.launcher.halt import Charge, Verdict
from ddpjob_trainer.launcher.timing import BACKOFF_SECONDS

KEPT_FAILURES = 8
SAME_EXCEPTIONS = 3
"""The same exception at the same step so often in a row will come again."""
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


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
    uncounted: dict[int, tuple[Failure, int]] = field(default_factory=dict)
    """Own failures, by node, that a lost coordinator may not have counted, and the restarts their launchers knew of."""
    barren: int = 0
    """Failures in a row without a step between them."""
    back_off: float = 0.0
    """How long the next generation waits, from the end of the one before."""
    not_before: float = 0.0
    """The next generation waits until then."""
    exception: str | None = None
    repeated: int = 0
    """Failures in a row that were this exception."""

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.exhausted or self.disruptions > self.max_disruptions

    def learn(self, hello: Hello) -> None:
        """Take the highest counts that anybody knows."""
        self.restarts = max(self.restarts, hello.restarts)
        self.disruptions = max(self.disruptions, hello.disruptions)
        self.judged = max(self.judged, hello.judged)

    def remember(self, hello: Hello, failure: Failure) -> None:
        """A failure that no coordinator has counted as far as its launcher knows."""
        self.uncounted[hello.node] = failure, hello.restarts

    def enter(
        self,
        verdict: Verdict,
        charge: Charge,
        *,
        generation: int,
        fruitful: bool,
        now: float,
        jitter: float = 1.0,
    ) -> None:
        """Count the end of a generation, and set the back-off; `fruitful`: it made a step."""
        if charge is Charge.RESTART:
            self.restart()
        self.disruptions += charge is Charge.DISRUPTION
        self.judged = generation
        self.uncounted.clear()
        self.keep(verdict.failure)
        self.back_off = 0.0
        if fruitful:
            self.barren = 0
        elif charge is Charge.RESTART:
            self.barren += 1
            self.back_off = BACKOFF_SECONDS[min(self.barren, len(BACKOFF_SECONDS)) - 1] * jitter
            self.not_before = now + self.back_off
        if charge is Charge.RESTART:
            self.repeated = self.times(verdict)
            self.exception = same_part(verdict)

    def times(self, verdict: Verdict) -> int:
        """How often in a row this exception has ended a generation, with this time; 1 for what is no exception."""
        exception = same_part(verdict)
        return self.repeated + 1 if exception is not None and exception == self.exception else 1

    def permanent(self, verdict: Verdict) -> Failure | None:
        """The failure, if it came too often in a row to be tried again although a restart is left."""
        failure, times = verdict.failure, self.times(verdict)
        if failure is None or times < SAME_EXCEPTIONS or self.restarts >= self.max_restarts:
            return None
        return replace(
            failure,
            reason=Reason.REPEATED_FAILURE,
            message=f"{failure.message} ({times} times in a row at step {failure.step})"[:1024],
        )

    def inherit(self, newest: int) -> Failure | None:
        """Count a failure of the newest generation that the coordinator before this one took with it, once."""
        found = [item for item in self.uncounted.values() if item[0].generation == newest > self.judged]
        self.uncounted.clear()
        if not found:
            return None
        failure, known = found[0]
        if self.restarts == known:
            # More than its launcher knew of at the start of that generation can only be this one: somebody heard the
            # verdict (the operator, which asks by itself) before the coordinator was lost.
            self.restart()
        self.judged = newest
        self.keep(failure)
        return failure

    def miss_verdict(self, newest: int, at: str) -> None:
        """The newest generation ended with its coordinator, of which nobody else tells; its pod is counted by who made
        the next.
        """
        self.judged = newest
        self.keep(
            Failure(
                reason=Reason.POD_LOST,
                node=0,
                message="the launcher of node 0 is gone, and the coordinator with it",
                generation=newest,
                at=at,
            )
        )

    def restart(self) -> None:
        """Take one restart, if one is left."""
        if self.restarts < self.max_restarts:
            self.restarts += 1
        else:
            self.exhausted = True

    def keep(self, failure: Failure | None) -> None:
        if failure is not None:
            self.failures = [*self.failures, failure][-KEPT_FAILURES:]


def same_part(verdict: Verdict) -> str | None:
    """What two occurrences of an exception have in common."""
    return ADDRESS.sub("", verdict.exception) if verdict.exception is not None else None
