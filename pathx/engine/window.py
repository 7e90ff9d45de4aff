"""Windows: cotangents that are known on a box of a map and are zero elsewhere.

A unit of a feature map reaches only its receptive field in the layer below, so its cotangent is kept as a window: a small
block with an origin. A full map is the largest window, a single unit a window of one element: channels are a dimension
like height and width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import TypeVar, cast

import torch
from torch import Tensor


@dataclass(eq=False)  # not frozen: that takes microseconds more for each of the thousands that a path makes
class Corners:
    """Where boxes start along one dimension, one place each: step * base + offset.

    On the way down only `step` and `offset` change, on the host: no kernel is launched until the places are asked for, and
    how far boxes may stick out of a map is known without a look at the device.

    Args:
        base: (P,) numbers from 0 to count - 1.
    """

    base: Tensor
    count: int
    step: int = 1
    offset: int = 0

    def move(self, step: int, offset: int) -> Corners:
        """In the coordinates p' = step * p + offset."""
        return Corners(self.base, self.count, self.step * step, self.offset * step + offset)

    @cached_property
    def numbers(self) -> Tensor:
        """(P,) the places themselves."""
        numbers = times(self.base, self.step)
        return numbers + self.offset if self.offset else numbers

    @property
    def last(self) -> int:
        """The largest place that is possible; the smallest is the offset."""
        return self.offset + self.step * (self.count - 1)

    def sticks_out(self, extent: int, size: int) -> bool:
        """Whether boxes of this extent may stick out of a map that is `size` long."""
        return self.offset < 0 or self.last + extent > size


Origin = int | Corners


