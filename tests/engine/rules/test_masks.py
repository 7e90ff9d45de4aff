"""Masks and choices between two values: who was taken, and what a tie does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from torch import Tensor
from torch.testing import assert_close

import pathx

HEAD = torch.tensor([[1.0, 0.0], [10.0, 0.0], [100.0, 0.0]], dtype=torch.float64)
X = torch.tensor([[2.0, 1.0, 3.0]], dtype=torch.float64)


def weight(function: object) -> Tensor:
    """What the first class is, as a gradient, with everything kept."""
    options = {"target": 0, "depth": "all", "width": "all", "alpha": 0.0, "skips": "all"}
    (found,) = pathx.explain(Function(lambda x: function(x) @ HEAD), X, **options)  # type: ignore[operator, arg-type]
    assert found.attribution.sum().item() + found.bias == pytest.approx(found.score)
    return found.weight


@pytest.mark.parametrize("choose", [torch.maximum, torch.minimum, torch.fmax, torch.fmin])
def test_a_choice_goes_back_to_the_one_that_was_taken(choose: object) -> None:
    largest = choose in (torch.maximum, torch.fmax)
    other = torch.tensor([-1.0, 1.5, 0.5], dtype=torch.float64)  # 2 x as factors: which is larger differs by element

    def function(x: Tensor) -> Tensor:
        return choose(F.relu(x), F.relu(x.flip(1)) + other)  # type: ignore[operator, no-any-return]

    # relu(x) = (2, 1, 3) beside (2, 2.5, 2.5): a tie, the second, the first
    first = [1.0, 0.0, 100.0] if largest else [1.0, 10.0, 0.0]
    second = [0.0, 10.0, 0.0] if largest else [0.0, 0.0, 100.0]
    assert weight(function).tolist() == [a + b for a, b in zip(first, reversed(second), strict=True)]


def test_a_mask_takes_one_side_or_the_other() -> None:
    mask = torch.tensor([True, False, True])
    assert weight(lambda x: torch.where(mask, F.relu(x), 3 * F.relu(x))).tolist() == [1.0, 30.0, 100.0]
    assert weight(lambda x: F.relu(x).masked_fill(mask, 7.0)).tolist() == [0.0, 10.0, 0.0]


def test_what_is_filled_with_infinity_and_passed_over_leaves_no_trace() -> None:
    mask = torch.tensor([True, False, False])
    found = weight(lambda x: F.relu(x).masked_fill(mask, -torch.inf).amax(1, keepdim=True).expand(-1, 3))
    assert_close(found, torch.tensor([0.0, 0.0, 111.0]).double())


def test_a_value_that_masks_itself_is_a_layer_with_its_offset() -> None:
    for function in (lambda x: torch.where(x > 2, x, 5.0), lambda x: x.masked_fill(x <= 2, 5.0)):
        (found,) = pathx.explain(
            Function(lambda x, f=function: f(x) @ HEAD), X, target=0, depth=1, width="all", alpha=0.0
        )
        assert [unit.index for unit in found.path[0].units] == [(2,)]  # the others are constant here
        assert found.score == 300.0
