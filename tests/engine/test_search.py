"""Where nothing but the rule decides: many units alike, and an importance that is alpha itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import pathx
from pathx import PathLayer


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


@pytest.mark.parametrize(("count", "width"), [(256, 1), (256, 256), (257, 260), (700, 3), (700, 64)])
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


@pytest.mark.parametrize("others", [8, 100, 700])
def test_the_best_unit_is_found_behind_any_number_of_better_bounds(others: int) -> None:
    """A unit that sends as much to another class looks good by the mean of all classes, and is not."""
    model = network([[3.0, 3.0, -20.0]] * others + [[2.0, 0.0, 0.0]])
    layer = kept(model, width=1)
    assert [unit.index for unit in layer.units] == [(others,)]
    assert layer.units[0].importance == pytest.approx(float(torch.tensor([2.0, 0.0, 0.0]).softmax(0)[0]))
    assert [unit.index[0] for unit in kept(model, width=3).units] == [others, 0, 1]


class TwoBranches(nn.Module):
    """Two ReLUs of one layer with the same values: the first to be executed has the lower indices."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = (x * torch.tensor([2, 1])).relu(), (x * torch.tensor([1, 2])).relu()
        return torch.cat([second, first], 1) @ torch.tensor([[1.0, 0.0]] * 4)


def test_ties_in_maps_and_branches_break_by_lower_flat_index() -> None:
    first, head = nn.Conv2d(1, 2, 1, bias=False), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        first.weight.fill_(1)
        head.weight.copy_(torch.tensor([[1, 1], [0, 0]]))
    maps = nn.Sequential(first, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    (found,) = pathx.explain(maps, torch.ones(1, 1, 2, 2), target=0, depth=1, width=5)
    assert [unit.index for unit in found.path[0].units] == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0)]
    layer = kept(TwoBranches(), width=3)
    names = [tensor.name for tensor in layer.tensors]
    assert [(names.index(unit.tensor), unit.index) for unit in layer.units] == [(0, (0,)), (1, (1,)), (0, (1,))]


@pytest.mark.parametrize("width", [1, 3, 64, 255])
def test_effects_that_tie_are_kept_by_their_index(width: int) -> None:
    layer = kept(network([[1.0, 0.0, 0.0]] * 300), width=width, importance="effect")
    assert [unit.index for unit in layer.units] == [(index,) for index in range(width)]
