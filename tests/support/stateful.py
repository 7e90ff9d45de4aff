"""Networks whose code holds on to themselves: a copy of one goes on reading or feeding the original."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Remembering(nn.Module):
    """Its head reads what a hook laid down; the hook of a copy lays it down with the original."""

    def __init__(self, side: int = 8) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * (side - 2) ** 2, 3)
        self.features: dict[str, Tensor] = {}
        features = self.features
        self.first.register_forward_hook(lambda module, given, made: features.__setitem__("first", made))

    def forward(self, x: Tensor) -> Any:
        self.first(x)
        return self.head(torch.relu(self.features["first"]).flatten(1))


class Shared(Remembering):
    """The same, where original and copies share the place, so that two at a time mix up their images."""

    places: ClassVar[dict[str, Tensor]] = {}

    def __init__(self, side: int = 8) -> None:
        super().__init__(side)
        self.first.register_forward_hook(lambda module, given, made: self.places.__setitem__("first", made))

    def forward(self, x: Tensor) -> Any:
        self.first(x)
        return self.head(torch.relu(self.places["first"]).flatten(1))
