"""A small transformer that predicts the next character of real text: Python's own documentation.

Why this one: the text comes with Python (`pydoc_data.topics`, some 500 kB of English), the loss counts tokens, and
batches of lines of different lengths show that it stays exact whoever reads which line.
"""

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from torch.utils.data import Dataset

from ddpjob_trainer.task import Evaluation, Task

IGNORED = -100
"""A target that `cross_entropy` leaves out, and that is not counted."""
TEST_EVERY = 20
"""Every twentieth passage is for evaluation."""

Batch = tuple[Tensor, Tensor]
"""Characters `(batch, length)` and the character after each; `IGNORED` behind the end of a shorter passage."""


def task(
    *, context: int = 128, width: int = 128, layers: int = 4, heads: int = 4, learning_rate: float = 3e-3
) -> Task:
    """Train on passages of up to `context` characters."""
    passages = passages_of(documentation(), context)
    alphabet = {character: number for number, character in enumerate(sorted(set("".join(passages))))}
    return Task(
        model=Transformer(len(alphabet), context=context, width=width, layers=layers, heads=heads),
        train_dataset=Passages([p for n, p in enumerate(passages) if n % TEST_EVERY], alphabet),
        loss=loss,
        collate=padded,
        optimizer=partial(AdamW, lr=learning_rate, weight_decay=0.1),
        schedule=warm_up_and_cosine,
        evaluate=Evaluation(
            dataset=Passages(passages[::TEST_EVERY], alphabet), measure=measure, summarize=summarize
        ),
        clip_norm=1.0,
    )


def documentation() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def passages_of(text: str, context: int) -> list[str]:
    """Paragraphs, the long ones cut into pieces; lengths differ."""
    paragraphs = [each for each in text.split("\n\n") if len(each) > 1]
    size = context + 1
    return [each[at : at + size] for each in paragraphs for at in range(0, len(each) - 1, size)]


class Passages(Dataset[Tensor]):
    """Passages as numbers of characters."""

    def __init__(self, passages: list[str], alphabet: Mapping[str, int]) -> None:
        self.encoded = [torch.tensor([alphabet[character] for character in each]) for each in passages]

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> Tensor:
        return self.encoded[index]


def padded(samples: list[Tensor]) -> Batch:
    inputs = pad_sequence([each[:-1] for each in samples], batch_first=True)
    targets = pad_sequence([each[1:] for each in samples], batch_first=True, padding_value=IGNORED)
    return inputs, targets


class Transformer(nn.Module):
    """Decoder only, learned positions, norm first."""

    def __init__(self, alphabet: int, *, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(alphabet, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, alphabet, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """`(batch, length)` to `(batch, length, alphabet)`."""
        x = self.characters(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores


class Block(nn.Module):
    """Attention to what came before, then two layers per character."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.rest = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        together = self.queries_keys_values(self.norm(x)).view(batch, length, 3, self.heads, -1)
        queries, keys, values = together.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.attended(attended.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.rest(x)
        return result


def warm_up_and_cosine(optimizer: Optimizer, total_steps: int) -> LRScheduler:
    warm_up = max(1, total_steps // 20)

    def rate(step: int) -> float:
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, step / total_steps)))

    return LambdaLR(optimizer, rate)


def loss(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Summed over the characters that are there; padding counts nothing."""
    inputs, targets = batch
    scores = model(inputs).flatten(0, 1)
    return (
        functional.cross_entropy(scores, targets.flatten(), ignore_index=IGNORED, reduction="sum"),
        (targets != IGNORED).sum(),
    )


def measure(model: nn.Module, batch: Batch) -> tuple[Mapping[str, Tensor], Tensor]:
    loss_sum, count = loss(model, batch)
    return {"testLoss": loss_sum}, count


def summarize(means: dict[str, float]) -> dict[str, float]:
    return {**means, "perplexity": math.exp(means["testLoss"])}
