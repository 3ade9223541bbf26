"""`Accelerator`: accumulation, the arguments of DDP, backend and time-out, put where a user would have written them.

Why apart: one framework, one file.

Accumulation belongs to the framework only in a loop that uses `accumulate`. `Accelerator.backward` divides the loss by
the number of steps in any loop, so the resource's number is taken back at the first backward pass outside of
`accumulate`: a program that accumulates by hand, or not at all, would otherwise train with smaller gradients, silently.
Hugging Face's Trainer accumulates itself and gives Accelerate a plugin of one step; that one is left alone.
"""

import dataclasses
import functools
import inspect
import os
import weakref
from typing import Any

from ddpjob_api.names import WorkerEnv
from ddpjob_api.page import Phase, Slot
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.frameworks.accelerate_marks import Marks
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.instrumentation.settings import ABSENT

VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""Wins over the argument inside Accelerate."""

FIELDS = {
    "bucketCapMB": "bucket_cap_mb",
    "broadcastBuffers": "broadcast_buffers",
    "findUnusedParameters": "find_unused_parameters",
    "staticGraph": "static_graph",
    "gradientAsBucketView": "gradient_as_bucket_view",
}


def patch(module: Any, shared: Shared) -> None:
    """Patch `accelerate.accelerator`."""
    accelerator = module.Accelerator
    original_init, original_accumulate, original_backward = (
        accelerator.__init__,
        accelerator.accumulate,
        accelerator.backward,
    )
    original_save, original_load = accelerator.save_state, accelerator.load_state
    signature = inspect.signature(original_init)
    asked_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    """The program's own number, of accelerators that have the resource's and have not used `accumulate` yet."""
    number = accelerator.gradient_accumulation_steps

    marks = Marks(shared)
    went_on = shared.guard.measuring(shared.saving.went_on)

    @shared.guard.setting
    def arrange(*args: Any, **kwargs: Any) -> tuple[inspect.BoundArguments, int | None] | None:
        """The call to make instead, and the program's own number of steps; None where it goes through as it is."""
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # Accelerate's own words
        shared.learn_backend()  # first: it may bring the device
        if not module.PartialState._shared_state:
            shared.use_cpu(chosen=bool(call.arguments.get("cpu")))
        steps = put_accumulation(module, call.arguments, shared)
        put_handlers(module, call.arguments, shared)
        return call, steps

    @transparent
    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        arranged = arrange(self, *args, **kwargs)
        if arranged is None:
            original_init(self, *args, **kwargs)
            marks.follow(self)
            return
        call, steps = arranged
        original_init(*call.args, **call.kwargs)
        marks.follow(self)
        if steps is not None:
            asked_steps[self] = steps

    @shared.guard.setting
    def tell_what_stays(made: Any) -> None:
        own, wanted = asked_steps.pop(made), made.gradient_accumulation_steps
        if own != wanted:
            shared.notices.warn(
                f"spec.ddp.gradientAccumulationSteps: {wanted} is in effect instead of the program's {own}, by which it "
                "still counts what it counts itself: optimizer steps of an epoch, max_train_steps, the length of a "
                "schedule, where it resumes; give it the same number, which is in the environment variable "
                f"{WorkerEnv.GRADIENT_ACCUMULATION_STEPS}"
            )

    @transparent
    @functools.wraps(original_accumulate)
    def accumulate(self: Any, *models: Any) -> Any:
        if self in asked_steps:
            tell_what_stays(self)
        shared.saving.clock.loss_is_divided = True
        return original_accumulate(self, *models)

    @shared.guard.setting
    def take_back(made: Any) -> None:
        steps = asked_steps.pop(made, None)
        if steps is not None and steps != made.gradient_accumulation_steps:
            made.gradient_accumulation_steps = steps
            shared.notices.warn(
                "spec.ddp.gradientAccumulationSteps: the program calls accelerator.backward outside of `with "
                f"accelerator.accumulate(model):`, so its own number of steps ({steps}) stays; let its loop use "
                "accumulate, or give the resource the number of the loop"
            )

    @transparent
    @functools.wraps(original_backward)
    def backward(self: Any, loss: Any, **kwargs: Any) -> Any:
        if asked_steps:
            take_back(self)
        return original_backward(self, loss, **kwargs)

    @transparent
    @functools.wraps(number.fset)
    def assign(self: Any, steps: Any) -> None:
        asked_steps.pop(self, None)  # said again, later: there is nothing to take back
        number.fset(self, steps)

    @shared.guard.measuring
    def saved() -> None:
        shared.saving.saved(int(shared.worker.page[Slot.STEP]))

    @transparent
    @functools.wraps(original_save)
    def save_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        with shared.saving.phase(Phase.CHECKPOINT):
            result = original_save(self, *args, **kwargs)
        marks.take_away(self)
        saved()
        return result

    @transparent
    @functools.wraps(original_load)
    def load_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        with shared.saving.phase(Phase.LOADING):
            result = original_load(self, *args, **kwargs)
        went_on()
        return result

    accelerator.save_state = save_state
    accelerator.load_state = load_state
    accelerator.__init__ = __init__
    accelerator.gradient_accumulation_steps = number.setter(assign)
    accelerator.accumulate = accumulate
    accelerator.backward = backward


