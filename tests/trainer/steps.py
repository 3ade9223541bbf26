"""Steps of a training that nobody trained: whole checkpoints for tests that list, judge, damage and hand them on."""

import os
from pathlib import Path

from ddpjob_trainer.checkpoint_writing import write_step
from ddpjob_trainer.checkpoints import Position, step_path

CONTENT = os.urandom(3 << 20) + b"end"
"""More than one chunk."""


def position(step: int) -> Position:
    return Position(
        step=step, epoch=0, samples_consumed=8, global_batch_size=8, world_size=2, dataset_size=64, seed=0
    )


def save(folder: Path, step: int, content: bytes = CONTENT) -> Path:
    write_step(folder, position(step), {"state.pt": lambda stream: stream.write(content)})  # type: ignore[dict-item]
    return step_path(folder, step)
