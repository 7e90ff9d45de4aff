"""Sums of cotangents over boxes are sums over maps."""

from __future__ import annotations

import math

import pytest
import torch
from support.windows import corners

from pathx.engine.rules.sums import channel_total, map_like, scaled_by, total, unbroadcast
from pathx.engine.window import Corners, Window

SHAPE = (3, 5, 4)
BOX = Window(
    torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(0)),
    (0, Corners(torch.tensor([0, 4]), 5, offset=-1), 1),
    SHAPE,
    torch.arange(2),
    torch.tensor([1, 0]),
    clean=False,
)


@pytest.mark.parametrize("size", [(2, *SHAPE), (1, *SHAPE), (1, 3, 1, 1)])
def test_a_total_is_that_of_the_maps(size: tuple[int, ...]) -> None:
    values = torch.randn(size)
    whole = values.expand(2, *SHAPE)[BOX.image]
    expected = (BOX.dense().data.double() * whole.double()).flatten(1).sum(1)
    assert torch.allclose(total(BOX, values), expected, atol=1e-5) and total(BOX, values).dtype == torch.float64


def test_nothing_of_what_is_infinite_is_nothing() -> None:
    values = torch.full((1, *SHAPE), math.inf)
    zero = Window.full(torch.zeros(1, *SHAPE), torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
    assert total(zero, values).tolist() == [0.0]


@pytest.mark.parametrize("first", [0, 1])
def test_one_value_per_channel(first: int) -> None:
    values = torch.randn(3)
    box = Window(BOX.data[:, first:], (first, *BOX.origin[1:]), SHAPE, BOX.row, BOX.image, clean=False)
    expected = (box.dense().data.double() * values.double()[:, None, None]).flatten(1).sum(1)
    assert torch.allclose(channel_total(box, values), expected, atol=1e-5)


@pytest.mark.parametrize("shape", [SHAPE, (3, 1, 1), (1, 1, 4), (4,), ()])
def test_what_was_broadcast_gets_the_sum_of_its_repeats(shape: tuple[int, ...]) -> None:
    whole = BOX.dense()
    given = torch.randn(2, *(1,) * (3 - len(shape)), *shape, requires_grad=True)
    given.expand(2, *SHAPE).backward(whole.data)
    assert given.grad is not None
    found = unbroadcast(whole, shape)
    assert found.shape == shape and torch.allclose(found.data.reshape(given.shape), given.grad, atol=1e-5)


def test_one_value_per_element_of_a_vector() -> None:
    values, row = torch.randn(4), torch.arange(2)
    whole = Window.full(torch.randn(2, 4), row, row)
    part = Window(torch.randn(2, 2), (corners([-1, 3]),), (4,), row, row, clean=False)
    for window in (whole, part):
        assert torch.allclose(channel_total(window, values), (window.dense().data * values).sum(1).double(), atol=1e-6)
        assert channel_total(window, values).dtype == torch.float64


@pytest.mark.parametrize("shape", [(), (4,), (5, 1), (1, 5, 4), (3, 1, 1), (1, 3, 5, 4), (2, 1, 5, 1)])
def test_fixed_values_are_laid_against_the_map(shape: tuple[int, ...]) -> None:
    values = torch.randn(shape, dtype=torch.float64)
    laid = map_like(values, BOX)
    assert laid.dim() == 4 and laid.dtype == BOX.data.dtype
    assert torch.equal(laid.expand(2, *SHAPE), values.float().expand(2, *SHAPE))


def test_a_factor_of_one_is_none() -> None:
    assert scaled_by(BOX, 1) is BOX and torch.equal(scaled_by(BOX, 3).data, 3 * BOX.data)
