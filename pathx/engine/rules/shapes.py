"""Operations that give elements another place: reshapes, permutations, slices, joins, padding, writes, resizing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.geometry import (
    BatchRule,
    Field,
    Shapes,
    align_table,
    along,
    batch_in_front,
    keeps_place,
    moves,
    read_table,
    turns,
    union,
)
from pathx.engine.rules.shared import (
    insert_axes,
    matching_dims,
    order_of_dims,
    plain,
    reshape_window,
    totals,
    unbroadcast,
    vjp_constant,
)
from pathx.engine.rules.table import Call, Cotangents, constant, linear
from pathx.engine.window import Window, with_item

# --- reshapes, permutations, repeats ----------------------------------------------------------------------------------


def _refuse_bits(node: Node, varying: list[int]) -> str | None:
    bits = len(node.args) > 1 and isinstance(node.args[1], torch.dtype)
    return "reads numbers as others (their bits)" if bits else None


def _view_field(call: Shapes) -> Field:
    """Dimensions that make no difference stay apart from the others, so that tables stay small."""

    def change(table: Tensor) -> Tensor:
        whole, shape = [1] * len(call.source), [1] * len(call.result)
        for old, new in matching_dims(call.source, call.result):
            if any(table.shape[dim + 1] > 1 for dim in old):
                for dim in old:
                    whole[dim] = call.source[dim]
                for dim in new:
                    shape[dim] = call.result[dim]
        return table.expand(4, *whole).reshape(4, *shape)

    return call.field.change(change)


@linear(
    *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
    refuses=_refuse_bits,
    keeps_batch=batch_in_front,
    field=_view_field,
    traits={"view"},
)
def view(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    return [(source, reshape_window(cotangent, call.shapes[source]))]


def _keeps_first(call: Shapes) -> bool:
    return order_of_dims(call.node.kind, call.node.args, len(call.source))[:1] == [0]


@linear("permute", "transpose", keeps_batch=_keeps_first, dims=1, field=turns, traits={"part"})
@linear("t", keeps_batch=_keeps_first, field=turns, traits={"part"})
def permute(call: Call, output: int, cotangent: Window) -> Cotangents:
    dims = len(cotangent.shape) + 1
    order = order_of_dims(call.node.kind, call.args, dims)
    return [(call.args[0], cotangent.permute([order.index(dim) for dim in range(dims)]))]


def _expand_field(call: Shapes) -> Field:
    return call.field.change(lambda table: align_table(table, len(call.result)))


@linear("expand", field=_expand_field, traits={"move", "repeat"})
def expand(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], unbroadcast(cotangent, call.shapes[call.args[0]]))]


def dim_of(call: Call, position: int, rank: int) -> int:
    """The dimension that an argument names, counted without the batch."""
    dim: int = call.arg(position, 0) % rank - 1
    return dim


def _part_along(position: int) -> dict[str, Any]:
    """For what takes a part of every image alike; along the batch, only all of it."""

    def keeps_batch(call: Shapes) -> bool:
        return batch_in_front(call) and (call.dims(position, 0) != [0] or call.result[0] == call.source[0])

    return {"keeps_batch": keeps_batch, "dims": position}


# --- parts put together ---------------------------------------------------------------------------------------------


def _joins_parts(call: Shapes) -> bool:
    return batch_in_front(call) and (call.dims(1, 0) != [0] or len(call.node.args[0]) == 1)


def pieces(call: Call, dim: int) -> list[tuple[Any, int, int]]:
    """The tensors that are put together, each with its offset and size."""
    parts, offset = [], 0
    for item in call.args[0]:
        size = item.shape[dim + 1] if isinstance(item, Tensor) else call.shapes[item][dim]
        parts.append((item, offset, size))
        offset += size
    return parts


def _cat_field(call: Shapes) -> Field:
    """Along a dimension that makes no difference to any part, such as the channels, there is one field for all."""
    (dim,), parts = call.dims(1, 0) or [0], call.node.args[0]
    fields = {value: call.fields[value] for value in parts if value in call.fields}
    if all(table.shape[dim + 1] == 1 for field in fields.values() for table in field.tables):
        return union(list(fields.values()), len(call.result))

    def join(tables: dict[Value, Tensor]) -> Tensor:
        shape = torch.broadcast_shapes(*(with_item(table.shape, dim + 1, 1) for table in tables.values()))
        joined = []
        for part in parts:
            size = (call.shapes[part] if isinstance(part, Value) else part.shape)[dim]
            table = tables.get(part, torch.full((1,) * len(shape), math.inf))  # what is fixed sees nothing
            joined.append(table.expand(with_item(shape, dim + 1, size)))
        return torch.cat(joined, dim + 1)

    return Field(*(join({value: field.tables[axis] for value, field in fields.items()}) for axis in (0, 1)))


@linear("cat", jointly_linear=True, keeps_batch=_joins_parts, field=_cat_field, traits={"move"})
def cat(call: Call, output: int, cotangent: Window) -> Cotangents:
    if len(call.args[0]) == 1:
        return [(call.args[0][0], cotangent)]
    dim = dim_of(call, 1, len(cotangent.shape) + 1)
    parts = [(item, cotangent.shift(dim, -at, size)) for item, at, size in pieces(call, dim) if call.varies(item)]
    return [(item, part) for item, part in parts if part.data.numel()]


@constant("cat")
def cat_constant(call: Call, cotangent: Window) -> Tensor | None:
    dim = dim_of(call, 1, len(cotangent.shape) + 1)
    fixed = [piece for piece in pieces(call, dim) if not call.varies(piece[0])]
    return totals([(cotangent.dense().shift(dim, -at, size), call.values(item)) for item, at, size in fixed])


def _along_result(position: int) -> BatchRule:
    """Works along the dimension of the result that an argument names, which must not be the batch."""
    return lambda call: batch_in_front(call) and call.arg(position, 0) % len(call.result) > 0


def _stack_field(call: Shapes) -> Field:
    dim = call.arg(1, 0) % len(call.result)
    return union([call.fields[value] for value in call.varying], len(call.source)).change(
        lambda table: table.unsqueeze(dim + 1)
    )


plain("stack", jointly_linear=True, keeps_batch=_along_result(1), field=_stack_field, traits={"move"})

# --- parts taken out ------------------------------------------------------------------------------------------------


def _first(start: int | None, size: int) -> int:
    """The first element of a slice."""
    return slice(start, None).indices(size)[0]


@linear("slice", **_part_along(1), field=moves, traits={"part"})
@linear("select", **along(1), field=moves, traits={"part"})
@linear("unbind", **along(1, 0), field=moves, traits={"part", "split"})
@linear(
    *("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk"),
    **_part_along(2),
    field=moves,
    traits={"part", "split"},
)
def take_part(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, found = call.args[0], part_of(call, output)
    if found is None:
        return [(source, cotangent)]
    dim, first, step = found
    if call.node.kind in ("select", "unbind"):
        cotangent = insert_axes(cotangent, (dim,))
    return [(source, cotangent.shift(dim, first, call.shapes[source][dim], step=step))]


def part_of(call: Call, output: int) -> tuple[int, int, int] | None:
    """The dimension that such an operation takes a part of, the first element there, and the step; None where it takes all."""
    kind, shape, outputs = call.node.kind, call.shapes[call.args[0]], call.node.outputs
    dim = dim_of(call, 1 if kind in ("slice", "select", "unbind") else 2, len(shape) + 1)
    if kind == "select":
        return dim, call.args[2] % shape[dim], 1
    if kind == "unbind":
        return dim, output, 1
    if kind == "slice":  # `x[:]` takes all images, as its batch rule made sure
        return None if dim < 0 else (dim, _first(call.arg(2), shape[dim]), call.arg(4, 1))
    if len(outputs) == 1:
        return None
    return dim, sum(call.shapes[part][dim] for part in outputs[:output] if part is not None), 1


def _pads_within_images(call: Shapes) -> bool:
    return batch_in_front(call) and not any(call.node.args[1][2 * (len(call.source) - 1) :])


def _pad_field(call: Shapes) -> Field:
    last = len(call.source) - 1

    def change(table: Tensor) -> Tensor:
        for dim, pad in zip(range(last, -1, -1), call.node.args[1][::2], strict=False):
            table = read_table(table, dim + 1, torch.arange(call.result[dim]) - pad)
        return table

    return call.field.change(change)


@linear("constant_pad_nd", keeps_batch=_pads_within_images, field=_pad_field, traits={"move"})
def pad(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, pads = call.args[0], call.args[1]
    for number in range(min(len(pads) // 2, len(cotangent.shape))):
        dim = len(cotangent.shape) - 1 - number
        cotangent = cotangent.shift(dim, -pads[2 * number], call.shapes[source][dim])
    return [(source, cotangent)]


@constant("constant_pad_nd")
def pad_constant(call: Call, cotangent: Window) -> Tensor | None:
    return vjp_constant(call, cotangent) if call.arg(2, 0) else None


# --- writes, as functionalize spells them, and elements by index, most of them by autograd ----------------------------------------


@linear("copy", linear_in=(0, 1), jointly_linear=True, field=keeps_place)
def copy(call: Call, output: int, cotangent: Window) -> Cotangents:
    """`copy(x, y)` is y in the shape of x. (Autograd has no derivative of it.)"""
    source = call.args[1]
    return [(source, unbroadcast(cotangent, call.shapes[source]))] if call.varies(source) else []


@constant("copy")
def copy_constant(call: Call, cotangent: Window) -> Tensor | None:
    source = call.args[1]
    return None if call.varies(source) else totals([(cotangent, call.values(source))])


def _writes_whole_batch(call: Shapes) -> bool:
    return batch_in_front(call) and (call.dims(2, 0) != [0] or call.shapes[call.node.args[1]][0] == call.batch)


def _indexes_within_images(call: Shapes) -> bool:
    """Indices of neighbouring dimensions, without the batch; torch moves those of other dimensions to the front."""
    given = [place for place, index in enumerate(call.node.args[1]) if index is not None]
    return batch_in_front(call) and bool(given) and given[0] > 0 and given[-1] - given[0] == len(given) - 1


def _refuse_reduction(node: Node, varying: list[int]) -> str | None:
    """(Sums are recorded as `scatter_add`.)"""
    return "multiplies what it computed from the image" if "reduce" in node.kwargs else None


plain("select_scatter", linear_in=(0, 1), jointly_linear=True, keeps_batch=_along_result(2))
plain("slice_scatter", linear_in=(0, 1), jointly_linear=True, keeps_batch=_writes_whole_batch)
plain("index", keeps_batch=_indexes_within_images, traits={"same for all"})
plain("index_put", linear_in=(0, 2), jointly_linear=True, keeps_batch=_indexes_within_images, traits={"same for all"})
plain("index_select", **along(1, mixes=True), traits={"move", "same for all"})
plain("gather", **along(1, mixes=True))
plain("scatter", linear_in=(0, 3), jointly_linear=True, refuses=_refuse_reduction, **along(1))
plain("scatter_add", linear_in=(0, 3), jointly_linear=True, **along(1))
plain("index_add", linear_in=(0, 3), jointly_linear=True, **along(1), traits={"same for all"})


# --- repeats and resizing, by autograd ------------------------------------------------------------


def _repeats_within_images(call: Shapes) -> bool:
    return batch_in_front(call) and len(call.node.args[1]) == len(call.source) and call.node.args[1][0] == 1


def _inside_images(call: Shapes) -> bool:
    """Works on the last two or three dimensions, of which none is the batch."""
    return batch_in_front(call) and len(call.source) > 2


plain("flip", **along(1), field=turns, traits={"move"})
plain(
    "roll",
    **along(2),
    field=lambda call: turns(call) if call.dims(2) else None,
    traits={"move"},
)
plain("cumsum", **along(1, mixes=True))
plain("unfold", **along(1))
plain("repeat", keeps_batch=_repeats_within_images, field=moves, traits={"move"})
plain(
    *("pixel_shuffle", "pixel_unshuffle"),
    keeps_batch=_inside_images,
    field=moves,
    traits={"move"},
)
plain("im2col", "col2im", keeps_batch=_inside_images)
plain(
    *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
    *("upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
    keeps_batch=batch_in_front,
    field=moves,
)
plain(
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "grid_sampler_2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    keeps_batch=batch_in_front,
)
