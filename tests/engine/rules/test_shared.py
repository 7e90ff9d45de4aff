"""What rules share: sums under boxes are sums under maps, and boxes in other shapes are the same maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.modules import Function
from support.small import seeded
from support.windows import corners
from torch import Tensor
from torch.testing import assert_close

import pathx
from pathx.engine.rules.shared import (
    align,
    channel_total,
    insert_axes,
    reshape_window,
    total,
    unbroadcast,
    window_below,
)
from pathx.engine.window import Corners, Origin, Window

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
    laid = align(values, BOX)
    assert laid.dim() == 4 and laid.dtype == BOX.data.dtype
    assert torch.equal(laid.expand(2, *SHAPE), values.float().expand(2, *SHAPE))


# --- boxes in other coordinates ----------------------------------------------------------------------------------------


def box(shape: tuple[int, ...], starts: tuple[int | list[int], ...], extent: tuple[int, ...]) -> Window:
    """Three cotangents."""
    data = torch.randn(3, *extent, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    origin: tuple[Origin, ...] = tuple(one if isinstance(one, int) else corners(one) for one in starts)
    row = torch.arange(3)
    window = Window(data, origin, shape, row, row % 2)
    return replace(window, clean=not any(window.overhang))


EACH, BESIDE = [0, 2, 1], [-1, 3, 1]
# Windows, shapes that hold as many elements, and whether the box is known there, too.
RESHAPED: dict[str, tuple[Window, tuple[int, ...], bool]] = {
    "the same": (box((2, 3, 4), (0, EACH, 0), (2, 1, 4)), (2, 3, 4), True),
    "a dimension of 1 more, in front": (box((2, 3, 4), (0, EACH, 1), (2, 1, 2)), (1, 2, 3, 4), True),
    "inside": (box((2, 3, 4), (1, EACH, 1), (1, 1, 2)), (2, 1, 3, 4), True),
    "at the end": (box((2, 3, 4), (1, EACH, 1), (1, 1, 2)), (2, 3, 4, 1), True),
    "one less": (box((2, 1, 3, 1), (1, 0, EACH, 0), (1, 1, 1, 1)), (2, 3), True),
    "two less": (box((1, 2, 1, 3), (0, 1, 0, BESIDE), (1, 1, 1, 2)), (2, 3), True),
    "channels in groups": (box((6, 3, 4), (0, EACH, 2), (6, 1, 2)), (2, 3, 3, 4), True),
    "groups together": (box((2, 3, 3, 4), (0, 0, EACH, BESIDE), (2, 3, 1, 3)), (6, 3, 4), True),
    "channels in groups, of some": (box((6, 3, 4), (2, EACH, 2), (2, 1, 2)), (2, 3, 3, 4), False),
    "places in one row": (box((2, 3, 4), (0, EACH, 0), (2, 1, 4)), (2, 12), False),
    "places in one row, of a channel": (box((3, 1, 4), (EACH, 0, 0), (1, 1, 4)), (3, 4), True),
    "all in one row": (box((2, 3, 4), (1, EACH, 1), (1, 1, 2)), (24,), False),
    "one row apart": (box((24,), (3,), (5,)), (2, 3, 4), False),
    "single elements": (box((2, 3, 4), (1, EACH, [0, 3, 1]), (1, 1, 1)), (4, 6), True),
    "single elements, beside": (box((2, 3, 4), (1, EACH, [0, 4, 2]), (1, 1, 1)), (4, 6), True),
    "single elements, of one place": (box((2, 3, 4), (1, 0, 3), (1, 1, 1)), (24,), True),
    "whole maps": (box((2, 3, 4), (0, 0, 0), (2, 3, 4)), (4, 6), True),
    "of one element": (box((1, 1), (0, 0), (1, 1)), (1,), True),
    "other sizes at the end": (box((3, 2, 4), (0, 1, 1), (3, 1, 2)), (3, 4, 2), False),
    "only the last alike": (box((2, 6, 4), (0, 0, EACH), (2, 6, 2)), (3, 4, 4), True),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_a_box_in_another_shape(name: str) -> None:
    window, shape, stays = RESHAPED[name]
    found = reshape_window(window, shape)
    assert found.shape == shape and torch.equal(found.dense().data, window.dense().data.reshape(3, *shape))
    assert torch.equal(found.row, window.row) and torch.equal(found.image, window.image)
    whole = window.is_full or not stays
    assert found.is_full == (whole or found.extent == shape)
    if stays:
        assert found.data.numel() == window.data.numel()
    assert not reshape_window(replace(window, ordered=False), shape).ordered and found.ordered


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 3), (2, 3), (0, 1, 2)])
def test_dimensions_of_one_are_put_in(axes: tuple[int, ...]) -> None:
    window = box((3, 4), (EACH, BESIDE), (1, 2))
    found, expected = insert_axes(window, axes), window.dense().data
    for axis in axes:
        expected = expected.unsqueeze(axis + 1)
    assert torch.equal(found.dense().data, expected) and found.overhang.count(True) == 1


# --- sliding windows -------------------------------------------------------------------------------------------------


@given(
    kernel=st.integers(1, 4), stride=st.integers(1, 3), padding=st.integers(0, 3), size=st.integers(4, 9), each=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_unit_reaches_what_the_transpose_says(
    kernel: int, stride: int, padding: int, size: int, each: bool, seed: int
) -> None:
    """Of rows with a box each, and of rows that all have the same, which is cut to the map."""
    length = (size + 2 * padding - kernel) // stride + 1
    place = torch.tensor([seed % length, seed // 7 % length])
    place = place if each else place[:1].expand(2)
    row = torch.arange(2)
    ones = torch.ones(2, 1, 1, dtype=torch.float64)
    origin: tuple[Origin, ...] = (0, Corners(place, length) if each else int(place[0]))
    unit = Window(ones, origin, (1, length), row, row)
    weight = torch.arange(1.0, kernel + 1, dtype=torch.float64)
    found = window_below(unit, weight.expand(2, 1, kernel), 0, (1, size), ((stride,), (padding,)))
    maps = torch.zeros(2, 1, length, dtype=torch.float64)
    maps[row, 0, place] = 1
    rest = size + 2 * padding - kernel - (length - 1) * stride  # of the map, which no kernel reached
    whole = F.conv_transpose1d(maps, weight[None, None], stride=stride)
    expected = F.pad(whole, (0, rest))[:, :, padding : padding + size]
    assert_close(found.dense().data, expected)
    assert not found.overhang[0]
    if not each:
        assert not any(found.overhang)


def test_a_network_whose_head_sees_nothing_but_padding() -> None:
    """Every row of the classes has the same box there, beside the map below."""
    convolution, head = torch.ones(2, 1, 1, 1), torch.ones(8, 2)
    model = Function(lambda x: F.conv2d(F.relu(x), convolution, padding=2)[:, :, :1].flatten(1)[:, :8] @ head)
    (found,) = pathx.explain(model, torch.rand(1, 1, 3, 3), depth=1)
    assert found.path[0].below_alpha or not found.path[0].units
    assert found.score == 0 and not found.attribution.any()


# --- autograd of one operation ----------------------------------------------------------------------------------------


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(3), dtype=torch.float64)


ONE, HEAD, MATRIX = numbers(1, 3, 4), numbers(12, 2), numbers(4, 4)
PLACES = torch.arange(36).reshape(3, 3, 4) % 3

ALONE: dict[str, Callable[[Tensor], Tensor]] = {
    # Where a first dimension of 1 is no batch, and where what is frozen has one image's numbers in each row.
    "a fixed tensor with one in front": lambda x: torch.lerp(F.relu(x), ONE, 0.25),
    "fixed places, others for every image": lambda x: F.relu(x).gather(1, PLACES[: len(x)]),
    "places of each image's own": lambda x: F.relu(x).gather(1, x.argsort(1)),
    "written where each image's own places are": lambda x: F.relu(x).scatter_add(1, x.argsort(1), F.relu(-x)),
    "a matrix of each image's own": lambda x: torch.bmm((x > 0).double(), F.relu(x).mT).repeat(1, 1, 2)[:, :, :4],
    "the same matrix for all": lambda x: torch.bmm(F.relu(x), MATRIX.expand(len(x), 4, 4)),
    "a constant part": lambda x: torch.lerp(F.relu(x), torch.full((3, 4), 5.0).double(), 0.5),
}


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("count", [1, 3])
def test_everything_kept_is_the_gradient_and_what_is_left_the_bias(name: str, count: int) -> None:
    model = Function(lambda x: F.relu(ALONE[name](x)).flatten(1) @ HEAD)
    images = numbers(count, 3, 4)
    found = pathx.explain(model, images, target=1, depth=1, width="all", alpha=0.0)
    x = images.clone().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), x)
    for one, expected, image, row in zip(found, gradient, images, logits.detach(), strict=True):
        assert_close(one.weight, expected)
        assert_close(one.bias, float(row[1] - (expected * image).sum()))
