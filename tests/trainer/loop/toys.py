"""Small tasks, each with what one property needs."""

import dataclasses
import math
import time

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import Dataset, TensorDataset

from ddpjob_trainer.task import Evaluation, Task

IGNORED = -100


class Recording(torch.optim.SGD):
    """SGD that remembers the gradients of every step, as the loop hands them over."""

    steps: list[list[torch.Tensor]]

    def step(self, closure=None):
        if not hasattr(self, "steps"):
            self.steps = []
        grads = [parameter.grad for group in self.param_groups for parameter in group["params"]]
        self.steps.append([grad.clone() for grad in grads])
        return super().step(closure)


def recording(parameters):
    return Recording(parameters, lr=0.1)


class Lines(Dataset):
    """Lines of different lengths; line n has 1 + n % 7 tokens to predict."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 11, (2 + index % 7,), generator=generator)


def padded(samples):
    return (
        pad_sequence([each[:-1] for each in samples], batch_first=True),
        pad_sequence([each[1:] for each in samples], batch_first=True, padding_value=IGNORED),
    )


def token_loss(model, batch):
    inputs, targets = batch
    scores = model(inputs).flatten(0, 1)
    return functional.cross_entropy(scores, targets.flatten(), ignore_index=IGNORED, reduction="sum"), (
        targets != IGNORED
    ).sum()


def lines(*, size=20, clip_norm=None):
    """Variable-length batches in float64; gradients are recorded."""
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(11, 6), *blocks, nn.Linear(6, 11)).double()
    return Task(
        model=model,
        train_dataset=Lines(size),
        loss=token_loss,
        collate=padded,
        optimizer=recording,
        clip_norm=clip_norm,
        checkpoint_blocks=lambda model: [each for each in model if isinstance(each, nn.Sequential)],
    )


class Noisy(Dataset):
    """Samples with random augmentation."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        label = index % 3
        return torch.randn(5) + label, label


def cross_entropy(model, batch):
    inputs, labels = batch
    return functional.cross_entropy(model(inputs), labels, reduction="sum"), len(labels)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def two_groups(parameters):
    first, *rest = parameters
    return torch.optim.SGD([{"params": [first]}, {"params": rest}], lr=0.01)


def one_cycle(optimizer, total_steps):
    return OneCycleLR(optimizer, max_lr=0.01, total_steps=total_steps)


def noisy(*, size=27, workers=0, dropout=0.2, width=16, algorithm="adamw"):
    """BatchNorm, dropout, augmentation, AdamW and a schedule: all that a resumed run must get right."""
    model = nn.Sequential(
        nn.Sequential(nn.Linear(5, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(dropout)),
        nn.Sequential(nn.Linear(width, 16), nn.BatchNorm1d(16), nn.ReLU()),
        nn.Linear(16, 3),
    )
    return Task(
        model=model,
        train_dataset=Noisy(size),
        loss=cross_entropy,
        optimizer=adamw if algorithm == "adamw" else two_groups,
        schedule=one_cycle if algorithm == "adamw" else None,
        clip_norm=1.0,
        workers=workers,
    )


def poisoned(*, size=32, bad=(9,)):
    """Samples of which some are NaN."""
    inputs = torch.randn(size, 5)
    inputs[list(bad)] = math.nan
    labels = torch.arange(size) % 3
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return Task(model=model, train_dataset=TensorDataset(inputs, labels), loss=cross_entropy)


def hopeless():
    """Nothing but NaN."""
    return poisoned(size=32, bad=tuple(range(32)))


class Numbered(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def counted(*, size, batch_size=None):
    """An evaluation that adds up which samples it saw."""
    return Task(
        model=nn.Linear(1, 1),
        train_dataset=Numbered(8),
        loss=lambda model, batch: (model(batch).sum(), len(batch)),
        evaluate=Evaluation(
            dataset=Numbered(size),
            measure=lambda model, batch: ({"sum": batch.sum(), "squares": (batch**2).sum()}, len(batch)),
            summarize=lambda means: {name: mean * size for name, mean in means.items()},
            batch_size=batch_size,
        ),
    )


def drifting():
    """Its loss changes a parameter on one rank only, as a broken hook would."""

    def loss(model, batch):
        if torch.distributed.get_rank() == 1:
            with torch.no_grad():
                next(model.parameters()).add_(1e-4)
        return cross_entropy(model, batch)

    model = nn.Linear(5, 3)
    return Task(model=model, train_dataset=Noisy(32), loss=loss)


def bad_loss(*, kind):
    returned = {
        "number": lambda loss, count: loss,
        "three": lambda loss, count: (loss, count, count),
        "vector": lambda loss, count: (loss.repeat(2), count),
        "detached": lambda loss, count: (loss.detach(), count),
        "text": lambda loss, count: (loss, "8"),
    }[kind]
    return Task(
        model=nn.Linear(5, 3),
        train_dataset=Noisy(16),
        loss=lambda model, batch: returned(*cross_entropy(model, batch)),
    )


def empty():
    return Task(model=nn.Linear(1, 1), train_dataset=Numbered(0), loss=cross_entropy)


def frozen():
    model = nn.Linear(1, 1).requires_grad_(False)
    return Task(model=model, train_dataset=Numbered(8), loss=cross_entropy)


def uneven():
    """Another dataset on every rank."""
    return Task(
        model=nn.Linear(5, 3), train_dataset=Noisy(16 + torch.distributed.get_rank()), loss=cross_entropy
    )


def plain(*, size=16):
    return Task(model=nn.Linear(5, 3), train_dataset=Noisy(size), loss=cross_entropy)


class Slow(Noisy):
    """Ten steps take some three seconds."""

    def __getitem__(self, index):
        time.sleep(0.08)
        return super().__getitem__(index)


def slow():
    return Task(model=nn.Linear(5, 3), train_dataset=Slow(40), loss=cross_entropy)


class Stubborn(LambdaLR):
    """Its state is a function, which no safe loader takes."""

    def state_dict(self):
        return {"rate": print}


def odd_schedule():
    return dataclasses.replace(plain(), schedule=lambda optimizer, _: Stubborn(optimizer, lambda step: 1.0))


def sync_batch_norm():
    return Task(
        model=nn.Sequential(nn.Linear(5, 3), nn.SyncBatchNorm(3)), train_dataset=Noisy(16), loss=cross_entropy
    )


def not_a_task():
    return nn.Linear(1, 1)


NUMBER = 17


def steep(*, factor):
    """Gradients that do not fit FP16 at the scale it begins with."""

    def loss(model, batch):
        loss_sum, count = cross_entropy(model, batch)
        return loss_sum * factor, count

    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    return Task(model=model, train_dataset=Noisy(64), loss=loss)
