"""`DistributedDataParallel`, patched in place on the class: its arguments, and each forward pass.

Why apart: one patched module, one file. State per model stands in a dictionary here, nothing on the object, so that
pickles and copies do not know us.
"""

import functools
import inspect
import weakref
from typing import Any

from ddpjob_api.page import Slot
from ddpjob_trainer.instrumentation import device
from ddpjob_trainer.instrumentation.clock import Clock, monotonic
from ddpjob_trainer.instrumentation.effect import Effect
from ddpjob_trainer.instrumentation.frames import transparent
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.reducer import FULLY_SAMPLED, Reducer
from ddpjob_trainer.instrumentation.settings import Settings
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.worker import Worker

SEQUENCE = int(Slot.COLLECTIVE_SEQUENCE)
SAMPLES, TOKENS = int(Slot.SAMPLES), int(Slot.TOKENS)


class Watched:
    """What is remembered of one model."""

    __slots__ = ("first_window", "meets", "rebuilt", "reducer", "synced", "unused_known")

    def __init__(self, reducer: Reducer, *, meets: bool) -> None:
        self.reducer = reducer
        self.meets = meets
        """Its forward passes begin with a broadcast of buffers, in which ranks wait for each other."""
        self.rebuilt = False
        self.first_window: int | None = None
        """Optimizer steps that had been made when its first forward pass with gradients began."""
        self.synced = False
        """The newest forward pass was prepared for synchronisation."""
        self.unused_known = False
        """A sample has shown that findUnusedParameters is needed."""


