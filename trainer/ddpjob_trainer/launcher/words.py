"""How launchers and verdicts are called in logs and messages; a failure is `ddpjob_api.blame`.

Why apart: the same end reads the same in the coordinator's log, the termination message and `ddpjob run`.
Must not: hold a fact that is not in its arguments.
"""

from ddpjob_api.blame import blame
from ddpjob_api.messages import Finish, Hello
from ddpjob_api.report import Cause, Failure, Outcome
from ddpjob_trainer.launcher.halt import Charge
from ddpjob_trainer.launcher.ledger import Ledger

MANNER = {Cause.OWN: "", Cause.VICTIM: " (it lost its peers)", Cause.KILLED: " (ended by its launcher)"}
"""What is added to a worker's last words."""


def who(hello: Hello) -> str:
    """`node 1 (digits-1-r2 on worker-a)`."""
    place = " on ".join(part for part in (hello.pod, hello.host_node) if part)
    return f"node {hello.node}" + (f" ({place})" if place else "")


def ended(generation: int, failure: Failure | None, charge: Charge, ledger: Ledger) -> str:
    """One line about the end of a generation, and what it was counted as."""
    cause = f": {blame(failure)}" if failure is not None else ""
    restarts, disruptions = ledger.max_restarts, ledger.max_disruptions
    counted = {
        Charge.RESTART: f"; restart {ledger.restarts} of {restarts}"
        if not ledger.exhausted
        else f"; no restart is left of recovery.maxRestarts {restarts}",
        Charge.DISRUPTION: f"; disruption {ledger.disruptions} of {disruptions}"
        if ledger.disruptions <= disruptions
        else f"; more disruptions than recovery.maxDisruptions {disruptions}",
        Charge.NOTHING: "",
    }[charge]
    wait = (
        f"; next try in {ledger.back_off:.1f} s, after {ledger.barren} failures in a row without a step"
        if ledger.back_off and charge is Charge.RESTART and not ledger.spent
        else ""
    )
    return f"generation {generation} ended{cause}{counted}{wait}"


def outcome(finish: Finish, nodes: int) -> str:
    """How the job ended, for `kubectl describe` and the log."""
    failure = finish.failure
    cause = blame(failure) if failure is not None else "no failure is known"
    match finish.outcome:
        case Outcome.DONE:
            return f"done: all workers of {nodes} node{'s' if nodes > 1 else ''} ended with 0"
        case Outcome.STOPPED:
            return "stopped on request" + (f" after {cause}" if failure else "")
        case Outcome.REFUSED:
            return f"the configuration was refused: {cause}"
        case Outcome.FAILED:
            after = f" after {finish.restarts} restart{'' if finish.restarts == 1 else 's'}"
            return f"failed{after if finish.restarts else ''}: {cause}"


def in_bytes(count: float) -> str:
    """`2.1 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
