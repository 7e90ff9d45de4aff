"""A window is a map that is zero outside of its box, whatever is done with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.modules import assert_gradient
from support.pulled import corners
from torch import Tensor, nn

from pathx.engine.rules.shared import reshape_window
from pathx.engine.window import Corners, Origin, Window

SHAPE = (3, 7, 6)


def boxes(starts: tuple[int | list[int], ...], extent: tuple[int, ...]) -> Window:
    """Four cotangents, of two images."""
    data = torch.randn(4, *extent, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    origin: tuple[Origin, ...] = tuple(one if isinstance(one, int) else corners(one) for one in starts)
    row, image = torch.arange(4), torch.tensor([0, 1, 1, 0])
    window = Window(data, origin, SHAPE, row, image)
    return replace(window, clean=not any(window.overhang))


WINDOWS = {
    "whole maps": Window.full(torch.randn(4, *SHAPE, dtype=torch.float64), torch.arange(4), torch.tensor([0, 1, 1, 0])),
    "one box for all": boxes((1, 2, 0), (2, 3, 4)),
    "a box each": boxes((0, [0, 4, 2, 1], [3, 0, 1, 2]), (3, 3, 3)),
    "sticking out": boxes((0, [-2, 5, 2, -1], [4, -1, 1, 2]), (3, 3, 3)),
    "sticking out by one": boxes(([-1, 2, 0, 1], 2, [-1, 5, 1, 5]), (2, 3, 2)),
    "larger than the map": boxes((0, [-1, -3, -2, 0], 0), (3, 11, 6)),
    "single elements": boxes(([0, 2, 1, 2], [6, 0, 3, 6], [5, 0, 2, 0]), (1, 1, 1)),
    "columns": boxes((0, 0, [0, 5, 2, 3]), (3, 7, 1)),
    "rows, one for all": boxes((0, 3, 0), (3, 1, 6)),
    "the last element": boxes((2, 6, 5), (1, 1, 1)),
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


@pytest.mark.parametrize(("step", "length"), [(0, 3), (1, 3), (2, 3), (-1, 5), (-2, 2), (7, 1)])
@pytest.mark.parametrize("name", WINDOWS)
def test_a_union_is_the_sum_of_the_maps(name: str, step: int, length: int) -> None:
    """With a box of another length that starts beside or inside of the first."""
    window = WINDOWS[name]
    start = window.origin[1]
    moved = start.move(1, step) if isinstance(start, Corners) else max(0, min(start + step, SHAPE[1] - length))
    data = torch.randn(4, window.extent[0], length, window.extent[2], dtype=torch.float64)
    origin = (window.origin[0], moved, window.origin[2])
    other = Window(data, origin, SHAPE, window.row, window.image, clean=False)
    union = window.union(other)
    if union is None:
        assert step == 7 or length != window.extent[1] or abs(step) >= length
    else:
        torch.testing.assert_close(union.dense().data, literal(window) + literal(other))


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", WINDOWS)
def test_every_small_shift_of_every_dimension(name: str, dim: int) -> None:
    """Whatever sticks out beside the map stays out, though the map that it is moved to may be larger there."""
    window, length = WINDOWS[name], SHAPE[dim]
    whole = literal(window).movedim(dim + 1, 0)
    for offset in (-50, -length + 1, -1, 0, 2, length):
        for step in (1, 2):
            for size in {1, length, step * (length - 1) + offset + 1, 3 * length}:
                if size < 1:
                    continue
                moved = torch.zeros(size, *whole.shape[1:], dtype=torch.float64)
                places = [place for place in range(length) if 0 <= place * step + offset < size]
                moved[[place * step + offset for place in places]] = whole[places]
                found = window.shift(dim, offset, size, step=step)
                assert found.shape[dim] == size and (found.data.numel() or not moved.any())
                if found.data.numel():
                    assert torch.equal(found.dense().data, moved.movedim(0, dim + 1))


class _LinearSkips(nn.Module):
    """Blocks x + scale * (pool(x) - x) without a gate, as PoolFormer has them: each would multiply a row's windows by three."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)
        self.pool, self.scale = nn.AvgPool2d(3, 1, 1), nn.Parameter(torch.rand(blocks, 4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        for scale in self.scale:
            x = x + scale * (self.pool(x) - x)
        result: Tensor = self.head(self.last(x).relu().mean((2, 3)))
        return result


def test_windows_do_not_multiply_in_linear_skips() -> None:
    model, images = _LinearSkips(12).double().eval(), torch.randn(1, 3, 12, 12, dtype=torch.float64)
    assert_gradient(model, images)


@pytest.mark.parametrize(
    ("shape", "extent", "moving", "result", "stays"),
    [
        ((6, 8), (1, 8), {0: 6}, (2, 3, 1, 8), (1, 1, 1, 8)),  # one place, split
        ((2, 3, 8), (1, 1, 8), {0: 2, 1: 3}, (6, 8), (1, 8)),  # one place, merged
        ((5, 3, 4), (1, 3, 4), {0: 5}, (5, 12), (1, 12)),
        ((5, 4, 2), (2, 4, 2), {0: 4}, (20, 2), (8, 2)),  # merged behind a box
        ((4, 6), (4, 2), {1: 5}, (1, 2, 2, 6), (1, 2, 2, 2)),
        ((4, 6), (2, 3), {0: 3, 1: 4}, (24,), (24,)),  # no box can hold it
    ],
)
def test_windows_keep_their_boxes_in_other_shapes(
    shape: tuple[int, ...],
    extent: tuple[int, ...],
    moving: dict[int, int],
    result: tuple[int, ...],
    stays: tuple[int, ...],
) -> None:
    """What attention does to tokens: heads are split off and merged, windows cut out of maps and put back."""
    generator = torch.Generator().manual_seed(0)
    origin = tuple(
        Corners(torch.randint(moving[dim], (7,), generator=generator), moving[dim]) if dim in moving else 0
        for dim in range(len(shape))
    )
    row = torch.arange(7)
    window = Window(torch.randn(7, *extent, generator=generator), origin, shape, row, row)
    other = reshape_window(window, result)
    assert other.extent == stays
    assert torch.equal(other.dense().data, window.dense().data.reshape(7, *result))
