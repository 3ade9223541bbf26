"""Lightning's `Trainer.fit`: goes on from the newest complete checkpoint, saves where all ranks stop, says where it is.

Why apart from the settings: this is a run. Two callbacks of Lightning's own kind are added to the trainer: ours, and
its `ModelCheckpoint` where the resource names an interval.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddpjob_api.page import Phase, Slot
from ddpjob_trainer.checkpoint_files import TRAINING_KEY
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.interval import Interval, from_rank_0
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.script_checkpoints import LIGHTNING_FOLDER


def folder(saving: Saving, directory: Path) -> Path:
    """Where the `fit` that runs now saves."""
    return directory / (LIGHTNING_FOLDER if saving.fits < 2 else f"{LIGHTNING_FOLDER}-{saving.fits}")


def put_root(arguments: dict[str, Any], saving: Saving) -> None:
    """Lightning's own default for its files is the working directory, which goes with the pod."""
    if saving.directory is not None and arguments.get("default_root_dir") is None:
        arguments["default_root_dir"] = str(saving.directory / LIGHTNING_FOLDER)


@contextmanager
def going_on(trainer: Any, asked: Any, shared: Shared) -> Iterator[None]:
    """A `fit` that goes on from the newest complete checkpoint, where the program gives no `ckpt_path` or "last".

    By "last" Lightning knows only files of that name, and chooses it itself where an `OnExceptionCheckpoint` is there; what
    it finds is used where the job has nothing. A path by `Trainer.ckpt_path` is the program's own.

    Lightning calls `resume_start` when its process group is there, and the ranks need one to agree: what they find
    before may differ, because each sees a shared volume through a cache of its own.
    """
    connector = getattr(trainer, "_checkpoint_connector", None)
    named = asked not in (None, "last") or getattr(connector, "_user_managed", False)
    if shared.saving.directory is None or named or connector is None:
        yield
        return
    original, newest = connector.resume_start, shared.guard.setting(shared.saving.newest_of_lightning)

    @transparent
    def resume_start(checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = None if back_to_its_own(checkpoint_path) else newest()
        if found is not None:
            shared.worker.say(f"Lightning goes on from {found}")
        return original(found or checkpoint_path, *args, **kwargs)

    connector.resume_start = resume_start
    try:
        yield
    finally:
        del connector.resume_start


def back_to_its_own(path: Any) -> bool:
    """Whether Lightning loads what it has put aside itself, to try learning rates or batch sizes and come back."""
    return path is not None and Path(path).name.startswith((".lr_find_", ".scale_batch_size_"))


def put_callbacks(trainer: Any, package: str, shared: Shared) -> None:
    """Ours and its checkpoint callbacks, instead of those of the `fit` before: each `fit` has a folder of its own.

    Lightning wants checkpoint callbacks at the end of the list.
    """
    others = [each for each in trainer.callbacks if not getattr(each, "of_ddpjob", False)]
    trainer.callbacks[:] = [callback(package, shared), *others]
    saving = shared.saving
    spec = saving.spec
    if saving.directory is None or spec is None or (spec.every_steps is None and spec.every is None):
        return
    kind = sys.modules[f"{package}.callbacks"].ModelCheckpoint
    files: dict[str, Any] = {
        # "step" is always there to be monitored: the newest are kept.
        "dirpath": folder(saving, saving.directory), "filename": "ddpjob-{epoch}-{step}", "monitor": "step", "mode": "max",
        "save_top_k": spec.keep,
    }  # fmt: skip
    made = []
    if spec.every_steps is not None:
        by_steps = kind(**files, every_n_train_steps=spec.every_steps)
        by_steps.of_ddpjob = True
        made.append(by_steps)
    if spec.every is not None:
        made.append(timed(kind, Interval(spec.every), files, shared))
    trainer.callbacks += made


def timed(kind: Any, interval: Interval, files: dict[str, Any], shared: Shared) -> Any:
    """Lightning's `ModelCheckpoint` at our interval; its own (`train_time_interval`) lets the ranks meet at each batch."""

    @shared.guard.setting
    def due(trainer: Any) -> bool:
        return interval.due(trainer.global_step, from_rank_0(trainer.strategy.root_device))

    @shared.guard.setting
    def saved() -> None:
        interval.saved()

    class DDPJobTimedCheckpoint(kind):  # type: ignore[misc]
        """Saves when the interval says so."""

        of_ddpjob = True

        def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any, **named: Any) -> None:
            if due(trainer):
                super().on_train_batch_end(trainer, module, *rest, **named)
                saved()

    return DDPJobTimedCheckpoint(**files, every_n_train_steps=1)


def callback(package: str, shared: Shared) -> Any:
    """What the trainer calls: its class can only be made when Lightning is there."""
    saving, page = shared.saving, shared.worker.page
    training = saving.fits
    kind = sys.modules[f"{package}.callbacks"].Callback
    measuring = shared.guard.measuring
    enter, leave = measuring(saving.clock.enter), measuring(saving.clock.leave)

    @measuring
    def put_epoch(epoch: int) -> None:
        page[Slot.EPOCH] = epoch

    class DDPJobCallback(kind):  # type: ignore[misc, valid-type]
        """Progress, stop and phases of the job that this training is."""

        of_ddpjob = True

        @measuring
        def on_train_start(self, trainer: Any, module: Any) -> None:
            if trainer.global_step:
                saving.went_on(trainer.global_step)
            total = trainer.max_steps if trainer.max_steps > 0 else trainer.estimated_stepping_batches
            if 0 < total < float("inf"):
                page[Slot.TOTAL_STEPS] = saving.before + total

        def on_train_batch_end(self, trainer: Any, module: Any, *rest: Any) -> None:
            put_epoch(trainer.current_epoch)
            if saving.clock.stop_requested:
                if saving.directory is not None:
                    step = trainer.global_step
                    name = f"ddpjob-stop-epoch={trainer.current_epoch}-step={step}.ckpt"
                    trainer.save_checkpoint(str(folder(saving, saving.directory) / name))
                saving.clock.stop()

        def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
            """Says whose it is, also in a file of the program's own."""
            if saving.directory is not None and training > 1:
                checkpoint[TRAINING_KEY] = training

        def on_validation_start(self, trainer: Any, module: Any) -> None:
            enter(Phase.EVALUATION)

        def on_validation_end(self, trainer: Any, module: Any) -> None:
            leave()

    return DDPJobCallback()


def saved(trainer: Any, path: Any, saving: Saving) -> None:
    """`Trainer.save_checkpoint` has written a file."""
    if Path(path).suffix == ".ckpt":
        saving.saved(trainer.global_step)
