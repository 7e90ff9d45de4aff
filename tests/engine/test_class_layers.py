"""A layer whose every unit sends to one class only belongs to the output: kept whole for every class, and not counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathx.engine.freeze import network_of

HEADS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "the mean of a map per class": (lambda y: y.mean((2, 3)), True),
    "the largest of a map per class": (lambda y: y.amax((2, 3)), True),
    "adaptive pooling": (lambda y: nn.functional.adaptive_avg_pool2d(y, 1).flatten(1), True),
    "pooling, shape and scale": (lambda y: nn.functional.avg_pool2d(y, 6).squeeze(3).squeeze(2) * 2.0 + 1.0, True),
    "a product": (lambda y: y.mean((2, 3)) @ torch.ones(4, 4), False),
    "pools that overlap": (lambda y: nn.functional.avg_pool2d(y[:, :1], 4, 1).flatten(1), False),
    "a sum of two maps": (lambda y: (y + y.flip(1)).mean((2, 3)), False),
}


class Net(nn.Module):
    def __init__(self, head: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.maps, self.head = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 4, 3, padding=1), head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.maps(self.first(x).relu()).relu())


@pytest.mark.parametrize("name", HEADS)
def test_which_layers_are_class_layers(name: str) -> None:
    head, is_class_layer = HEADS[name]
    torch.manual_seed(0)
    network = network_of(Net(head).eval(), torch.randn(2, 2, 6, 6))
    assert network.depth == (1 if is_class_layer else 2)


def test_a_class_layer_counts_where_it_is_the_only_layer() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    assert network_of(model, torch.randn(1, 2, 6, 6)).depth == 1
