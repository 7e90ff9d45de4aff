"""A small network for pictures of 3 x 10 x 10, as a module and as the command line loads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from support import command_line
from torch import Tensor, nn

from pathx.models.load import LoadedModel
from pathx.models.preprocessing import Preprocessing

LABELS = ("cat", "red fox", "dog", "cup")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def network(seed: int = 0, classes: int = 4) -> nn.Module:
    """Three hidden layers; input 3 x 10 x 10."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 6, 3), nn.ReLU(), nn.Flatten()
        return nn.Sequential(*layers, nn.Linear(216, 12), nn.ReLU(), nn.Linear(12, classes)).eval().double()


RELUS = {"1": (5, 8, 8), "3": (6, 6, 6), "6": (12,)}
"""The shapes of its hidden layers, by the names of their ReLUs."""


def by_hand(model: nn.Module, inputs: Tensor, edits: dict[str, Callable[[Tensor], Tensor]]) -> Tensor:
    """The model's own logits with the outputs of some of its modules changed."""
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda module, args, out, edit=edit: edit(out.clone()))
        for name, edit in edits.items()
    ]
    try:
        with torch.no_grad():
            return model(inputs)  # type: ignore[no-any-return]
    finally:
        for hook in hooks:
            hook.remove()


def zeroed(*indices: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Sets units, or channels, of a map to zero."""

    def edit(out: Tensor) -> Tensor:
        for index in indices:
            out[(slice(None), *index)] = 0
        return out

    return edit


def images(count: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 10, 10, generator=seeded(seed), dtype=torch.float64)


def loaded(seed: int = 0) -> LoadedModel:
    preprocessing = Preprocessing((3, 10, 10), (0.5,) * 3, (0.25,) * 3)
    return LoadedModel(network(seed).float(), "small", "none", "0" * 64, preprocessing, LABELS)


def picture(file: Path, size: tuple[int, int] = (14, 12), seed: int = 0) -> Path:
    return Path(command_line.picture(str(file), size, seed))
