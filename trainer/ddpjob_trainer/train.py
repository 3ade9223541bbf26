"""`python -m ddpjob_trainer.train`: one rank of a `task` job, from its environment to its exit.

Started by the launcher through `ddpjob_trainer.bootstrap`, or by torchrun with DDPJOB_TASK set. Ends with 0 when the
training is done and with 85 when it stopped on request.
Must not: train (that is `loop/trainer.py`).
"""

import dataclasses
import signal
import sys
from types import FrameType

import ddpjob_trainer
from ddpjob_api.exits import Exit
from ddpjob_trainer import worker
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.loop.board import Board
from ddpjob_trainer.loop.entrypoint import make_task
from ddpjob_trainer.loop.process import join, leave
from ddpjob_trainer.loop.saving import newest_common_step
from ddpjob_trainer.loop.told import Told, told
from ddpjob_trainer.loop.trainer import Trainer


def main() -> None:
    """Run the rank; exceptions are the bootstrap's to record where a launcher waits for them."""
    me = worker.current()
    try:
        done = train(told(), me)
    except Refused as refused:
        if me is not None:
            raise
        print(refused, file=sys.stderr)
        raise SystemExit(Exit.REFUSED) from None
    if not done:
        raise SystemExit(Exit.STOPPED)


def train(settings: Told, me: worker.Worker | None) -> bool:
    """Train the task; False if it stopped on request."""
    wish = StopWish()
    if me is None:
        board = Board(speaks=settings.rank == 0)
        signal.signal(signal.SIGTERM, wish.on_signal)
    else:
        me.own_steps()
        board = Board(
            page=me.page,
            device_time=me.device_time,
            report=ddpjob_trainer.report,
            put_fact=me.put_fact,
            speaks=settings.rank == 0,
        )
    asked = settings.task
    task = make_task(asked.entrypoint, asked.params, asked.seed)
    device = join(settings)
    if me is None and settings.saves and settings.resume_step is None:
        settings = dataclasses.replace(settings, resume_step=newest_common_step(settings))
    # Nothing holds on to the trainer when the group is taken down: torch has been seen to abort if a DDP model lives.
    done = Trainer(settings, task, device, board, wish).run()
    leave()
    return done


class StopWish:
    """Whether somebody asked this process to stop: without a launcher, SIGTERM does."""

    def __init__(self) -> None:
        self.there = False

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.there = True

    def __call__(self) -> bool:
        return self.there


if __name__ == "__main__":
    main()
