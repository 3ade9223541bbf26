"""From shares to batches on the device, the same for any number of loader processes.

Why apart: what a sample looks like may be random (augmentation); it is seeded by its place in the epoch's order, in
whichever process and on whichever rank it is read. Must not: decide who reads what (`order.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from ddpjob_trainer.loop.order import Share
from ddpjob_trainer.loop.seeds import derive, seed_host

Collate = Callable[[list[Any]], Any]


class Batches(Dataset[Any]):
    """A dataset indexed by shares, whose items are batches."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None, seed: int, purpose: str) -> None:
        self.dataset = dataset
        self.collate = collate or default_collate
        self.seed = seed
        self.purpose = purpose

    def __getitem__(self, share: Share) -> Any:
        samples = []
        for position, index in zip(share.positions, share.samples, strict=True):
            seed_host(derive(self.seed, self.purpose, share.epoch, position))
            samples.append(self.dataset[index])
        return self.collate(samples)


def batches(source: Batches, shares: Iterable[Share], workers: int, *, pinned: bool) -> Iterator[Any]:
    """The batch of each share, in order; `pinned`: in memory from which a device can take it by itself."""
    loader: DataLoader[Any] = DataLoader(
        source,
        batch_size=None,
        sampler=shares,
        collate_fn=as_it_is,
        num_workers=workers,
        # Python 3.14 would start them anew, and then datasets and functions had to be picklable.
        multiprocessing_context="fork" if workers else None,
        pin_memory=pinned,
        # torch draws a base seed from the global generator for every iterator; ours is none of its business.
        generator=torch.Generator().manual_seed(source.seed),
    )
    yield from loader


def as_it_is(batch: Any) -> Any:
    return batch


def to_device(batch: Any, device: torch.device) -> Any:
    """The same batch with every tensor in it on the device; what else is in it stays as it is."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Mapping):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        return type(batch)(to_device(value, device) for value in batch)  # type: ignore[call-arg]
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch
