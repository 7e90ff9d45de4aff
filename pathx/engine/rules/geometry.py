"""What operations do with the batch and with places, from shapes and settings alone.

A batch rule says whether a call leaves the images of a batch apart. A field rule says what the elements of its result see, and
where they are; without one, they see the whole input and have no place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value


@dataclass(frozen=True, eq=False)
class Field:
    """What the elements of a value see of the input, and where they are in it: a table for either axis of the image.

    A table is (4, *shape of the value), the batch included, and has size 1 in dimensions that make no difference. The pixels
    [first, last) that an element sees along the axis are its entries first and -last; the interval of its place, whose middle
    is where the element is, are low and -high. So the union of two fields is their minimum. An element that sees nothing, or has no
    place, has infinities.
    """

    down: Tensor
    across: Tensor

    @staticmethod
    def of_input(shape: tuple[int, ...]) -> Field:
        """Every pixel of (B, C, H, W) sees itself."""
        tables = []
        for dim in (-2, -1):
            pixel = torch.arange(shape[dim], dtype=torch.float32)
            table = torch.stack([pixel, -pixel - 1, pixel + 0.5, -pixel - 0.5])
            tables.append(table.reshape(4, *(shape[dim] if dim == d else 1 for d in range(-len(shape), 0))))
        return Field(*tables)

    @staticmethod
    def everything(size: tuple[int, ...], rank: int) -> Field:
        """Values of so many dimensions whose elements see all of (…, H, W), and have no place."""
        return Field(
            *(torch.tensor([0.0, -size[dim], math.inf, math.inf]).reshape(4, *(1,) * rank) for dim in (-2, -1))
        )

    @property
    def tables(self) -> tuple[Tensor, Tensor]:
        return self.down, self.across

    def change(self, change: Callable[[Tensor], Tensor]) -> Field:
        """The field with both tables changed."""
        return Field(*map(change, self.tables))


@dataclass(frozen=True, eq=False)
class Shapes:
    """A recorded call with the shapes of its values.

    Args:
        shapes: by value, the batch included.
        varying: the inputs that vary with the image.
        depending: the varying ones and those that are frozen at it.
        fields: of the varying inputs.
    """

    node: Node
    shapes: dict[Value, tuple[int, ...]]
    varying: list[Value]
    depending: list[Value]
    fields: dict[Value, Field]
    batch: int

    def arg(self, position: int, default: Any = None) -> Any:
        """An argument by position. (torch leaves out defaults at the end.)"""
        return self.node.args[position] if position < len(self.node.args) else default

    @property
    def source(self) -> tuple[int, ...]:
        """Shape of the first input that varies."""
        return self.shapes[self.varying[0]]

    @property
    def field(self) -> Field:
        """Of the first input that varies."""
        return self.fields[self.varying[0]]

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the first output."""
        output = self.node.outputs[0]
        return self.shapes[output] if output is not None else ()

    def dims(self, position: int, default: Any = None) -> list[int] | None:
        """The dimensions that an argument names, counted from the front; None where it names none."""
        dims = self.arg(position, self.node.kwargs.get("dim", default))
        if dims is None or dims == []:
            return None
        rank = max(1, len(self.source))
        return [dim % rank for dim in (dims if isinstance(dims, (list, tuple)) else [dims])]


BatchRule = Callable[[Shapes], bool]
FieldRule = Callable[[Shapes], Field | list[Field] | None]
"""One field for all outputs, or one for each."""


# --- batch rules ----------------------------------------------------------------------------------------------------


def elementwise(call: Shapes) -> bool:
    """What depends on the images has the rank of the result, with the images in front: broadcasting cannot mix them.

    One image has nothing to be mixed with, however it is broadcast.
    """
    rank = len(call.result)
    return call.batch == 1 or all(
        len(shape) == rank and shape[0] == call.batch for shape in (call.shapes[value] for value in call.depending)
    )


def batch_in_front(call: Shapes) -> bool:
    """What depends on the images has them in front; for operations that keep the first dimension as it is."""
    return all(call.shapes[value][:1] == (call.batch,) for value in call.depending)


def along(position: int, default: Any = None, *, mixes: bool = False) -> dict[str, Any]:
    """For what works along the dimensions that an argument names (all, where it names none): none may be the batch dimension.

    Args:
        mixes: every element sees all elements along these dimensions.
    """

    def keeps_batch(call: Shapes) -> bool:
        dims = call.dims(position, default)
        return batch_in_front(call) and dims is not None and 0 not in dims

    def field(call: Shapes) -> Field | None:
        dims = call.dims(position, default) or range(len(call.source))
        dropped = len(call.source) - len(call.result)

        def change(table: Tensor) -> Tensor:
            table = mix(table, dims)
            return table.squeeze([dim + 1 for dim in dims]) if dropped else table

        return call.field.change(change) if dropped in (0, len(dims)) else None

    return {"keeps_batch": keeps_batch, "dims": position, **({"field": field} if mixes else {})}


# --- field rules ----------------------------------------------------------------------------------------------------


def keeps_place(call: Shapes) -> Field:
    """Every element sees what the inputs' elements at its own place see; dimensions of size 1 are broadcast."""
    return union([call.fields[value] for value in call.varying], len(call.result))


