"""What must be equal on all ranks: parameters always, buffers wherever the model is looked at.

Why apart: a gradient that was not reduced is silent in DDP (pytorch#187732), so somebody has to look. Must not:
repair anything.
"""

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddpjob_trainer.errors import ReplicasDiffer
from ddpjob_trainer.loop.agreement import from_all, ranks_that_differ

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MULTIPLIER = 0x9E3779B97F4A7C15


def checksum(model: nn.Module) -> int:
    """64 bits of all parameters: one integer sum per tensor, computed where the tensor is."""
    sums = [bits(parameter.detach()).sum(dtype=torch.int64) for parameter in model.parameters()]
    mixed = 0
    for value in torch.stack(sums).tolist() if sums else []:
        mixed = (mixed * MULTIPLIER + value) % 2**64
    return mixed


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes as integers of its own width."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().view(WORDS[tensor.element_size()])


def check_replicas(model: nn.Module, step: int) -> None:
    """Return if all ranks hold the same parameters.

    Raises:
        ReplicasDiffer: on all ranks alike, naming those that differ from the most.
    """
    sums = from_all(checksum(model))
    odd = ranks_that_differ(sums)
    if odd:
        names = ", ".join(str(rank) for rank in odd)
        raise ReplicasDiffer(
            f"after step {step} rank {names} of {len(sums)} holds other parameters than the rest: gradients were not "
            "the same everywhere. Look for a loss that changes parameters or gradients by itself, or memory that "
            "fails; checkpoints of before this step are whole"
        )


def share_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0 (running statistics differ by what each rank saw).

    Done wherever the model is looked at: evaluation, checkpoint, end. It changes nothing in what training computes
    with broadcastBuffers, which does the same before each forward pass.
    """
    with torch.no_grad():
        for buffer in model.buffers():
            whole = buffer.contiguous()
            dist.broadcast(whole, src=0)
            if whole is not buffer:
                buffer.copy_(whole)


def parameter_hash(model: nn.Module) -> str:
    """16 hexadecimal digits of SHA-256 over names and bytes of the state dict: equal runs have equal hashes."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
