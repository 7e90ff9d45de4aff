"""Where nothing but the rule decides: many units alike, and an importance that is alpha itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import pathx
from pathx import PathLayer

pytestmark = pytest.mark.usefixtures("one_thread")


def network(heads: list[list[float]]) -> nn.Sequential:
    """Hidden units that are all 1, and what each sends to the classes."""
    first, last = nn.Linear(1, len(heads), bias=False), nn.Linear(len(heads), len(heads[0]), bias=False)
    with torch.no_grad():
        first.weight.fill_(1)
        last.weight.copy_(torch.tensor(heads).T)
    return nn.Sequential(first, nn.ReLU(), last).eval()


def kept(model: nn.Module, **settings: object) -> PathLayer:
    (found,) = pathx.explain(model, torch.ones(1, 1), target=0, depth=1, **settings)  # type: ignore[arg-type]
    return found.path[0]


@pytest.mark.parametrize("count", [255, 256, 257, 300, 700])
@pytest.mark.parametrize("width", [1, 3, 64, 255, 256, 260])
def test_many_units_alike_are_kept_by_their_index(count: int, width: int) -> None:
    layer = kept(network([[1.0, 0.0, 0.0]] * count), width=width)
    assert [unit.index for unit in layer.units] == [(index,) for index in range(min(width, count))]


@pytest.mark.parametrize("count", [300, 700])
def test_of_two_kinds_the_stronger_come_first_each_by_its_index(count: int) -> None:
    layer = kept(network([[2.0, 0.0] if number % 2 else [1.0, 0.0] for number in range(count)]), width=count // 2 + 5)
    strong, weak = list(range(1, count, 2)), list(range(0, count, 2))
    assert [unit.index[0] for unit in layer.units] == [*strong, *weak[:5]]


@pytest.mark.parametrize(("classes", "alpha"), [(2, None), (2, 0.5), (4, None), (4, 0.25)])
@pytest.mark.parametrize("others", [0, 300])
def test_an_importance_that_is_alpha_is_not_above_it(classes: int, alpha: float | None, others: int) -> None:
    indifferent = [1.0] * classes
    speaking = [1.0, *[0.0] * (classes - 1)]
    layer = kept(network([indifferent, *[indifferent] * others, speaking]), width=5, alpha=alpha)
    assert [unit.index for unit in layer.units] == [(others + 1,)] and not layer.below_alpha
    layer = kept(network([indifferent] * (others + 2)), width=5, alpha=alpha)
    assert [unit.index for unit in layer.units] == [(0,)] and layer.below_alpha
    assert layer.units[0].importance == pytest.approx(1 / classes)
