"""The DDP settings in effect, read back from the process group and from the DDP object.

Why apart: what the resource asked for is known; what torch really runs with is what counts, and it is only in torch's
objects. Must not: copy a value from the settings, or keep torch's objects alive.
"""

import weakref
from typing import Any

from ddpjob_api.codec import render
from ddpjob_api.page import Fact, Slot
from ddpjob_api.report import BACKEND_MAX, BUCKETS_MAX, InEffect
from ddpjob_api.spec import DDP
from ddpjob_trainer.instrumentation.clock import Clock, monotonic
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.instrumentation.reducer import Reducer
from ddpjob_trainer.worker import Worker

MIB = 1024 * 1024
SHARDED = frozenset({"DTensor", "FlatParameter"})
"""Classes of parameters that are a part of a whole: FSDP2 and tensor parallelism, FSDP1."""


class Effect:
    """What is known of the process group and of the first model that was wrapped."""

    def __init__(self, worker: Worker, notices: Notices, clock: Clock, guard: Guard) -> None:
        self._worker = worker
        self._notices = notices
        self._clock = clock
        self._c10d: Any = None
        self._group: dict[str, Any] = {}
        self._model: dict[str, Any] = {}
        self._first: weakref.ref[Any] | None = None
        self._parameters: dict[int, frozenset[int]] = {}
        """Of each DDP model that lives, by `id`: a step must not walk through them."""
        self._reducers: list[Reducer] = []
        """Of models that live; each is read a last time when its model goes."""
        self._finished_count = 0
        self._counts_collectives = self._all_count = True
        self._counts_reductions = False
        """Some model has a reducer that counts."""
        self._sharded = False
        self._goodbye = guard.measuring(self._model_goes)
        notices.changed = self._publish_later
        clock.collectives = self.collectives
        clock.trains_a_model = self.trains_a_model

    def group_made(self, c10d: Any) -> None:
        """The default process group is there."""
        self._c10d, self._counts_collectives, self._all_count = c10d, True, True
        page = self._worker.page
        page[Slot.PROCESS_GROUP_AT] = monotonic()
        page[Slot.WORLD_SIZE] = c10d.get_world_size()
        self.publish()

    def model_made(self, model: Any) -> Reducer | None:
        """A DDP object is there; None where nothing of C++ reduces for it (`optimize_ddp="python_reducer"`)."""
        reducer = None
        if getattr(model, "logger", None) is not None and not getattr(model, "_use_python_reducer", False):
            reducer = Reducer(self._worker, model)
            self._reducers.append(reducer)
            self._counts_reductions = True
            # Torch's numbers outlive the Python object by this one call: at the end of the job it is usually gone.
            weakref.finalize(model, self._goodbye, reducer).atexit = False
        page = self._worker.page
        self._parameters[id(model)] = frozenset(map(id, model.module.parameters()))
        weakref.finalize(model, self._parameters.pop, id(model), None).atexit = False
        self._clock.model_made()
        page[Slot.DDP_MODELS] = self._clock.models
        if self._first is None:
            page[Slot.DDP_AT] = monotonic()
            self._first = weakref.ref(model)
            self.publish()
        return reducer

    def trains_a_model(self, optimizer: Any) -> bool:
        """Whether an optimizer changes parameters of a DDP model: their training, also where it goes around DDP."""
        models = tuple(self._parameters.values())
        held = (each for group in optimizer.param_groups for each in group["params"])
        return any(each.requires_grad and any(id(each) in model for model in models) for each in held)

    def publish(self) -> None:
        """Read everything back and put it on the page (`Fact.DDP`)."""
        for reducer in self._reducers:
            sizes = reducer.read()
            if reducer is self._reducers[0] and sizes:
                self._model["bucket_bytes"] = sizes[:BUCKETS_MAX]
                self._worker.page[Slot.BUCKETS] = len(sizes)
        model = self._first() if self._first is not None else None
        if model is not None:
            self._model.update(settings_of(model))
        self._group = settings_of_group(self._c10d) or self._group
        counts = [self._finished_count, *(reducer.count for reducer in self._reducers)]
        found = InEffect(
            **self._group,
            **self._model,
            gradient_accumulation_steps=self._clock.accumulation,
            all_reduces=sum(counts) if self._counts_reductions else None,
            overrides=tuple(self._notices.overrides),
            warnings=tuple(self._notices.warnings),
            not_resuming=self._notices.begins_anew,
        )
        self._worker.put_fact(Fact.DDP, render(found))

    def first_step(self, optimizer: Any) -> None:
        """Training runs; say so where it runs without a DDP object because the parameters are sharded."""
        if self._first is not None or not asks_of_ddp(self._worker.settings):
            return
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        if any(type(each).__name__ in SHARDED for each in parameters):
            self._sharded = True
            self._notices.warn(
                "spec.ddp: the program shards its parameters (FSDP, tensor parallelism) and has no "
                "DistributedDataParallel, so of these settings only backend and timeoutSeconds are in effect "
                "(docs: running-a-script, when DDP is the wrong tool)"
            )

    def alone(self) -> None:
        """Say so where ranks train that have never met."""
        ranks = self._worker.nodes * self._worker.processes_per_node
        if self._c10d is None and ranks > 1:
            self._notices.warn(
                f"each of the {ranks} ranks trains a model of its own: the program makes optimizer steps and has no "
                "process group, so spec.ddp has no effect; let it call torch.distributed.init_process_group and wrap "
                "the model in DistributedDataParallel, or give the job one rank"
            )

    def collective_sequence(self) -> int:
        """Collectives that the default group has begun; 0 where its backend does not count."""
        # Asked each time: a group that is destroyed may live on, where a model of it does.
        group = self._c10d.GroupMember.WORLD if self._c10d is not None else None
        if group is None or not self._counts_collectives:
            return 0
        try:
            number: int = group._get_sequence_number_for_group()
            return number
        except RuntimeError:
            self._counts_collectives = False
            return 0

    def collectives(self) -> int:
        """Collectives that this rank has begun in any group, so that a step after none of them may be its own.

        0 where that tells nothing: where there was no DDP model, or is no other rank, all steps count, and some
        backends do not say. Whether a model still lives is not asked: each rank would see it end at another time.
        """
        if not self._clock.models or not self._all_count or self._worker.page[Slot.WORLD_SIZE] <= 1:
            return 0
        try:
            return sum([group._get_sequence_number_for_group() for group in self._c10d._world.pg_map])
        except RuntimeError:
            self._all_count = False  # one does not; the default group may
            return 0

    def finish(self) -> None:
        """The program has ended."""
        if self._clock.steps:
            self.alone()
        wanted = self._worker.settings
        plain = self._first is None and not self._sharded
        if plain and self._clock.steps and self._c10d is not None and asks_of_ddp(wanted):
            self._notices.warn(
                "spec.ddp: only backend and timeoutSeconds can be in effect: the program made "
                f"{self._clock.steps} optimizer steps and wrapped no model in DistributedDataParallel"
            )
        self.publish()

    def _model_goes(self, reducer: Reducer) -> None:
        self.publish()
        self._reducers.remove(reducer)
        self._finished_count += reducer.count

    def _publish_later(self) -> None:
        """A notice that comes when training runs must not wait for the end."""
        if self._clock.steps:
            self.publish()


