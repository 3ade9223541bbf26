"""Which samples are in which optimizer step, and who reads which: arithmetic only.

One permutation per epoch, a function of (seed, epoch). Step after step takes the next `global_batch_size` of it; the
position in the training is therefore the number of samples consumed, and means the same for any number of ranks.

Within a step the samples go, in order, to (micro-batch 0, rank 0), (micro-batch 0, rank 1) …, each taking
`micro_batch`. The last step of an epoch has what is left: its micro-batches that nobody needs are left out on all
ranks alike, and in the last one some ranks may get fewer samples or none (`Share.samples` empty).

Must not: import torch beyond the permutation, or read a sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ddpjob_trainer.loop.seeds import derive


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a global batch is spread; `rank` is this process."""

    world_size: int
    rank: int
    micro_batch: int
    accumulation: int

    @property
    def global_batch(self) -> int:
        return self.world_size * self.micro_batch * self.accumulation


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one rank reads for one micro-batch."""

    epoch: int
    positions: range
    """Places in the epoch's order; with the epoch and the seed they also seed what is random about a sample."""
    samples: tuple[int, ...]
    """Indexes into the dataset, one per position."""
    stands_in: bool = False
    """Nothing is left for this rank, but the others make a pass that DDP must see from all: it computes the samples
    of rank 0 and its loss counts nothing."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The micro-batches of one optimizer step, of one rank."""

    shares: tuple[Share, ...]
    consumed: int
    """Samples of the epoch used, over all ranks, once this step is made."""
    whole: bool
    """Whether it has a full global batch; only the last of an epoch may have less."""

    @property
    def samples(self) -> int:
        """Samples that this rank reads."""
        return sum(len(share.samples) for share in self.shares if not share.stands_in)


def permutation(size: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of an epoch: every index below `size` once. 8 bytes per sample."""
    generator = torch.Generator().manual_seed(derive(seed, "order", epoch))
    return torch.randperm(size, generator=generator)


def steps_left(size: int, global_batch: int, consumed: int = 0) -> int:
    """Optimizer steps from a position to the end of its epoch."""
    return -(-(size - consumed) // global_batch)


def windows(size: int, seed: int, epoch: int, layout: Layout, consumed: int = 0) -> Iterator[Window]:
    """The optimizer steps of an epoch as `layout.rank` sees them, from a position on."""
    order = permutation(size, seed, epoch)
    for start in range(consumed, size, layout.global_batch):
        stop = min(start + layout.global_batch, size)
        yield Window(
            shares=tuple(shares(order, epoch, layout, start, stop)),
            consumed=stop,
            whole=stop - start == layout.global_batch,
        )


def shares(order: torch.Tensor, epoch: int, layout: Layout, start: int, stop: int) -> Iterator[Share]:
    """The shares of one rank in the step that takes positions `start` to `stop` of the order."""
    stride = layout.world_size * layout.micro_batch
    for first in range(start, stop, stride):
        mine = first + layout.rank * layout.micro_batch
        stands_in = mine >= stop
        begin = first if stands_in else mine
        positions = range(begin, min(begin + layout.micro_batch, stop))
        yield Share(
            epoch=epoch,
            positions=positions,
            samples=tuple(order[positions.start : positions.stop].tolist()),
            stands_in=stands_in,
        )
