"""A window is a map that is zero outside of its box, whatever is done with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pathx.engine.window import MOST_REMEMBERED, Corners, Origin, Window, spread, unravelled

SHAPE = (3, 7, 6)


def boxes(starts: tuple[int | list[int], ...], extent: tuple[int, ...]) -> Window:
    """Four cotangents, of two images."""
    data = torch.randn(4, *extent, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    origin: tuple[Origin, ...] = tuple(one if isinstance(one, int) else at(one) for one in starts)
    row, image = torch.arange(4), torch.tensor([0, 1, 1, 0])
    window = Window(data, origin, SHAPE, row, image)
    return replace(window, clean=not any(window.overhang))


def at(places: list[int]) -> Corners:
    """Corners at these places, and no others between the lowest and the highest of them."""
    low = min(places)
    return Corners(torch.tensor(places) - low, max(places) - low + 1, offset=low)


WINDOWS = {
    "whole maps": Window.full(torch.randn(4, *SHAPE, dtype=torch.float64), torch.arange(4), torch.tensor([0, 1, 1, 0])),
    "one box for all": boxes((1, 2, 0), (2, 3, 4)),
    "a box each": boxes((0, [0, 4, 2, 1], [3, 0, 1, 2]), (3, 3, 3)),
    "sticking out": boxes((0, [-2, 5, 2, -1], [4, -1, 1, 2]), (3, 3, 3)),
}


def literal(window: Window) -> Tensor:
    """The maps, element by element."""
    maps = torch.zeros(len(window.data), *window.shape, dtype=window.data.dtype)
    for number in range(len(window.data)):
        start = [one if isinstance(one, int) else int(one.numbers[number]) for one in window.origin]
        for place in torch.cartesian_prod(*map(torch.arange, window.extent)).tolist():
            at = [a + b for a, b in zip(start, place, strict=True)]
            if all(0 <= a < size for a, size in zip(at, window.shape, strict=True)):
                maps[(number, *at)] += window.data[(number, *place)]
    return maps


@pytest.mark.parametrize("name", WINDOWS)
def test_dense_is_the_map_with_zeros_around_the_box(name: str) -> None:
    window = WINDOWS[name]
    assert torch.equal(window.dense().data, literal(window)) and window.dense().is_full


@pytest.mark.parametrize("name", WINDOWS)
def test_scaling_is_scaling_of_the_map(name: str) -> None:
    window = WINDOWS[name]
    for values in (torch.randn(2, *SHAPE).double(), torch.randn(1, *SHAPE).double(), torch.randn(1, 3, 1, 1).double()):
        whole = values.expand(2, *values.shape[1:])[window.image]
        assert torch.equal(window.scale(values).dense().data, literal(window) * whole)


@pytest.mark.parametrize(
    ("offset", "size", "step"), [(0, 7, 1), (2, 12, 1), (-3, 3, 1), (1, 16, 2), (-4, 9, 2), (-50, 5, 1)]
)
@pytest.mark.parametrize("name", WINDOWS)
def test_a_shift_moves_the_map_and_drops_what_leaves_it(name: str, offset: int, size: int, step: int) -> None:
    window = WINDOWS[name]
    moved = torch.zeros(4, SHAPE[0], size, SHAPE[2], dtype=torch.float64)
    for place in range(SHAPE[1]):
        if 0 <= place * step + offset < size:
            moved[:, :, place * step + offset] = literal(window)[:, :, place]
    assert torch.equal(window.shift(1, offset, size, step=step).dense().data, moved)


@pytest.mark.parametrize("name", WINDOWS)
def test_some_rows_are_rows_of_the_map(name: str) -> None:
    window, keep = WINDOWS[name], torch.tensor([3, 0])
    assert torch.equal(window.rows(keep).dense().data, literal(window)[keep])


def test_a_unit_is_a_window_of_one_element() -> None:
    index, value = torch.tensor([0, 125, 41]), torch.tensor([1.0, 2.0, 3.0])
    window = Window.one_hot(value, index, SHAPE, torch.arange(3), torch.zeros(3, dtype=torch.long))
    assert window.is_one_hot and window.dense().data.flatten(1).argmax(1).tolist() == index.tolist()
    assert unravelled(41, SHAPE) == (0, 6, 5)
    assert torch.equal(window.thin(), window.data)


def test_dimensions_that_repeat_one_value_are_thin() -> None:
    window = WINDOWS["whole maps"]
    repeated = replace(window, data=torch.randn(4, 3, 1, 1).expand(4, *SHAPE))
    assert repeated.thin().shape == (4, 3, 1, 1)
    assert torch.equal(repeated.thin().expand(4, *SHAPE), repeated.data)


def test_zeros_are_spread_between_neighbours() -> None:
    assert spread(torch.tensor([[1, 2, 3]]), 1, 3).tolist() == [[1, 0, 0, 2, 0, 0, 3]]


@pytest.mark.parametrize(("step", "offset"), [(1, 0), (1, -2), (2, 1), (3, -4)])
def test_corners_know_their_places_and_how_far_boxes_stick_out(step: int, offset: int) -> None:
    """From a table, or computed where the table would be too large; for any map and any extent."""
    for count, extent, size in ((5, 3, 9), (1, 4, 4), (MOST_REMEMBERED, 2, 7)):
        base = torch.tensor([0, count // 2, count - 1])
        corners = Corners(base, count).moved(step, offset)
        assert torch.equal(corners.numbers, base * step + offset)
        places = corners.numbers[:, None] + torch.arange(extent)
        assert torch.equal(corners.inside(extent, size), (places >= 0) & (places < size))
        assert corners.beyond(extent, size) == (max(0, -int(places.min())), max(0, int(places.max()) + 1 - size))
        assert corners.sticks_out(extent, size) == bool((places < 0).any() or (places >= size).any())
        bounded = corners.within(-1, size)
        assert torch.equal(bounded.numbers, corners.numbers.clamp(-1, size))
        assert bounded.offset >= -1 and bounded.beyond(1, size + 1) == (max(0, -bounded.offset), 0)
        assert torch.equal(corners.rows(torch.tensor([2, 0])).numbers, corners.numbers[[2, 0]])
