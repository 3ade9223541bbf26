"""What runs in the pods: launcher, instrumentation, training loop.

A program may call two functions; both do nothing outside of a job, so that it still runs by itself:

    ddpjob_trainer.report(accuracy=0.97)     # into `status.result`
    ddpjob_trainer.on_stop(save)             # called at the step where all ranks stop together

Must not: import torch, or anything before one of the two is called: the launcher is in this package too, and until
its first statement runs, one that is PID 1 is deaf to SIGTERM.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

__all__ = ["on_stop", "report"]

Callback = TypeVar("Callback", bound=Callable[[], object])
log = logging.getLogger(__name__)


def report(**values: object) -> None:
    """Add values to the job's result (`status.result`, the summary of `ddpjob run`); later ones replace earlier ones.

    Numbers, strings, booleans, None; anything with `.item()` (a scalar of torch or NumPy) counts as its number.

    Raises:
        TypeError: another type.
        ValueError: more than 32 values, a name over 64 or a text over 256 characters.
    """
    from ddpjob_trainer import worker

    running = worker.current()
    if running is None:
        log.debug("report(%s): not in a DDPJob, nothing to report to", ", ".join(values))
        return
    running.report(values)


def on_stop(callback: Callback) -> Callback:
    """Call `callback()` when the job stops on request (suspend, drain, Ctrl-C), after the same step on every rank.

    It should save what the program needs to go on; the process then ends with 85. Usable as a decorator. The
    callbacks run in the order in which they were given, where the next forward pass of DDP with gradients, or else the
    next backward pass, would begin: what the program does after `optimizer.step()` is done by then. A program that makes no pass
    after that step ends by itself.
    """
    from ddpjob_trainer import worker

    running = worker.current()
    if running is None:
        log.debug("on_stop(%r): not in a DDPJob, nobody will ask to stop", callback)
    else:
        running.stop_callbacks.append(callback)
    return callback
