"""A small network whose second hidden layer is two maps side by side, frozen, and its Jacobians from autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from support.small import seeded
from torch import Tensor, nn

from pathx.engine.branches import Branches
from pathx.engine.freeze import Frozen, freeze

CLASSES, UNITS = 4, (3 * 5 * 5, 2 * 5 * 5 + 3 * 5 * 5)


class Fire(nn.Module):
    """As the modules of a SqueezeNet: one ReLU, then two that share a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.narrow, self.wide = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(UNITS[1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.above(F.relu(self.first(x)))

    def above(self, x: Tensor) -> Tensor:
        """The logits from the first hidden layer's outputs."""
        return self.top(torch.cat([F.relu(self.narrow(x)).flatten(1), F.relu(self.wide(x)).flatten(1)], 1))

    def top(self, x: Tensor) -> Tensor:
        """The logits from the second hidden layer's outputs, (B, units)."""
        return self.head(x)  # type: ignore[no-any-return]

    def second(self, x: Tensor) -> Tensor:
        """(B, units) the pre-activations of the second hidden layer from the first one's outputs."""
        return torch.cat([self.narrow(x).flatten(1), self.wide(x).flatten(1)], 1)


def fire(seed: int = 0) -> Fire:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Fire().double().eval()


def frozen_fire(count: int = 2, seed: int = 0) -> tuple[Fire, Frozen]:
    model = fire(seed)
    return model, freeze(model, torch.randn(count, 2, 5, 5, generator=seeded(seed), dtype=torch.float64))


def branches(targets: list[int], images: list[int] | None = None) -> Branches:
    numbers = list(range(len(targets))) if images is None else images
    return Branches(torch.tensor(numbers), torch.tensor(targets), CLASSES, torch.float64, one_per_image=images is None)
