"""Hugging Face's `Trainer`: goes on from its newest complete checkpoint, saves where all ranks stop, says where it is.

Why apart from the arguments: those are settings, this is a run. What is added is one callback and the argument
`resume_from_checkpoint`; the loop, and what a checkpoint holds, stay Hugging Face's.
"""

import functools
import os
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddpjob_api.page import Phase, Slot
from ddpjob_trainer.checkpoint_folders import lacks_optimizer, names_in, transformers_finds_weights
from ddpjob_trainer.instrumentation import where
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks import huggingface
from ddpjob_trainer.instrumentation.frameworks.interval import Interval, from_rank_0
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.script_checkpoints import trainer_checkpoints

LOAD = "_load_from_checkpoint"


def patch(module: Any, shared: Shared) -> None:
    """Patch `transformers.trainer`; subclasses call the same methods."""
    trainer = module.Trainer
    original = trainer.train
    followed: weakref.WeakSet[Any] = weakref.WeakSet()
    clock = shared.saving.clock

    @shared.guard.setting
    def prepare(made: Any) -> None:
        if made not in followed:
            made.add_callback(callback(shared))
            followed.add(made)
        huggingface.put_accumulation(made.args, shared)
        put_optimizer(made, shared)
        shared.saving.begins()
        clock.ends_itself = clock.loss_is_divided = True

    arrange = shared.guard.setting(functools.partial(begun, shared=shared))
    newest = shared.guard.setting(functools.partial(chosen, shared=shared, base=trainer))

    @transparent
    @functools.wraps(original)
    def train(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        folders = arrange(self) or []
        # before `prepare`: by the program's own save_only_model
        instead = newest(self, resume_from_checkpoint, folders)
        prepare(self)
        begin = resume_from_checkpoint if instead is None else instead.path
        try:
            result = original(self, begin, *args, **kwargs)
        finally:
            clock.ends_itself = clock.loss_is_divided = False
            if len(folders) > 1:
                self.args.output_dir = str(folders[0])
        shared.saving.stop_if_asked()
        return result

    trainer.train = train
    for name, phase in (
        ("_save_checkpoint", Phase.CHECKPOINT),
        (LOAD, Phase.LOADING),
        ("evaluate", Phase.EVALUATION),
        ("predict", Phase.EVALUATION),
    ):
        if hasattr(trainer, name):
            setattr(trainer, name, in_phase(getattr(trainer, name), phase, shared))


def in_phase(original: Any, phase: Phase, shared: Shared) -> Any:
    @transparent
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with shared.saving.phase(phase):
            return original(self, *args, **kwargs)

    return method


@dataclass(frozen=True, kw_only=True)
class Instead:
    """Where a training begins, whatever the program asked for."""

    path: str | None
    """None: at step 0."""


def begun(trainer: Any, shared: Shared) -> list[Path]:
    """Where the trainings with this output directory save, the one that begins now last; it is put in the arguments.

    Empty where the job does not say so: trials of a search have folders of their own by Hugging Face.
    """
    arguments, searching = trainer.args, getattr(trainer, "hp_search_backend", None) is not None
    huggingface.put_checkpoint(arguments, shared)  # the program may have changed them since they were made
    if shared.saving.directory is None or arguments.output_dir is None or searching:
        return []
    folders = list(shared.saving.folders(Path(arguments.output_dir)))
    if len(folders) > 1:
        folders[-1].mkdir(parents=True, exist_ok=True)
        arguments.output_dir = str(folders[-1])
        shared.worker.say(f"training {len(folders)} with {folders[0]} has its checkpoints in {folders[-1]}")
    return folders


def chosen(trainer: Any, asked: Any, folders: list[Path], shared: Shared, base: Any) -> Instead | None:
    """The newest complete checkpoint of this training; None where what the program asked for stands.

    `base`: Hugging Face's own class, of which the trainer's may be a subclass.
    """
    saving = shared.saving
    if not folders:
        return None
    *earlier, output = folders
    only_model = bool(getattr(trainer.args, "save_only_model", False))
    found = saving.newest_of_trainer(output, only_model=only_model)
    if found is None and earlier and asked is True:
        # It goes on from the training before, whose folder has been the same to the program.
        for each in reversed(earlier):
            found = saving.newest_of_trainer(each, only_model=only_model)
            if found is not None:
                break
    if found is None:
        return passed_over(asked, output, shared)
    if (
        not asked
        and not transformers_finds_weights(found)
        and getattr(type(trainer), LOAD, None) is getattr(base, LOAD, None)
    ):
        shared.notices.warn(
            f"checkpoint {found} has its weights in a way that Hugging Face's Trainer does not load, so the training begins "
            f"at step 0; let the script's Trainer override {LOAD}, or pass resume_from_checkpoint"
        )
        return None
    if isinstance(asked, str) and Path(asked).absolute() != found.absolute():
        shared.notices.override(
            setting="checkpoint", asked=asked, resource=str(found), where=where.caller(), applied=True
        )
    shared.worker.say(f"Hugging Face's Trainer goes on from {found}")
    if only_model and lacks_optimizer(names_in(found)):
        shared.notices.warn(
            f"checkpoint {found} has no optimizer (save_only_model=True), so optimizer and schedule begin anew at its step"
        )
    return Instead(path=str(found))


def passed_over(asked: Any, output: Path, shared: Shared) -> Instead | None:
    """None of its checkpoints is complete, so the newest (`True`, `get_last_checkpoint`) is not either.

    A path elsewhere is the program's own business, and so is `True` where there is nothing at all.
    """
    if isinstance(asked, (str, os.PathLike)):
        newest = output.absolute() in Path(asked).absolute().parents
    else:
        newest = asked is True and bool(trainer_checkpoints(output))
    if not newest:
        return None
    shared.worker.say(f"Hugging Face's Trainer begins at step 0: no checkpoint in {output} is complete")
    return Instead(path=None)


def put_optimizer(trainer: Any, shared: Shared) -> None:
    """Checkpoints with the optimizer, where the job goes on from them: without it, it begins anew in each generation.

    A model that transformers shards while loading it cannot be saved with it, by Hugging Face's own rule.
    """
    saving, arguments = shared.saving, trainer.args
    if saving.spec is None or not getattr(arguments, "save_only_model", False):
        return
    if saving.directory is None or getattr(trainer, "is_distributed_loading_by_transformers", False):
        shared.notices.warn(
            "spec.checkpoint: save_only_model=True leaves the optimizer out of the checkpoints, so a later generation goes "
            "on with a new optimizer and schedule, if at all; let the script save both"
        )
        return
    shared.notices.override(
        setting="checkpoint", asked="save_only_model=True", resource="save_only_model=False", where=where.caller(),
        applied=True,
    )  # fmt: skip
    arguments.save_only_model = False


def callback(shared: Shared) -> Any:
    """What the trainer calls: its class can only be made when transformers is there."""
    saving, page = shared.saving, shared.worker.page
    kind = sys.modules["transformers.trainer_callback"].TrainerCallback
    every = saving.spec.every if saving.spec is not None and saving.directory is not None else None
    interval = Interval(every) if every is not None else None
    measuring, setting = shared.guard.measuring, shared.guard.setting
    put_saved = measuring(saving.saved)

    @setting
    def restart_interval() -> None:
        if interval is not None:
            interval.saved()

    class DDPJobCallback(kind):  # type: ignore[misc, valid-type]
        """Progress, stop and intervals of the job that this training is. The last of the trainer's callbacks."""

        stopping = False

        @measuring
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            page[Slot.TOTAL_STEPS] = saving.before + state.max_steps
            if state.global_step:
                saving.went_on(state.global_step)

        @setting
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            due = interval is not None and interval.due(state.global_step, from_rank_0(args.device))
            if saving.clock.stop_requested:
                self.stopping = control.should_training_stop = True
                control.should_save = saving.directory is not None
                control.should_evaluate = False  # with save_strategy="best" its outcome would cancel the save
            elif due:
                control.should_save = True
            if state.epoch is not None:
                page[Slot.EPOCH] = int(state.epoch)
            return control

        @setting
        def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            """Also called where a stop breaks the epoch off: no evaluation in its middle, no second save in place."""
            if self.stopping:
                control.should_save = control.should_evaluate = False
            return control

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            restart_interval()
            put_saved(state.global_step)

    return DDPJobCallback()
