"""The state of a training as the contents of a checkpoint, and back.

Why apart: the loop says when, `checkpoint_writing.py` how a directory becomes whole, and this says what is in it: the
plain model, optimizer, schedule, loss scale. No random state: everything random is derived from the seed and the
position. Must not: let a full disk end a training.
"""

import contextlib
import io
import pickle
import time
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ddpjob_api.page import Fact, Slot
from ddpjob_trainer.checkpoint_writing import Writable, prune, remove_leftovers, write_step
from ddpjob_trainer.checkpoints import Manifest, OtherFormat, Position, open_step, usable_steps
from ddpjob_trainer.errors import Refused
from ddpjob_trainer.fence import Fenced
from ddpjob_trainer.loop.agreement import from_all, total
from ddpjob_trainer.loop.board import Board, say
from ddpjob_trainer.loop.memory import MemoryCopies
from ddpjob_trainer.loop.told import Told

STATE = "state.pt"


class Stateful(Protocol):
    """What can be saved and restored."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


class Saver:
    """Writes and reads the checkpoints of one rank."""

    def __init__(self, told: Told, parts: Mapping[str, Stateful], device: torch.device, board: Board) -> None:
        """`parts`: what is saved, by name; `model` is one of them.

        Raises:
            Refused: a part's state is not made of tensors and plain values, so it could not be loaded safely.
        """
        self.told, self.parts, self.device, self.board = told, parts, device, board
        self.saved_step: int | None = None
        """The newest step that is known to be complete on every node."""
        self.perhaps_in_memory = False
        """Whether that step may lie in the memory of some node only."""
        self.tried_at = time.monotonic()
        self.trouble = ""
        """What keeps this rank from writing."""
        self.told_trouble = ""
        if told.saves:
            for name, part in parts.items():
                if name != "model":
                    check_loadable(name, part)
        if told.writes and told.checkpoint_dir is not None:
            remove_leftovers(told.checkpoint_dir)
            # A writer of an older term may live where nobody reaches it; a full disk is told at the first save.
            with contextlib.suppress(OSError):
                told.fence.take_over()
        self.memory = MemoryCopies(told) if told.copies else None

    def has_saved(self, step: int) -> bool:
        """Whether this step is known to be a checkpoint on every node, not only a copy in memory."""
        return step == self.saved_step and not self.perhaps_in_memory

    def due_after(self, step: int) -> bool:
        """Whether `everySteps` says so."""
        every = self.told.checkpoint.every_steps if self.told.checkpoint else None
        return every is not None and step % every == 0

    def copy_due_after(self, step: int) -> bool:
        """Whether `inMemoryEverySteps` says so."""
        every = self.told.checkpoint.in_memory_every_steps if self.told.checkpoint else None
        return every is not None and self.told.memory_dir is not None and step % every == 0

    def copy(self, position: Position) -> None:
        """Copy into memory on every node; a node without room for it goes without, and so do all."""
        state = {name: part.state_dict() for name, part in self.parts.items()}
        if self.memory is not None:
            self.memory.write(position, {STATE: lambda stream: write_state(state, stream)}, size_of(state))

    def time_is_up(self) -> bool:
        """Whether `everySeconds` says so, by the clock of this rank; the ranks agree on rank 0's."""
        every = self.told.checkpoint.every if self.told.checkpoint else None
        return every is not None and time.monotonic() - self.tried_at >= every.total_seconds()

    def save(self, position: Position) -> None:
        """Save on the ranks that write, and note on all whether every one of them could.

        A checkpoint that cannot be written costs the checkpoint, not the training.
        """
        began = time.monotonic()
        written = self.write(position) if self.told.writes else 0
        seconds = time.monotonic() - began if self.told.writes else 0.0
        writers, failures, size_bytes = self.agreed(written)
        self.tried_at = time.monotonic()
        if failures or not writers:
            self.board.add(Slot.CHECKPOINT_FAILURES)
            self.tell(
                self.trouble
                or f"checkpoints cannot be written by {failures} of {writers} writers: see their logs"
            )
            return
        self.tell("")
        self.saved_step, self.perhaps_in_memory = position.step, False
        self.board.add(Slot.CHECKPOINTS)
        self.board.put(
            {
                Slot.CHECKPOINT_BYTES: size_bytes,
                Slot.CHECKPOINT_DURATION_SECONDS: seconds,
                Slot.CHECKPOINT_AT: time.time(),
                Slot.CHECKPOINT_STEP: position.step,
            }
        )

    def tell(self, trouble: str) -> None:
        """Publish what keeps checkpoints from being written, when it changes; no step in it, or it always would."""
        if trouble:
            before = "its beginning" if self.saved_step is None else f"step {self.saved_step}"
            trouble = f"{trouble}; the training goes on, and after a failure it would start from {before}"
        if trouble != self.told_trouble:
            self.told_trouble = trouble
            self.board.put_fact(Fact.CHECKPOINT, trouble[:512])

    def write(self, position: Position) -> int:
        """Bytes written, or -1."""
        told = self.told
        if told.checkpoint_dir is None or told.checkpoint is None:
            return 0
        state = {name: part.state_dict() for name, part in self.parts.items()}
        self.trouble = ""
        try:
            manifest = write_step(
                told.checkpoint_dir,
                position,
                {STATE: lambda stream: write_state(state, stream)},
                entrypoint=told.task.entrypoint,
                fence=told.fence,
            )
        except Fenced as fenced:
            say(f"WARNING checkpoint of step {position.step} is not kept: {fenced}")
            self.trouble = f"checkpoints are not kept: {fenced}"
            return -1
        except OSError as error:
            # Without the file's name, which has the step in it.
            self.trouble = (
                f"checkpoints cannot be written to {told.checkpoint_dir}: {error.strerror or error}"
            )
            say(
                f"WARNING checkpoint of step {position.step} could not be written to {told.checkpoint_dir}: {error}; "
                "the training goes on, and after a failure it would start from the checkpoint before"
            )
            return -1
        try:
            prune(told.checkpoint_dir, newest=position.step, keep=told.checkpoint.keep)
        except OSError as error:
            say(f"WARNING old checkpoints in {told.checkpoint_dir} could not be deleted: {error}")
        return manifest.size_bytes

    def agreed(self, written: int) -> tuple[int, int, int]:
        """Writers, failures, and mean bytes per writer that succeeded."""
        sums = total([self.told.writes, written < 0, max(0, written)], self.device)
        succeeded = sums[0] - sums[1]
        return int(sums[0]), int(sums[1]), int(sums[2] / succeeded) if succeeded else 0

    def load(self, step: int, expected: Position) -> Position:
        """Restore all parts from the checkpoint of `step`.

        Raises:
            CheckpointDamaged: its files are not whole.
            OSError: they cannot be read.
            Refused: it is another training's.
        """
        if self.told.checkpoint_dir is None:
            raise Refused(
                f"there is a step {step} to resume from and no checkpoint directory; set spec.checkpoint"
            )
        compared = self.told.resume_dir is not None
        try:
            path, manifest = open_step(
                self.told.resume_dir or self.told.checkpoint_dir, step, hashes=not compared
            )
        except OtherFormat as error:
            raise Refused(str(error)) from error
        check_same_training(manifest, expected, str(path))
        try:
            state = torch.load(path / STATE, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise Refused(f"checkpoint {path} holds more than tensors and plain values: {error}") from error
        model = self.parts["model"]
        if isinstance(model, nn.Module):
            check_same_model(state["model"], model.state_dict(), str(path))
        for name, part in self.parts.items():
            try:
                part.load_state_dict(state[name])
            except (KeyError, ValueError) as error:
                raise Refused(
                    f"checkpoint {path}: its {name} does not fit this task's ({error}); go on with the task it was "
                    "made with, or delete the directory to start anew"
                ) from error
        # All ranks must judge alike whether to save it, and where another node has it is not known here.
        self.saved_step, self.perhaps_in_memory = step, self.told.memory_dir is not None
        return manifest.position


def size_of(state: object) -> int:
    """Bytes of the tensors in it."""
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, Mapping):
        return sum(size_of(value) for value in state.values())
    if isinstance(state, list | tuple):
        return sum(size_of(value) for value in state)
    return 0