def patch(
    module: Any,
    worker: Worker,
    settings: Settings,
    verdicts: Verdicts,
    clock: Clock,
    effect: Effect,
    guard: Guard,
) -> None:
    """Patch `torch.nn.parallel.distributed`."""
    ddp = module.DistributedDataParallel
    torch = module.torch
    watched: dict[int, Watched | None] = {}
    """By `id`, as long as the model lives: a class with `__eq__` may have no hash. None: it cannot be read."""
    original_init, original_forward, original_hook = ddp.__init__, ddp._pre_forward, ddp.register_comm_hook
    original_static = ddp._set_static_graph
    signature = inspect.signature(original_init)
    slots = worker.page.slots
    grad_enabled, tensor, memory = torch.is_grad_enabled, torch.Tensor, torch.cuda

    @guard.setting
    def arrange(*args: Any, **kwargs: Any) -> inspect.BoundArguments | None:
        """The call to make instead; None where this one goes through as it is."""
        try:
            call = signature.bind(*args, **kwargs)
        except TypeError:
            return None  # torch's own words
        verdicts.learn_model(torch, call.arguments["module"], backend_of(module, call.arguments))
        settings.over_ddp(call)
        return call

    @transparent
    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        call = arrange(self, *args, **kwargs)
        if call is None:
            original_init(self, *args, **kwargs)
        else:
            original_init(*call.args, **call.kwargs)
        watch(self)

    @guard.measuring
    def watch(model: Any) -> Watched | None:
        """Begin to observe a model; None where it has no C++ reducer that could be asked."""
        reducer, state = effect.model_made(model), None
        # Without a reducer, torch's __init__ may have ended early: delay_all_reduce_named_params of all parameters.
        if reducer is not None:
            meets = bool(model.broadcast_buffers and model.modules_buffers)
            state = Watched(reducer, meets=meets)
        watched[id(model)] = state
        weakref.finalize(model, watched.pop, id(model), None).atexit = False
        return state

    @transparent
    @functools.wraps(original_forward)
    def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_dynamo_compiling():
            return original_forward(self, *inputs, **kwargs)
        if clock.unseen_step is not None:
            clock.catch_up()
        # An evaluation belongs to the step before it: other weights may be in place, and rank 0 may be alone in it.
        if clock.stop_due and grad_enabled():
            clock.end()  # the program's own callbacks run here: what they raise is the program's
        state = before(self, inputs, kwargs) if worker.measured else None
        if state is None:
            return original_forward(self, *inputs, **kwargs)
        began = monotonic() if state.meets else 0.0
        result = original_forward(self, *inputs, **kwargs)
        if worker.measured and (state.synced or state.meets or not state.rebuilt):
            after(self, state, began)
        return result

    def before(model: Any, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Watched | None:
        """A forward pass begins; None where nothing is to be read afterwards."""
        try:
            state = watched[id(model)] if id(model) in watched else watch(model)
            if state is None:
                return None
            if not grad_enabled():
                clock.evaluate()
                return None
            if state.first_window is None:
                begin_training(model, state)
            if not model.require_backward_grad_sync and model.static_graph and first_window(state):
                # pytorch#143580: crashes otherwise. no_sync() puts its old value back when it ends.
                verdicts.handled("static-graph-accumulation")
                model.require_backward_grad_sync = True
            state.synced = model.require_backward_grad_sync
            reducer = state.reducer
            clock.forward(synced=state.synced, share=reducer.exposed_share, on_device=reducer.on_device)
            slots[SEQUENCE] = effect.collective_sequence()
            if not worker.steps_owned:
                count_samples(inputs, kwargs)
            return state
        except Exception as error:
            if not guard.ours(error):
                raise
            return None

    def after(model: Any, state: Watched, began: float) -> None:
        """What torch has written and done in `_pre_forward`."""
        try:
            if state.meets and model.require_forward_param_sync:
                clock.waited(monotonic() - began)
            if state.synced and state.reducer.prepared(clock.backward_seconds):
                read_sample(model, state)
            if not state.rebuilt and model._has_rebuilt_buckets:
                state.rebuilt = True
                effect.publish()
        except Exception as error:
            if not guard.ours(error):
                raise

    def read_sample(model: Any, state: Watched) -> None:
        """Torch has just written one: a moment to look at what is dear to ask."""
        if model.device_type == "cuda":
            device.put_memory(slots, memory)
        if not state.unused_known:
            ask_unused(model, state)

    def first_window(state: Watched) -> bool:
        """Whether no optimizer step has been made since this model's first forward pass with gradients."""
        return state.first_window == clock.all_steps and not worker.steps_owned

    def begin_training(model: Any, state: Watched) -> None:
        state.first_window = clock.all_steps
        clock.training += 1
        weakref.finalize(model, end_training).atexit = False

    def end_training() -> None:
        clock.training -= 1

    def ask_unused(model: Any, state: Watched) -> None:
        """Every sample is looked at: a part may be skipped in some iterations only."""
        if not model.find_unused_parameters or model.static_graph:
            return
        if state.reducer.unused_bytes:
            state.unused_known = True
            verdicts.learn_unused()
        elif state.reducer.count >= FULLY_SAMPLED:
            verdicts.learn_nothing_unused()

    def count_samples(inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Samples: the first dimension of the first tensor. Tokens: the elements of a matrix of whole numbers."""
        if inputs and isinstance(inputs[0], tensor):
            found = inputs[0]
        else:
            found = first_tensor(inputs or kwargs.values(), tensor)
            if found is None:
                return
        shape = found.shape
        if shape:
            slots[SAMPLES] += shape[0]
            if len(shape) == 2 and not found.is_floating_point():
                slots[TOKENS] += shape[0] * shape[1]

    @guard.setting
    def learn_hook(model: Any, hook: Any) -> None:
        verdicts.learn_hook(getattr(hook, "__name__", ""), module.dist.get_backend(model.process_group))

    @transparent
    @functools.wraps(original_hook)
    def register_comm_hook(self: Any, state: object, hook: Any) -> Any:
        learn_hook(self, hook)
        return original_hook(self, state, hook)

    @guard.setting
    def stays_dynamic(model: Any) -> bool:
        """Whether the resource wants no static graph where the program does, after `__init__` (which sets it like this)."""
        return id(model) in watched and settings.over_framework("staticGraph", asked=True) is False

    @transparent
    @functools.wraps(original_static)
    def _set_static_graph(self: Any) -> None:
        if not stays_dynamic(self):
            original_static(self)

    @guard.measuring
    def last_look() -> None:
        """The error that ends a program is often that of an allocation, and it comes after the newest sample."""
        if memory.is_initialized():
            device.put_memory(slots, memory)

    worker.exit_callbacks.append(last_look)
    ddp.__init__ = __init__
    ddp._pre_forward = _pre_forward
    ddp.register_comm_hook = register_comm_hook
    ddp._set_static_graph = _set_static_graph


def backend_of(module: Any, arguments: dict[str, Any]) -> str:
    """The backend of the group a model is about to be wrapped for; empty where there is none."""
    group = arguments.get("process_group")
    return str(module.dist.get_backend(group)) if module.dist.is_initialized() else ""


def first_tensor(values: Any, tensor: type) -> Any:
    """The first tensor among values, or inside the first container among them."""
    for value in values:
        if isinstance(value, tensor):
            return value
    for value in values:
        inner = (
            value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        )
        for each in inner:
            if isinstance(each, tensor):
                return each
    return None
