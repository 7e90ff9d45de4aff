"""Calls that are soon recorded or never, a small network to try them on, and how many recordings there are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pathx import Explanation
from pathx.engine import recording
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.engine.search import Strategy

SOON, NEVER = Strategy(recorded=1), Strategy(recorded=None)
OPTIONS: dict[str, Any] = {"depth": 2, "width": 3}


def explained(model: nn.Module, images: Tensor, strategy: Strategy, **options: Any) -> list[Explanation]:
    frozen = freeze(model, images)
    return explain_frozen(frozen, [(n, None) for n in range(len(images))], strategy=strategy, **(options or OPTIONS))


def recordings() -> int:
    """How many there are."""
    return sum(seen.recording is not None for known in recording._KNOWN.values() for seen in known.values())


def small() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 5, 3), nn.ReLU6()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5 * 3 * 3, 7)).eval()


def images(seed: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(seed))
