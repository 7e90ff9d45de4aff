"""Parts of tensors: slices, concatenation, paddings, picked and written elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.fallback import plain, vjp_constant
from pathx.engine.rules.geometry import Field, Shapes, along, any_shape, away_from, joined, keeps_place, moved
from pathx.engine.rules.shapes import inserted
from pathx.engine.rules.sums import map_like, total, unbroadcast
from pathx.engine.rules.table import Call, Cotangents, constant, linear, precise
from pathx.engine.window import Corners, Window, replaced


def _part(call: Call, cotangent: Window, dim: int, offset: int, size: int) -> Window | None:
    """What of the cotangents falls on [offset, offset + size) of `dim`, in coordinates that start there."""
    window = cotangent.shift(dim, -offset, size)
    if call.compact and isinstance(origin := window.origin[dim], Corners):
        keep = torch.nonzero((origin.numbers > -window.extent[dim]) & (origin.numbers < size)).flatten()
        if len(keep) < len(origin.base):
            window, origin = window.rows(keep), origin.rows(keep)
        if len(keep) and window.extent[dim] == 1:  # single elements that are left lie inside
            inner = replaced(window.origin, dim, Corners(origin.numbers, size))
            window = replace(window, origin=inner, clean=cotangent.clean)
    return window if window.data.numel() else None


_EACH = "run the network once for each and average what comes out"


def _put_together(call: Shapes) -> bool:
    """Parts of every image alike; along the batch, all of it at once."""
    return any_shape(call) and (call.dims(1, "dim", 0) != [0] or len(call.node.args[0]) == 1)


@linear("cat", together=True, fresh=True, pools=True, apart=_put_together, remedy=_EACH, field=away_from(1, default=0))
def cat(call: Call, output: int, cotangent: Window) -> Cotangents:
    tensors = call.args[0]
    if len(tensors) == 1:
        return [(tensors[0], cotangent)]
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    result: Cotangents = []
    offset = 0
    for item in tensors:
        varies = isinstance(item, Value)
        size = call.shapes[item][dim] if varies else item.shape[dim + 1]
        part = _part(call, cotangent, dim, offset, size) if varies and item not in call.saved else None
        if part is not None:
            result.append((item, part))
        offset += size
    return result


@constant("cat")
def cat_constant(call: Call, cotangent: Window) -> Tensor:
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    result = cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data))
    offset = 0
    for item in call.args[0]:
        values = item if isinstance(item, Tensor) else call.saved.get(item)
        size = call.shapes[item][dim] if values is None else values.shape[dim + 1]
        if values is not None:
            result = result + total(cotangent.dense().shift(dim, -offset, size), values.to(cotangent.data))
        offset += size
    return result


def _stacked(call: Shapes) -> int:
    dim: int = call.arg(1, "dim", 0) % len(call.made)
    return dim


@linear(
    "stack",
    together=True,
    apart=lambda call: any_shape(call) and _stacked(call) > 0,
    remedy="stack along dim 1 and go on there",
    field=lambda call: joined(call) if _stacked(call) < len(call.made) - 2 else None,
)
def stack(call: Call, output: int, cotangent: Window) -> Cotangents:
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    parts = cotangent.dense().data.unbind(dim + 1)
    varying = [(item, part) for item, part in zip(call.args[0], parts, strict=True) if isinstance(item, Value)]
    return [(item, cotangent.whole(part)) for item, part in varying if item not in call.saved]


@constant("stack")
def stack_constant(call: Call, cotangent: Window) -> Tensor:
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    parts = zip(call.args[0], cotangent.dense().data.unbind(dim + 1), strict=True)
    fixed = [total(cotangent.whole(part), call.values(item).to(part)) for item, part in parts if not call.varies(item)]
    return sum(fixed, cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data)))


def _whole_batch(position: int) -> Callable[[Shapes], bool]:
    """Parts of every image alike; along the batch, only all of it."""

    def apart(call: Shapes) -> bool:
        return any_shape(call) and (call.dims(position, "dim", 0) != [0] or call.made[0] == call.source[0])

    return apart


def _start(call: Shapes) -> int:
    size = call.source[(call.dims(1, "dim", 0) or [0])[0]]
    start = call.arg(2, "start") or 0
    return max(0, start + size) if start < 0 else min(start, size)


def _sliced(call: Shapes) -> Field:
    axis = (call.dims(1, "dim", 0) or [0])[0] - len(call.source)
    step = call.arg(4, "step", 1)
    offsets, steps = (
        ((_start(call) if axis == a else 0) for a in (-2, -1)),
        (step if axis == a else 1 for a in (-2, -1)),
    )
    return moved(call, tuple(offsets), tuple(steps)) if len(call.made) > 2 else None  # type: ignore[arg-type]


@linear("slice", apart=_whole_batch(1), field=_sliced)
def slice_(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    if dim < 0:  # `x[:]`: all images, as the network made sure
        return [(source, cotangent)]
    size = call.shapes[source][dim]
    start = call.arg(2, "start") or 0
    start = max(0, start + size) if start < 0 else min(start, size)
    return [(source, cotangent.shift(dim, start, size, step=call.arg(4, "step", 1)))]


@linear("select", apart=along(1), field=away_from(1))
def select(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dim = call.args[1] % (len(shape) + 1) - 1
    return [(source, inserted(cotangent, (dim,)).shift(dim, call.args[2] % shape[dim], shape[dim]))]


@linear("unbind", parts=True, apart=along(1, default=0), field=away_from(1, default=0))
@linear(
    "split",
    "split_with_sizes",
    "unsafe_split",
    "unsafe_split_with_sizes",
    "chunk",
    parts=True,
    apart=_whole_batch(2),
    field=away_from(2, default=0),
)
def split(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    if call.node.kind != "unbind" and len(call.node.outputs) == 1:
        return [(source, cotangent)]
    dim = call.arg(1 if call.node.kind == "unbind" else 2, "dim", 0) % (len(shape) + 1) - 1
    if call.node.kind == "unbind":
        return [(source, inserted(cotangent, (dim,)).shift(dim, output, shape[dim]))]
    offset = sum(call.shapes[o][dim] for o in call.node.outputs[:output] if o is not None)
    return [(source, cotangent.shift(dim, offset, shape[dim]))]


def _padded_images(call: Shapes) -> bool:
    """Elements are put around images, not images around images."""
    return any_shape(call) and not any(call.node.args[1][2 * (len(call.source) - 1) :])


def _padded_field(call: Shapes) -> Field:
    pads = [*call.node.args[1], 0]
    return moved(call, (-pads[2], -pads[0])) if len(call.made) > 2 else None


@linear("constant_pad_nd", apart=_padded_images, field=_padded_field)
def pad(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, pads = call.args[0], call.args[1]
    for number in range(min(len(pads) // 2, len(cotangent.shape))):
        dim = len(cotangent.shape) - 1 - number
        cotangent = cotangent.shift(dim, -pads[2 * number], call.shapes[source][dim])
    return [(source, cotangent)]


@constant("constant_pad_nd")
def pad_constant(call: Call, cotangent: Window) -> Tensor | None:
    return vjp_constant(call, cotangent) if call.arg(2, "value", 0) else None


# What functionalize makes of writes into a part of a tensor: a whole with a part put in.


def _written(call: Call, whole: Tensor) -> Tensor:
    """The part of (P, …) that slice_scatter or select_scatter writes to, as a view."""
    dim = call.arg(2, "dim", 0) % whole.dim()
    if call.node.kind == "select_scatter":
        return whole.select(dim, call.args[3])
    size = whole.shape[dim]
    start, end, _ = slice(call.arg(3, "start"), call.arg(4, "end")).indices(size)
    return whole[(slice(None),) * dim + (slice(start, end, call.arg(5, "step", 1)),)]


def _written_batch(call: Shapes) -> bool:
    return any_shape(call) and (call.dims(2, "dim", 0) != [0] or call.shapes[call.node.args[1]][0] == call.batch)


def _written_apart(call: Call, cotangent: Window) -> tuple[Tensor, Tensor]:
    """Cotangents of the whole, without what was written over, and of the part."""
    whole = cotangent.dense().data.clone()
    part = _written(call, whole).clone()
    _written(call, whole).zero_()
    return whole, part


@linear("slice_scatter", varies=(0, 1), together=True, apart=_written_batch)
@linear(
    "select_scatter",
    varies=(0, 1),
    together=True,
    apart=lambda call: any_shape(call) and call.arg(2, "dim", 0) % len(call.made) > 0,
)
def scatter(call: Call, output: int, cotangent: Window) -> Cotangents:
    pairs = zip(call.args[:2], _written_apart(call, cotangent), strict=True)
    varying = [(item, data) for item, data in pairs if call.varies(item)]
    return [(item, cotangent.whole(data)) for item, data in varying]


@constant("slice_scatter", "select_scatter")
def scatter_constant(call: Call, cotangent: Window) -> Tensor:
    result = cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data))
    for item, data in zip(call.args[:2], _written_apart(call, cotangent), strict=True):
        if not call.varies(item):
            part = cotangent.whole(data)
            result = result + total(part, map_like(call.values(item), part))
    return result


@linear("copy", varies=(0, 1), together=True, field=keeps_place)
def copy(call: Call, output: int, cotangent: Window) -> Cotangents:
    """`copy(x, y)` is y in the shape of x."""
    source = call.args[1]
    if not call.varies(source):
        return []
    return [(source, unbroadcast(cotangent, call.shapes[source]))]


@constant("copy")
def copy_constant(call: Call, cotangent: Window) -> Tensor:
    source = call.args[1]
    if call.varies(source):
        return cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data))
    return total(cotangent, map_like(call.values(source), cotangent))


# --- elements by number ---------------------------------------------------------------------------------------------


def _indexed(call: Shapes) -> bool:
    """Numbers of elements within each image; apart from each other they would bring their dimensions to the front."""
    given = [place for place, index in enumerate(call.node.args[1]) if index is not None]
    return any_shape(call) and bool(given) and given[0] > 0 and given[-1] - given[0] == len(given) - 1


def _multiplied(node: Node, varying: list[int]) -> str | None:
    """(Sums are recorded as `scatter_add`.)"""
    return "multiplies what it computed from the image" if "reduce" in node.kwargs else None


plain("index_select", apart=along(1), field=away_from(1))
plain("index", apart=_indexed)
plain("index_put", varies=(0, 2), together=True, apart=_indexed)
plain("gather", takes_frozen=True, apart=along(1), field=away_from(1))
plain("scatter", varies=(0, 3), together=True, takes_frozen=True, refuses=_multiplied, apart=along(1))
plain("scatter_add", varies=(0, 3), together=True, takes_frozen=True, apart=along(1))
plain("index_add", "index_copy", varies=(0, 3), together=True, apart=along(1))
plain("index_fill", apart=along(1), field=away_from(1))
plain(
    "diagonal_scatter",
    varies=(0, 1),
    together=True,
    apart=lambda call: (
        any_shape(call) and 0 not in (call.arg(3, "dim1", 0) % len(call.made), call.arg(4, "dim2", 1) % len(call.made))
    ),
)
