"""A small network whose second hidden layer is two maps side by side."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fire(nn.Module):
    """As the modules of a SqueezeNet: one ReLU (3 x 5 x 5), then two that share a layer (2 x 5 x 5 and 3 x 5 x 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.narrow, self.wide = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(125, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        y: Tensor = self.head(torch.cat([F.relu(self.narrow(x)).flatten(1), F.relu(self.wide(x)).flatten(1)], 1))
        return y


def fire(seed: int = 0) -> Fire:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Fire().double().eval()
