"""What a spec means once the defaults that depend on other fields are worked out.

Why apart: operator, launcher, lint and docs must derive the same numbers. Must not: refuse more than arithmetic
forces (`rules.py` judges).
"""

from dataclasses import dataclass

from ddpjob_api.accelerators import Accelerator, accelerator
from ddpjob_api.spec import Backend, Spec


class Refused(ValueError):
    """Settings that cannot work; the message says what is wrong and which would."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The derived numbers of one job."""

    nodes: int
    processes_per_node: int
    accelerator: Accelerator | None
    backend: Backend
    """Never Auto."""
    accumulation: int
    """Micro-batches per optimizer step that we ask for; 1 where the resource is silent."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes_per_node


def plan(spec: Spec) -> Plan:
    """The numbers a job runs with."""
    found = accelerator(spec.resources_per_node.limits)
    device, count = found or (None, 1)
    backend = spec.ddp.backend
    if backend is Backend.AUTO:
        backend = device.backend if device else Backend.GLOO
    return Plan(
        nodes=spec.nodes,
        processes_per_node=spec.processes_per_node or count,
        accelerator=device,
        backend=backend,
        accumulation=spec.ddp.gradient_accumulation_steps or 1,
    )


def micro_batch(global_batch_size: int, world_size: int, accumulation: int) -> int:
    """Samples per rank and backward pass.

    Raises:
        Refused: the global batch cannot be divided evenly; the message names the nearest sizes that can.
    """
    share = world_size * accumulation
    if global_batch_size % share == 0:
        return global_batch_size // share
    below = global_batch_size // share * share
    sizes = [str(size) for size in (below, below + share) if size > 0]
    raise Refused(
        f"globalBatchSize {global_batch_size} cannot be divided over {world_size} ranks with "
        f"{accumulation} micro-batch{'es' if accumulation > 1 else ''} each; use {' or '.join(sizes)}"
    )
