"""How one worker ended, from what it left: its code, its page, its last words, its stacks.

Why apart: the crew knows that a worker has ended, and what that means is a question of its own (`cause.py`,
`verdict.py`). Must not: signal or wait for a process, or say what follows.
"""

import os
import signal

from ddpjob_api.page import Slot
from ddpjob_api.report import Cause, WorkerExit
from ddpjob_trainer.cgroup import lowest_limit
from ddpjob_trainer.launcher import autopsy
from ddpjob_trainer.launcher.cause import CRASHES, Circumstances, read_error, worker_exit
from ddpjob_trainer.launcher.config import Config
from ddpjob_trainer.launcher.oom import OomCounter
from ddpjob_trainer.launcher.timing import COMMAND_OOM_SECONDS, OOM_SECONDS
from ddpjob_trainer.launcher.verdict import command_exit
from ddpjob_trainer.launcher.workers import Worker


def end_of(
    worker: Worker, returncode: int, *, config: Config, generation: int, stop_asked: bool, oom: OomCounter
) -> WorkerExit:
    """The end of a worker whose output has been read."""
    command = config.spec.command is not None
    may_be_oom = returncode == -signal.SIGKILL or (command and returncode != 0)
    circumstances = Circumstances(
        signals=dict(worker.signals),
        stop_asked=stop_asked,
        stderr=tuple(line.decode("utf-8", "replace") for line in worker.pumps[1].tail),
        place=autopsy.spot(autopsy.place(autopsy.innermost(autopsy.read(worker.files.stacks))))
        if returncode in CRASHES
        else None,
        oom=may_be_oom and oom.killed(within=COMMAND_OOM_SECONDS if command else OOM_SECONDS),
        memory_limit=lowest_limit(),
    )
    if command:
        return command_exit(
            worker.ranks,
            returncode,
            run_dir=config.run_dir,
            generation=generation,
            circumstances=circumstances,
        )
    return worker_exit(
        rank=worker.rank,
        returncode=returncode,
        page=worker.page,
        error=read_error(worker.files.error) if returncode or signal.SIGTERM in worker.signals else None,
        circumstances=circumstances,
    )


def foretold(worker: Worker) -> WorkerExit:
    """The end of a worker that has written it and is still there."""
    error = read_error(worker.files.error)
    return worker_exit(
        rank=worker.rank,
        returncode=error.exit_code if error is not None else int(worker.page[Slot.EXIT_CODE]),
        page=worker.page,
        error=error,
        circumstances=Circumstances(),
    )


def not_started(worker: Worker, error: OSError) -> WorkerExit:
    """The end of a worker that never was."""
    reason = os.strerror(error.errno or 0)
    name = error.filename or "the worker"
    return WorkerExit(
        rank=worker.rank,
        returncode=127,
        cause=Cause.OWN,
        message=f"{name} cannot be started: {reason}",
    )