@dataclass(eq=False)
class Window:
    """P cotangents of one tensor of shape (B, *shape).

    Args:
        data: (P, *extent).
        origin: by dimension, where the boxes start: one number for all of them, or one place each.
        shape: of the full map, without the batch.
        row: (P,) the row of the Jacobian that each cotangent belongs to; rows may repeat, their cotangents add up.
        image: (P,) the image of the batch that each belongs to.
        clean: data outside of the map is zero.
        ordered: `row` counts up from 0 without a gap.
    """

    data: Tensor
    origin: tuple[Origin, ...]
    shape: tuple[int, ...]
    row: Tensor
    image: Tensor
    clean: bool = True
    ordered: bool = True

    @staticmethod
    def full(data: Tensor, row: Tensor, image: Tensor) -> Window:
        """Whole maps."""
        shape = tuple(data.shape[1:])
        return Window(data, (0,) * len(shape), shape, row, image)

    @staticmethod
    def one_hot(value: Tensor, index: Tensor, shape: tuple[int, ...], row: Tensor, image: Tensor) -> Window:
        """One element each: `value` (P,) at the flat `index` (P,)."""
        data = value.reshape(-1, *(1,) * len(shape))
        origin = tuple(map(Corners, unravel(index, shape), shape)) if shape else ()
        return Window(data, origin, shape, row, image)

    def whole(self, data: Tensor) -> Window:
        """Whole maps with the rows of this window."""
        shape = tuple(data.shape[1:])
        return Window(data, (0,) * len(shape), shape, self.row, self.image, ordered=self.ordered)

    def with_data(self, data: Tensor) -> Window:
        """The same boxes with other data."""
        return Window(data, self.origin, self.shape, self.row, self.image, self.clean, self.ordered)

    @cached_property
    def extent(self) -> tuple[int, ...]:
        return tuple(self.data.shape[1:])

    @cached_property
    def overhang(self) -> tuple[bool, ...]:
        """By dimension, whether boxes may stick out of the map."""
        return tuple(
            isinstance(origin, Corners) and origin.sticks_out(extent, size)
            for origin, extent, size in zip(self.origin, self.extent, self.shape, strict=True)
        )

    def covers(self, dim: int) -> bool:
        """Whether the box is the whole map in this dimension."""
        origin = self.origin[dim]
        return isinstance(origin, int) and origin == 0 and self.extent[dim] == self.shape[dim]

    @cached_property
    def is_full(self) -> bool:
        return self.extent == self.shape and all(isinstance(origin, int) and origin == 0 for origin in self.origin)

    @property
    def is_one_hot(self) -> bool:
        return prod(self.extent) == 1 and not self.is_full

    def position(self, dim: int) -> Tensor:
        """Coordinates of the box in one dimension, shaped to broadcast against `data`: (P or 1, 1, …, extent, …, 1)."""
        origin, extent, dims = self.origin[dim], self.extent[dim], len(self.shape)
        first = origin if isinstance(origin, int) else origin.offset
        places = cached_range(extent, 1, first, self.data.device).reshape(_along(dim, extent, dims))
        if isinstance(origin, int):
            return places
        return torch.add(places, origin.base.reshape(-1, *(1,) * dims), alpha=origin.step)

    def inside(self) -> Tensor | None:
        """Which elements lie inside the map, broadcastable to `data`; None if all do."""
        mask = None
        for dim, out in enumerate(self.overhang):
            if out:
                place = self.position(dim)
                here = (place >= 0) & (place < self.shape[dim])
                mask = here if mask is None else mask & here
        return mask

    def index(self, sizes: tuple[int, ...] | None = None) -> Tensor:
        """Flat index of every element in a map of `sizes` (1 = broadcast), broadcastable to `data`.

        Elements outside of the map get an arbitrary index inside of it.
        """
        sizes = sizes or self.shape
        strides = _strides(sizes)
        first, start = self.corner(strides)
        if first is None:
            return _grid(self.extent, strides, start, self.data.device)
        index = first.reshape(-1, *(1,) * len(self.shape))
        if start or prod(self.extent) > 1:
            index = index + _grid(self.extent, strides, start, self.data.device)
        return index.clamp(0, prod(sizes) - 1) if any(self.overhang) else index

    def corner(self, strides: tuple[int, ...]) -> tuple[Tensor | None, int]:
        """Flat index of the boxes' first elements: (P,) numbers (None where all are 0), plus a number for all of them."""
        first: Tensor | None = None
        start = 0
        for origin, stride in zip(reversed(self.origin), reversed(strides), strict=True):  # the last has a stride of 1
            if isinstance(origin, int):
                start += origin * stride
            elif stride:
                start += origin.offset * stride
                far = origin.step * stride
                first = times(origin.base, far) if first is None else torch.add(first, origin.base, alpha=far)
        return first, start

    def read(self, values: Tensor) -> Tensor:
        """The values (B or 1, *sizes) that lie under the boxes; a size of 1 stands for the whole dimension."""
        sizes = tuple(values.shape[1:])
        if all(self.covers(dim) or size == 1 for dim, size in enumerate(sizes)):
            return values if values.shape[0] == 1 else values.index_select(0, self.image)
        if not any(self.overhang) and all(isinstance(origin, int) for origin in self.origin):
            for dim, (origin, size) in enumerate(
                zip(self.origin, sizes, strict=True), start=1
            ):  # one box for all: not copied
                if size != 1:
                    values = values.narrow(dim, cast(int, origin), self.extent[dim - 1])
            return values if values.shape[0] == 1 else values.index_select(0, self.image)
        index = self.index(sizes)
        if len(values) > 1:
            image = self.image.reshape(-1, *(1,) * len(sizes))
            index = index + image * prod(sizes)
        return values.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.shape)

    def scale(self, values: Tensor) -> Window:
        """Elementwise product with the values (B or 1, *sizes) under the boxes."""
        return self.with_data(self.data * self.read(values))

    def clear_outside(self) -> Window:
        """The same cotangents with what sticks out of the map set to zero."""
        if self.clean:
            return self
        mask = self.inside()
        return replace(self, data=self.data if mask is None else self.data * mask, clean=True)

    def dense(self) -> Window:
        """The same cotangents as whole maps."""
        if self.is_full:
            return self
        source = self.clear_outside()
        maps = source.data.new_zeros(len(source.data), prod(self.shape))
        index = source.index().expand_as(source.data)
        maps.scatter_add_(1, index.flatten(1), source.data.flatten(1))
        return self.whole(maps.reshape(-1, *self.shape))

    def union(self, other: Window) -> Window | None:
        """The sum of cotangents of the same rows as one window, where a box that is not much larger holds both; else None."""
        origin: list[Origin] = []
        extent, places = [], []
        for mine, its, length, its_length in zip(self.origin, other.origin, self.extent, other.extent, strict=True):
            if (
                isinstance(mine, Corners)
                and isinstance(its, Corners)
                and mine.base is its.base
                and mine.step == its.step
            ):
                first, second = mine.offset, its.offset
            elif isinstance(mine, int) and isinstance(its, int):
                first, second = mine, its
            else:
                return None
            start = min(first, second)
            origin.append(Corners(mine.base, mine.count, mine.step, start) if isinstance(mine, Corners) else start)
            extent.append(max(first + length, second + its_length) - start)
            places.append((first - start, second - start))
        if self.extent == other.extent == tuple(extent):
            data = self.data + other.data
        elif prod(extent) > 2 * max(prod(self.extent), prod(other.extent)):
            return None
        else:
            data = self.data.new_zeros(len(self.data), *extent)
            for window, at in zip((self, other), zip(*places, strict=True), strict=True):
                box = [slice(start, start + length) for start, length in zip(at, window.extent, strict=True)]
                data[(slice(None), *box)] += window.data
        return replace(self, data=data, origin=tuple(origin), clean=self.clean and other.clean)

    def permute(self, order: Sequence[int]) -> Window:
        """The same cotangents with the dimensions in another order, that of the batch (0) first."""
        dims = [dim - 1 for dim in order[1:]]
        origin, shape = tuple(self.origin[dim] for dim in dims), tuple(self.shape[dim] for dim in dims)
        return replace(self, data=self.data.permute(*order), origin=origin, shape=shape)

    def shift(self, dim: int, offset: int, size: int, *, step: int = 1) -> Window:
        """In the coordinates p' = step * p + offset of a map that is `size` long in `dim`; what lies outside is dropped."""
        old = self.shape[dim]
        if self.overhang[dim] and not self.clean and (offset > 0 or (old - 1) * step + offset < size - 1):
            return self.clear_outside().shift(
                dim, offset, size, step=step
            )  # what sticks out would lie inside the larger map
        data, extent = self.data, self.extent[dim]
        if step > 1 and extent > 1:
            data = spread(data, dim + 1, step)
            extent = data.shape[dim + 1]
        old_start = self.origin[dim]
        start: Origin
        if isinstance(old_start, int):  # known for all: cut to the map at once
            start = old_start * step + offset
            first, last = max(0, -start), min(extent, size - start)
            if last <= first:
                first = last = 0
            data, start, out = data.narrow(dim + 1, first, last - first), start + first if last > first else 0, False
        else:
            start = old_start.move(step, offset)
            out = start.sticks_out(extent, size)
        return replace(
            self,
            data=data,
            origin=with_item(self.origin, dim, start),
            shape=with_item(self.shape, dim, size),
            clean=self.clean and not out,
        )


