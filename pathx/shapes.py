"""Transpose rules of operations that only move elements: reshapes, permutations, parts and paddings."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pathx.operations import Call, Cotangents, constant, precise, transpose
from pathx.trace import Value
from pathx.transposes import map_like, total, unbroadcast
from pathx.window import Window, replaced


def inserted(cotangent: Window, axes: tuple[int, ...]) -> Window:
    """The window with dimensions of size 1 put in at `axes`."""
    for axis in axes:
        cotangent = replace(
            cotangent,
            data=cotangent.data.unsqueeze(axis + 1),
            origin=(*cotangent.origin[:axis], 0, *cotangent.origin[axis:]),
            shape=(*cotangent.shape[:axis], 1, *cotangent.shape[axis:]),
            overhang=(*cotangent.overhang[:axis], False, *cotangent.overhang[axis:]),
        )
    return cotangent


@transpose("view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze", "unflatten")
def view(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    return [(source, reshaped(cotangent, call.shapes[source]))]


def reshaped(cotangent: Window, shape: tuple[int, ...]) -> Window:
    """The window in the coordinates of a map of another shape and as many elements."""
    if cotangent.shape == shape:
        return cotangent
    if cotangent.is_full:
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    if cotangent.is_one_hot:
        flat = cotangent.index().reshape(-1).expand(len(cotangent.data))
        one_hot = Window.one_hot(cotangent.cleaned().data.reshape(-1), flat, shape, cotangent.row, cotangent.image)
        return replace(one_hot, ordered=cotangent.ordered)
    # Dimensions at the end that both shapes share, and those of size 1, keep their boxes.
    old = [d for d, size in enumerate(cotangent.shape) if size != 1]
    new = [d for d, size in enumerate(shape) if size != 1]
    shared = 0
    while shared < min(len(old), len(new)) and cotangent.shape[old[-1 - shared]] == shape[new[-1 - shared]]:
        shared += 1
    if not all(cotangent.covers(d) for d in old[: len(old) - shared]):
        cotangent = cotangent.dense()
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    matched = dict(zip(new[len(new) - shared :], old[len(old) - shared :], strict=True))
    extent = [cotangent.extent[matched[d]] if d in matched else shape[d] for d in range(len(shape))]
    return replace(
        cotangent,
        data=cotangent.data.reshape(-1, *extent),
        origin=tuple(cotangent.origin[matched[d]] if d in matched else 0 for d in range(len(shape))),
        shape=shape,
        overhang=tuple(d in matched and cotangent.overhang[matched[d]] for d in range(len(shape))),
    )


@transpose("permute", "transpose", "t", "movedim")
def permute(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dims = len(cotangent.shape) + 1
    if call.node.op_name == "permute":
        order = [d % dims for d in call.args[1]]
    else:
        first, second = (call.args[1] % dims, call.args[2] % dims) if len(call.args) > 2 else (0, 1)
        order = list(range(dims))
        order[first], order[second] = second, first
    back = [order.index(d) for d in range(dims)]
    pick = [d - 1 for d in back[1:]]
    return [
        (
            source,
            replace(
                cotangent,
                data=cotangent.data.permute(back),
                origin=tuple(cotangent.origin[d] for d in pick),
                shape=call.shapes[source],
                overhang=tuple(cotangent.overhang[d] for d in pick),
            ),
        )
    ]


@transpose("expand")
def expand(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], unbroadcast(cotangent, call.shapes[call.args[0]]))]


def _part(call: Call, cotangent: Window, dim: int, offset: int, size: int) -> Window | None:
    """What of the cotangents falls on [offset, offset + size) of `dim`, in coordinates that start there."""
    window = cotangent.shift(dim, -offset, size)
    if call.compact and isinstance(origin := window.origin[dim], Tensor):
        keep = torch.nonzero((origin > -window.extent[dim]) & (origin < size)).flatten()
        if len(keep) < len(origin):
            window = window.rows(keep)
        if len(keep) and window.extent[dim] == 1:  # single elements that are left lie inside
            window = replace(window, overhang=replaced(window.overhang, dim, False), clean=cotangent.clean)
    return window if window.data.numel() else None


@transpose("cat", together=True)
def cat(call: Call, output: int, cotangent: Window) -> Cotangents:
    tensors = call.args[0]
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


@transpose("stack", together=True)
def stack(call: Call, output: int, cotangent: Window) -> Cotangents:
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    parts = cotangent.dense().data.unbind(dim + 1)
    varying = [(item, part) for item, part in zip(call.args[0], parts, strict=True) if isinstance(item, Value)]
    return [(item, cotangent.whole(part)) for item, part in varying if item not in call.saved]


@constant("stack")
def stack_constant(call: Call, cotangent: Window) -> Tensor:
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    parts = zip(call.args[0], cotangent.dense().data.unbind(dim + 1), strict=True)
    fixed = [
        total(cotangent.whole(part), call.values(item).to(part))
        for item, part in parts
        if not isinstance(item, Value) or item in call.saved
    ]
    return sum(fixed, cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data)))


@transpose("slice")
def slice_(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    if dim < 0:  # `x[:]`: all pictures, as the network made sure
        return [(source, cotangent)]
    size = call.shapes[source][dim]
    start = call.arg(2, "start") or 0
    start = max(0, start + size) if start < 0 else min(start, size)
    return [(source, cotangent.shift(dim, start, size, step=call.arg(4, "step", 1)))]


@transpose("select")
def select(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dim = call.args[1] % (len(shape) + 1) - 1
    return [(source, inserted(cotangent, (dim,)).shift(dim, call.args[2] % shape[dim], shape[dim]))]


@transpose("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unbind")
def split(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dim = call.arg(1 if call.node.op_name == "unbind" else 2, "dim", 0) % (len(shape) + 1) - 1
    if call.node.op_name == "unbind":
        return [(source, inserted(cotangent, (dim,)).shift(dim, output, shape[dim]))]
    offset = sum(call.shapes[o][dim] for o in call.node.outputs[:output] if o is not None)
    return [(source, cotangent.shift(dim, offset, shape[dim]))]


@transpose("constant_pad_nd")
def pad(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, pads = call.args[0], call.args[1]
    for number in range(min(len(pads) // 2, len(cotangent.shape))):
        dim = len(cotangent.shape) - 1 - number
        cotangent = cotangent.shift(dim, -pads[2 * number], call.shapes[source][dim])
    return [(source, cotangent)]


# What functionalize makes of writes into a part of a tensor: a whole with a part put in.


def _written(call: Call, whole: Tensor) -> Tensor:
    """The part of (P, …) that slice_scatter or select_scatter writes to, as a view."""
    dim = call.arg(2, "dim", 0) % whole.dim()
    if call.node.kind == "select_scatter":
        return whole.select(dim, call.args[3])
    size = whole.shape[dim]
    start, end, _ = slice(call.arg(3, "start"), call.arg(4, "end")).indices(size)
    return whole[(slice(None),) * dim + (slice(start, end, call.arg(5, "step", 1)),)]


def _written_apart(call: Call, cotangent: Window) -> tuple[Tensor, Tensor]:
    """Cotangents of the whole, without what was written over, and of the part."""
    whole = cotangent.dense().data.clone()
    part = _written(call, whole).clone()
    _written(call, whole).zero_()
    return whole, part


@transpose("slice_scatter", "select_scatter", varies=(0, 1), together=True)
def scatter(call: Call, output: int, cotangent: Window) -> Cotangents:
    pairs = zip(call.args[:2], _written_apart(call, cotangent), strict=True)
    varying = [(item, data) for item, data in pairs if isinstance(item, Value) and item not in call.saved]
    return [(item, cotangent.whole(data)) for item, data in varying]


@constant("slice_scatter", "select_scatter")
def scatter_constant(call: Call, cotangent: Window) -> Tensor:
    result = cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data))
    for item, data in zip(call.args[:2], _written_apart(call, cotangent), strict=True):
        if not isinstance(item, Value) or item in call.saved:
            part = cotangent.whole(data)
            result = result + total(part, map_like(call.values(item), part))
    return result


@transpose("copy", varies=(0, 1), together=True)
def copy(call: Call, output: int, cotangent: Window) -> Cotangents:
    """`copy(x, y)` is y in the shape of x."""
    source = call.args[1]
    if not isinstance(source, Value) or source in call.saved:
        return []
    return [(source, unbroadcast(cotangent, call.shapes[source]))]


@constant("copy")
def copy_constant(call: Call, cotangent: Window) -> Tensor:
    source = call.args[1]
    if isinstance(source, Value) and source not in call.saved:
        return cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data))
    return total(cotangent, map_like(call.values(source), cotangent))