def union(fields: Sequence[Field], rank: int) -> Field:
    """What any of some fields sees, of values that are broadcast to so many dimensions."""
    aligned = [field.change(lambda table: align_table(table, rank)) for field in dict.fromkeys(fields)]
    return Field(*(_union_of_tables(tables) for tables in zip(*(one.tables for one in aligned), strict=True)))


def align_table(table: Tensor, rank: int) -> Tensor:
    """A table for values of more dimensions: torch puts new ones in front."""
    missing = rank + 1 - table.dim()
    return table.reshape(4, *(1,) * missing, *table.shape[1:]) if missing else table


def _union_of_tables(tables: Sequence[Tensor]) -> Tensor:
    """The most precise places count: a token stays where it is when what all tokens say is added to it."""
    if all(table is tables[0] for table in tables):
        return tables[0]
    widths = [torch.where(table[2] < math.inf, -table[2] - table[3], math.inf) for table in tables]
    narrowest = reduce(torch.minimum, widths)
    precise = [table[2:].where(width <= narrowest, math.inf) for table, width in zip(tables, widths, strict=True)]
    parts = reduce(torch.minimum, [table[:2] for table in tables]), reduce(torch.minimum, precise)
    return torch.cat(torch.broadcast_tensors(*parts))


def mix(table: Tensor, dims: Sequence[int], *, place: bool = False) -> Tensor:
    """The table of values whose elements see all elements along some dimensions (of the value).

    Args:
        place: elements stay where they are. Otherwise they are where what they see is, unless that is everywhere.
    """
    axes = [dim + 1 for dim in dims if table.shape[dim + 1] > 1]
    if not axes:
        return table
    everything = table.amin(axes, keepdim=True)
    if place:
        return torch.cat([everything[:2].expand_as(table[:2]), table[2:]])
    if prod(everything.shape[1:]) == 1:
        return torch.cat([everything[:2], torch.full_like(everything[2:], math.inf)])
    return everything


def mixes_last(call: Shapes) -> Field:
    """Every element sees all elements along the last dimension, as in a product with a matrix."""
    return call.field.change(lambda table: mix(table, [len(call.source) - 1]))


def moves(call: Shapes) -> list[Field]:
    """Elements only change their places: the operation itself does that to the tables."""
    shape = call.source if call.batch == 1 else (1, *call.source[1:])
    return _run_on_tables(call, lambda entry: entry.expand(shape))


def turns(call: Shapes) -> list[Field]:
    """The same where dimensions that make no difference need no size: permutations, and moves along dimensions."""
    return _run_on_tables(call, lambda entry: entry)


def _run_on_tables(call: Shapes, prepare: Callable[[Tensor], Tensor]) -> list[Field]:
    def run(entry: Tensor) -> list[Tensor]:
        made = call.node.op(prepare(entry), *call.node.args[1:], **call.node.kwargs)
        return [_without_repeats(part) for part in (made if isinstance(made, (tuple, list)) else [made])]

    down, across = ([torch.stack(parts) for parts in zip(*map(run, table), strict=True)] for table in call.field.tables)
    return [Field(*tables) for tables in zip(down, across, strict=True)]


def _without_repeats(values: Tensor) -> Tensor:
    """Values of size 1 in dimensions that were expanded without memory."""
    return values[tuple(slice(None if stride else 1) for stride in values.stride())]


def read_table(table: Tensor, dim: int, index: Tensor) -> Tensor:
    """The entries of a table at an index along one of its dimensions.

    Outside of the map there is nothing to see, and places go on as they do at its border.
    """
    size = table.shape[dim]
    if size == 1:
        return table
    inside = index.clamp(0, size - 1)
    entries = table.index_select(dim, inside)
    beyond = index - inside
    if not beyond.any():
        return entries
    ends = table.index_select(dim, torch.tensor([0, 1, size - 2, size - 1])).unflatten(dim, (2, 2)).diff(dim=dim + 1)
    steps = ends.squeeze(dim + 1).index_select(dim, (beyond > 0).long())
    shape = [len(index) if d == dim else 1 for d in range(table.dim())]
    beyond = beyond.reshape(shape)
    places = torch.where(beyond == 0, entries, entries + beyond * steps).nan_to_num(math.inf, math.inf, -math.inf)
    seen = entries.masked_fill(beyond != 0, math.inf)
    return torch.cat([seen[:2], places[2:]])


def slide(call: Shapes, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Field:
    """What a sliding window over the last dimensions of (B, C, …) sees, all channels of it."""
    dims = len(call.source) - 2
    settings = [spatial(setting, dims) for setting in (kernel, stride, padding, dilation)]
    axes = list(zip(*settings, call.result[2:], strict=True))

    def change(table: Tensor) -> Tensor:
        table = mix(table, [1])
        for dim, (reach, step, pad, gap, size) in enumerate(axes, start=3):
            if table.shape[dim] > 1:
                index = torch.arange(size)[:, None] * step + torch.arange(reach) * gap - pad
                table = read_table(table, dim, index.flatten()).unflatten(dim, (size, reach)).amin(dim + 1)
        return table

    return call.field.change(change)


def spatial(value: Any, dims: int) -> tuple[int, ...]:
    """A setting such as a stride, for each spatial dimension."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values