Index = TypeVar("Index", int, Tensor)


def unravel(index: Index, shape: tuple[int, ...]) -> tuple[Index, ...]:
    """Coordinates of a flat index, or of a tensor of them. (torch's own checks its input at length.)"""
    coordinates: list[Index] = []
    for size in reversed(shape[1:]):
        coordinates.append(index % size)
        index = index // size
    coordinates.append(index)
    return tuple(reversed(coordinates))


def cached_arange(count: int, device: torch.device) -> Tensor:
    """0, 1, …, (count,), to be read only: it is made once."""
    return cached_range(count, 1, 0, device)


def cached_range(count: int, step: int, start: int, device: torch.device) -> Tensor:
    """(count,) start, start + step, …, to be read only: it is made once."""
    if count > MOST_REMEMBERED:
        return torch.arange(count, device=device) * step + start
    return remember(("spaced", count, step, start), device, lambda: torch.arange(count) * step + start)


def _along(dim: int, extent: int, dims: int) -> tuple[int, ...]:
    """The shape of numbers for one dimension of a box, to be broadcast over the others and the rows."""
    return with_item((1,) * (dims + 1), dim + 1, extent)


def times(numbers: Tensor, factor: int) -> Tensor:
    """A product; without a launch where the factor is 1."""
    return numbers if factor == 1 else numbers * factor


@lru_cache
def _strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Of a map that lies in memory in order; 0 where there is but one place."""
    return tuple(0 if size == 1 else prod(sizes[dim + 1 :]) for dim, size in enumerate(sizes))


def _grid(extent: tuple[int, ...], strides: tuple[int, ...], start: int, device: torch.device) -> Tensor:
    """Flat index of every element of a box that begins at index `start`: (1, *extent), or 1 where the stride is 0."""

    def make() -> Tensor:
        index = torch.full((1,) * (len(extent) + 1), start)
        for dim, (size, stride) in enumerate(zip(extent, strides, strict=True)):
            if stride:
                index = index + (torch.arange(size) * stride).reshape(_along(dim, size, len(extent)))
        return index

    size = prod(length for length, stride in zip(extent, strides, strict=True) if stride)
    return remember(("grid", extent, strides, start), device, make, keep=size <= MOST_REMEMBERED)


MOST_REMEMBERED = 1 << 16
"""How many numbers a constant may have to be kept for the next call."""

MOST_CONSTANTS = 4096
"""How many constants are kept; a deep network has several for every layer."""

_REMEMBERED: dict[tuple[object, ...], Tensor] = {}


def remember(what: tuple[object, ...], device: torch.device, make: Callable[[], Tensor], keep: bool = True) -> Tensor:
    """A small constant on a device, made when it is first asked for: a launch saved, wherever it is needed again."""
    known = _REMEMBERED.get((*what, device))
    if known is None:
        with torch.inference_mode(False), torch.device("cpu"):
            known = make().to(device)
        if keep and type(known) is Tensor:  # not a fake one
            held = sum(map(Tensor.numel, _REMEMBERED.values()))
            if len(_REMEMBERED) >= MOST_CONSTANTS or held > 64 * MOST_REMEMBERED:
                _REMEMBERED.clear()
            _REMEMBERED[(*what, device)] = known
    return known


def with_item(items: tuple, dim: int, item: object) -> tuple:  # type: ignore[type-arg]
    """The tuple with one item exchanged."""
    return (*items[:dim], item, *items[dim + 1 :])


def spread(data: Tensor, dim: int, step: int) -> Tensor:
    """The data with step - 1 zeros between neighbours along `dim`."""
    zeros = data.new_zeros(*data.shape[: dim + 1], step - 1, *data.shape[dim + 1 :])
    wide = torch.cat([data.unsqueeze(dim + 1), zeros], dim + 1).flatten(dim, dim + 1)
    return wide.narrow(dim, 0, (data.shape[dim] - 1) * step + 1)