def patch_state(module: Any, shared: Shared) -> None:
    """Patch `accelerate.state`: the first `PartialState` is every later one and every `Accelerator`'s.

    On a CPU it makes a process group only where its `cpu` is true; the variable is read by `Accelerator` alone.
    """
    state = module.PartialState
    original = state.__init__

    @shared.guard.setting
    def meet(*, cpu: bool) -> bool:
        """Whether the ranks meet on the CPU, by the program's wish or for want of anything else."""
        if state._shared_state:
            return cpu
        shared.learn_backend()
        return shared.use_cpu(chosen=cpu) or cpu

    @transparent
    @functools.wraps(original)
    def __init__(self: Any, cpu: bool = False, **kwargs: Any) -> None:  # noqa: N807
        on_cpu = meet(cpu=cpu)
        original(self, cpu if on_cpu is None else on_cpu, **kwargs)

    state.__init__ = __init__


def put_accumulation(module: Any, arguments: dict[str, Any], shared: Shared) -> int | None:
    """Put the resource's number in; returns the program's own, None where nothing was put."""
    plugin = arguments.get("gradient_accumulation_plugin")
    if plugin is not None:
        own = plugin.num_steps
        if own == 1 or own is None:
            return None
        asked: Any = own
    else:
        given = os.environ.get(VARIABLE) or arguments.get("gradient_accumulation_steps")
        own = int(given) if given is not None else 1
        asked = own if given is not None else ABSENT
    wanted = shared.settings.over_framework("gradientAccumulationSteps", asked)
    if wanted is ABSENT:
        return None
    if plugin is None:
        plugin = module.GradientAccumulationPlugin(num_steps=wanted)
    arguments["gradient_accumulation_plugin"] = dataclasses.replace(plugin, num_steps=wanted)
    arguments.pop("gradient_accumulation_steps", None)
    return int(own)


def put_handlers(module: Any, arguments: dict[str, Any], shared: Shared) -> None:
    handlers = list(arguments.get("kwargs_handlers") or ())
    changed = put_handler(handlers, module.DistributedDataParallelKwargs, FIELDS, shared)
    if not module.PartialState._shared_state:
        # Once the process group is there, its arguments change nothing.
        names = {"backend": "backend", "timeoutSeconds": "timeout"}
        changed |= put_handler(handlers, module.InitProcessGroupKwargs, names, shared)
    if changed:
        arguments["kwargs_handlers"] = handlers


def put_handler(handlers: list[Any], kind: Any, fields: dict[str, str], shared: Shared) -> bool:
    """Change the handler of that class among the program's, or add one; True where anything changed."""
    place = next((place for place, handler in enumerate(handlers) if type(handler) is kind), None)
    given = handlers[place] if place is not None else kind()
    # The default time-out follows the backend.
    default = kind(backend=given.backend) if "backend" in fields else kind()
    defaults = {**vars(default), **({"backend": "nccl"} if "backend" in fields else {})}
    values = {}
    for setting, name in fields.items():
        asked = getattr(given, name)
        value = shared.settings.over_framework(setting, ABSENT if asked == defaults[name] else asked)
        if value is not ABSENT:
            values[name] = value
    if not values:
        return False
    if place is None:
        handlers.append(kind(**values))
    else:
        if "backend" in values and given.timeout == default.timeout:
            values.setdefault("timeout", None)  # follows the backend again
        handlers[place] = dataclasses.replace(given, **values)
    return True