def newest_common_step(told: Told) -> int | None:
    """The newest step that every rank has, also one that `load` refuses; who has a launcher is told it instead."""
    everywhere = from_all(usable_steps(told.checkpoint_dir) if told.checkpoint_dir else ())
    return max(set(everywhere[0]).intersection(*everywhere), default=None)


def write_state(state: Mapping[str, Any], stream: Writable) -> None:
    torch.save(state, stream)  # type: ignore[arg-type]


def check_loadable(name: str, part: Stateful) -> None:
    """Refuse now what `torch.load(weights_only=True)` would refuse after a failure."""
    stream = io.BytesIO()
    try:
        torch.save(part.state_dict(), stream)
        stream.seek(0)
        torch.load(stream, weights_only=True)
    except (pickle.UnpicklingError, pickle.PicklingError, AttributeError, TypeError) as error:
        raise Refused(
            f"the state of Task.{name} ({type(part).__name__}) cannot be saved as tensors and plain values: "
            f"{str(error).splitlines()[0]}; use one whose state_dict() has only those, or take spec.checkpoint away"
        ) from error


def check_same_training(manifest: Manifest, expected: Position, path: str) -> None:
    """Refuse a position that would mean other samples here."""
    saved = manifest.position
    for field, name in (
        ("global_batch_size", "spec.task.globalBatchSize"),
        ("seed", "spec.task.seed"),
        ("dataset_size", "the length of Task.train_dataset"),
    ):
        was, now = getattr(saved, field), getattr(expected, field)
        if was != now:
            raise Refused(
                f"checkpoint {path} was made with {name} {was} and this run has {now}, so its position would mean "
                f"other samples; set it back to {was}, or delete the directory to start anew"
            )


def check_same_model(saved: Mapping[str, Any], model: Mapping[str, Any], path: str) -> None:
    problems = [f"{name} is missing" for name in model if name not in saved]
    problems += [f"{name} is not in this model" for name in saved if name not in model]
    problems += [
        f"{name} is {tuple(saved[name].shape)} and here {tuple(value.shape)}"
        for name, value in model.items()
        if isinstance(value, Tensor) and name in saved and saved[name].shape != value.shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise Refused(
            f"checkpoint {path} is of another model: {'; '.join(problems[:3])}{more}; go on with the model it was made "
            "with (entrypoint and params), or delete the directory to start anew"
        )
