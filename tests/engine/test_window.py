"""A window is a map that is zero outside of its box, whatever is done with it."""

from __future__ import annotations

import torch
from support.modules import assert_gradient
from torch import Tensor, nn


class _LinearSkips(nn.Module):
    """Blocks x + scale * (pool(x) - x) without a gate, as PoolFormer has them: each would multiply a row's windows by three."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.pool, self.scale = nn.AvgPool2d(3, 1, 1), nn.Parameter(torch.rand(blocks, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for scale in self.scale:
            x = x + scale * (self.pool(x) - x)
        result: Tensor = self.head(self.last(x).relu().mean((2, 3)))
        return result


def test_windows_do_not_multiply_in_linear_skips() -> None:
    model, images = _LinearSkips(12).double().eval(), torch.randn(1, 3, 12, 12, dtype=torch.float64)
    assert_gradient(model, images)