def asks_of_ddp(wanted: DDP) -> bool:
    """Whether the resource sets anything that only a DDP object can have."""
    group = DDP(backend=wanted.backend, timeout=wanted.timeout, overrides=wanted.overrides)
    return wanted != group


def settings_of(model: Any) -> dict[str, Any]:
    """A DDP object's own values."""
    default_cap = getattr(model, "bucket_bytes_cap_default", False)
    return {
        "bucket_cap_mb": None if default_cap else model.bucket_bytes_cap / MIB,
        "broadcast_buffers": bool(model.broadcast_buffers),
        "find_unused_parameters": bool(model.find_unused_parameters),
        "static_graph": bool(model.static_graph),
        "gradient_as_bucket_view": bool(model.gradient_as_bucket_view),
    }


def settings_of_group(c10d: Any) -> dict[str, Any]:
    """The default process group's values; nothing where it is gone."""
    if c10d is None or not c10d.is_initialized():
        return {}
    group = c10d.GroupMember.WORLD
    return {
        "backend": c10d.get_backend()[:BACKEND_MAX],
        "timeout": timeout_of(group),
        "world_size": c10d.get_world_size(),
    }


def timeout_of(group: Any) -> float | None:
    """Seconds after which a collective of the group fails; None where its backend does not say (MPI)."""
    for device in group._device_types:
        backend = group._get_backend(device)
        # TORCH_DISTRIBUTED_DEBUG=DETAIL wraps the backend.
        backend = getattr(backend, "wrapped_pg", backend)
        options = getattr(backend, "options", None)
        if options is not None:
            return float(options._timeout.total_seconds())
    return None
