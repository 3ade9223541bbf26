"""Settings into any program, and numbers out of it, without a change to the program.

How it works: when the program imports torch, six places of it are patched right after their modules ran, in place on
the classes, so that identity, subclasses, pickles and aliases stay as they are: `DistributedDataParallel.__init__` and
`_pre_forward`, `init_process_group`, `torch.autograd.backward`, the global hooks of optimizer steps, and `torch.save`. A
program that never imports torch pays nothing.

Must not: import torch by itself, wait for a device, put anything on the program's objects, or let its own failure
become the program's (a patch that does not fit the torch at hand is left out, one that fails later stands aside, and
the log says so: `guard.py`).
"""

from typing import Any

from ddpjob_api.page import Fact, Slot
from ddpjob_trainer.instrumentation import (
    autograd,
    compiler,
    ddp,
    frameworks,
    optimizer,
    process_group,
    reading,
    recomputation,
    serialization,
    spawning,
)
from ddpjob_trainer.instrumentation.clock import Clock, monotonic
from ddpjob_trainer.instrumentation.effect import Effect
from ddpjob_trainer.instrumentation.frameworks.saving import Saving
from ddpjob_trainer.instrumentation.frameworks.shared import Shared
from ddpjob_trainer.instrumentation.guard import Guard
from ddpjob_trainer.instrumentation.imports import PostImport
from ddpjob_trainer.instrumentation.notices import Notices
from ddpjob_trainer.instrumentation.settings import Settings
from ddpjob_trainer.instrumentation.verdicts import Verdicts
from ddpjob_trainer.worker import Worker


def install(worker: Worker) -> None:
    """Patch torch when the program imports it (at once, where it is imported already).

    Raises:
        Refused: the settings cannot be, whatever the program does.
    """
    notices = Notices(worker)
    guard = Guard(worker, notices)
    guard.setting(put_hooks)(worker, notices, guard)


def put_hooks(worker: Worker, notices: Notices, guard: Guard) -> None:
    """Say what happens after the import of which module."""
    verdicts = Verdicts(worker, notices)
    clock = Clock(worker, notices)
    effect = Effect(worker, notices, clock, guard)
    saving = Saving(worker, notices, clock, guard)
    settings = Settings(worker.settings, notices)
    worker.exit_callbacks.append(guard.measuring(effect.finish))

    def failed(module: str, error: Exception) -> None:
        notices.warn(f"{module} of this torch is not instrumented: {type(error).__name__}: {error}")

    def importing() -> None:
        worker.page[Slot.TORCH_IMPORT_AT] = monotonic()

    def imported(torch: Any) -> None:
        worker.page[Slot.TORCH_IMPORTED_AT] = monotonic()
        worker.put_fact(Fact.TORCH, str(torch.__version__))

    hooks = PostImport(failed)
    hooks.add("torch", imported, before=importing)
    hooks.add("torch.autograd", lambda module: autograd.patch(module, worker, clock, guard))
    hooks.add(
        "torch.optim.optimizer",
        lambda module: optimizer.patch(module, worker, clock, effect, saving, guard),
    )
    hooks.add("torch.serialization", lambda module: serialization.patch(module, worker, saving))
    if saving.spec is not None:
        worker.begin_callbacks.append(guard.measuring(lambda: reading.watch(saving)))
        hooks.add("safetensors", lambda module: reading.patch_safetensors(module, saving))
    hooks.add("torch._dynamo", compiler.imported)
    hooks.add("torch._dynamo.trace_rules", compiler.patch_rules)
    hooks.add("torch._dynamo.eval_frame", compiler.patch_frames)
    compiled = guard.measuring(clock.step_compiled)
    hooks.add("torch._dynamo.convert_frame", lambda module: compiler.patch_compilation(module, compiled))
    hooks.add("torch.multiprocessing.spawn", lambda module: spawning.patch(module, worker, notices, guard))
    hooks.add("torch.utils.checkpoint", lambda module: recomputation.patch(module, verdicts, guard))
    hooks.add(
        "torch.distributed.distributed_c10d",
        lambda module: process_group.patch(module, worker, settings, verdicts, effect, guard),
    )
    hooks.add(
        "torch.nn.parallel.distributed",
        lambda module: ddp.patch(module, worker, settings, verdicts, clock, effect, guard),
    )
    shared = Shared(
        worker=worker, settings=settings, verdicts=verdicts, notices=notices, saving=saving, guard=guard
    )
    frameworks.install(hooks, shared)
