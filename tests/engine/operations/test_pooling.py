"""Pools: another way to compute them is the same pool, and what has no channels is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.modules import Function
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.operations.pooling import _bins, max_pool_forward

aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(5), dtype=torch.float64)


@pytest.mark.parametrize("settings", [([3, 3], [2, 2], [1, 1]), ([2, 2],), ([2, 3], [1, 2], [1, 1], [2, 1], True)])
def test_with_channels_last_it_is_the_same_pool(settings: tuple[list[int], ...]) -> None:
    x = numbers(2, 9, 7, 8).round()  # with ties, of which the first wins
    found = max_pool_forward(x, *settings)
    assert found is not None
    for mine, theirs in zip(found, aten.max_pool2d_with_indices(x, *settings), strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()


def test_where_it_gains_nothing_it_is_left_to_torch() -> None:
    assert max_pool_forward(numbers(2, 7, 4, 4), [2, 2]) is None  # few channels
    assert max_pool_forward(numbers(9, 4, 4), [2, 2]) is None
    assert max_pool_forward(numbers(2, 9, 4, 4).transpose(2, 3), [2, 2]) is None


@given(st.integers(1, 20), st.integers(1, 20))
def test_adaptive_means_are_a_matrix(size: int, out: int) -> None:
    x = torch.arange(float(size), dtype=torch.float64) ** 2
    assert_close(_bins(size, out, x) @ x, F.adaptive_avg_pool1d(x[None, None], out)[0, 0])


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d, lambda x, _: F.adaptive_avg_pool2d(x, 2)])
def test_images_without_channels_would_be_taken_for_channels(pool: object) -> None:
    model = Function(lambda x: pool(F.relu(x), 2).flatten(1))  # type: ignore[operator]
    with pytest.raises(PathxError, match=r"pool2d.* works along the batch"):
        pathx.explain(model, numbers(2, 4, 4))


def test_a_maximum_goes_to_the_element_that_won() -> None:
    image = torch.tensor([[[[1.0, 5.0, 2.0, 2.0], [3.0, 4.0, 2.0, 1.0]]]])  # a tie: the first of the two
    model = Function(lambda x: F.max_pool2d(F.relu(x), 2).flatten(1) @ torch.tensor([[1.0, 0.0], [10.0, 0.0]]))
    (found,) = pathx.explain(model, image, target=0, depth=1)
    assert found.weight.tolist() == [[[0.0, 1.0, 10.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]
