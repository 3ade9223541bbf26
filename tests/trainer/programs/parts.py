"""The model and the data of the programs beside this file."""

import torch
from torch import nn


class Net(nn.Module):
    """Six layers of 1 MiB, with statistics that are buffers."""

    def __init__(self, outputs: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(6):
            layers += [nn.Linear(512, 512), nn.BatchNorm1d(512), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(512, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(inputs))


class Points(torch.utils.data.Dataset):
    """Random points and whether more of their coordinates are positive than negative; the same in every process."""

    def __init__(self, size: int = 256) -> None:
        generator = torch.Generator().manual_seed(0)
        self.points = torch.randn(size, 512, generator=generator)
        self.answers = (self.points.sign().sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.points[index], self.answers[index]
