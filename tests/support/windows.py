"""Windows of every kind over a map: whole maps, boxes for all rows and for each, single elements, and what sticks out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.record.operations import Value
from pathx.engine.window import Corners, Origin, Window

ROWS = 4
IMAGE = torch.tensor([0, 1, 1, 0])


def corners(places: Tensor | list[int]) -> Corners:
    """Corners at these places; what they know of is the lowest and the highest of them."""
    numbers = torch.as_tensor(places)
    low, high = int(numbers.min()), int(numbers.max())
    return Corners(numbers - low, high - low + 1, offset=low)


def window(shape: tuple[int, ...], starts: tuple[int | Tensor, ...], extent: tuple[int, ...]) -> Window:
    """Four cotangents of two images; what sticks out of the map holds numbers all the same."""
    data = torch.randn(ROWS, *extent, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    origin: tuple[Origin, ...] = tuple(one if isinstance(one, int) else corners(one) for one in starts)
    made = Window(data, origin, shape, torch.arange(ROWS), IMAGE)
    return replace(made, clean=not any(made.overhang))


def windows(shape: tuple[int, ...]) -> dict[str, Window]:
    """By what they are."""
    if not shape:
        return {"numbers": window((), (), ())}
    half = tuple((size + 1) // 2 for size in shape)
    ones, zeros = (1,) * len(shape), (0,) * len(shape)
    inside = tuple(
        (torch.tensor([0, 3, 1, 2]) + dim) * (size - part) // 3 % (size - part + 1)
        for dim, (size, part) in enumerate(zip(shape, half, strict=True))
    )
    anywhere = tuple((torch.tensor([0, 5, 3, 7]) + 2 * dim) % size for dim, size in enumerate(shape))
    beside = tuple(torch.tensor([-1, size - 1, 0, size - part + 1]) for size, part in zip(shape, half, strict=True))
    outside = tuple(torch.tensor([-1, size - 1, size, 0]).roll(dim) for dim, size in enumerate(shape))
    return {
        "whole maps": window(shape, zeros, shape),
        "a box for all, at the start": window(shape, zeros, half),
        "a box for all, at the end": window(shape, tuple(a - b for a, b in zip(shape, half, strict=True)), half),
        "a box for all, in a corner": window(shape, tuple(size - 1 for size in shape), ones),
        "a box each": window(shape, inside, half),
        "a box each of all channels": window(shape, (0, *inside[1:]), (shape[0], *half[1:])),
        "a column each": window(shape, (0, *anywhere[1:]), (shape[0], *ones[1:])),
        "a plane each": window(shape, (anywhere[0], *zeros[1:]), (1, *shape[1:])),
        "an element each": window(shape, anywhere, ones),
        **(
            {
                "a beam each, down": window(shape, (inside[0], 0, *inside[2:]), (half[0], shape[1], *half[2:])),
                "a beam each, across": window(shape, (*inside[:-1], 0), (*half[:-1], shape[-1])),
            }
            if len(shape) > 2
            else {}
        ),
        "sticking out": window(shape, (0, *beside[1:]), (shape[0], *half[1:])),
        "sticking out of channels too": window(shape, beside, half),
        "columns outside": window(shape, (0, *outside[1:]), (shape[0], *ones[1:])),
        "elements outside": window(shape, outside, ones),
        "elements of channels outside": window(shape, (outside[0], *anywhere[1:]), ones),
    }


def added_up(cotangents: Iterable[tuple[Value, Window]]) -> dict[Value, Tensor]:
    """By value, whole maps for every row: whatever boxes and rows there are."""
    result: dict[Value, Tensor] = {}
    for value, one in cotangents:
        maps = result.setdefault(value, one.data.new_zeros(ROWS, *one.shape))
        maps.index_add_(0, one.row, one.dense().data)
    return result
