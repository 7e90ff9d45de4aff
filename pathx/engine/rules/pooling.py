"""Pooling and picking: means are spread over what they were taken of, maxima go back to the element that won."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.record.operations import Value
from pathx.engine.rules.arithmetic import times
from pathx.engine.rules.geometry import (
    BatchRule,
    Field,
    Shapes,
    along,
    batch_in_front,
    keeps_place,
    mix,
    slide,
    spatial,
)
from pathx.engine.rules.shared import insert_axes, plain, vjp, window_below
from pathx.engine.rules.table import Call, Cotangents, linear, record_of
from pathx.engine.window import Window


def _with_channels(dims: int) -> BatchRule:
    """Takes (B, C, …) with so many spatial dimensions: without channels, torch would take the images for them."""
    return lambda call: batch_in_front(call) and len(call.source) == dims + 2


def _field(call: Shapes) -> Field:
    dilation = call.arg(4, 1) if call.node.kind.startswith("max") else 1
    kernel = call.arg(1)
    return slide(call, kernel, call.arg(2) or kernel, call.arg(3, 0), dilation)


@linear("max_pool2d_with_indices", saves="indices", keeps_batch=_with_channels(2), field=_field, traits={"pool"})
def max_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Every cotangent goes to the element that won its place in the forward pass."""
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2) or kernel, 2)
    padding, dilation = spatial(call.arg(3, 0), 2), spatial(call.arg(4, 1), 2)
    shape = call.shapes[source]
    width = shape[2]
    cotangent = cotangent.clear_outside()
    winner = cotangent.read(_indices(call))
    if dilation != (1, 1):  # a place may see padding alone, whose winner is arbitrary
        winner = winner.clamp(0, shape[1] * width - 1)
    if cotangent.covers(1) and cotangent.covers(2):
        return [(source, replace(cotangent, data=_sum_at(winner, cotangent.data, shape[1:]), shape=shape))]
    extent = [
        (size - 1) * step + spacing * (length - 1) + 1
        for size, step, spacing, length in zip(cotangent.extent[1:], stride, dilation, kernel, strict=True)
    ]
    empty = cotangent.data.new_zeros(1).expand(len(cotangent.data), cotangent.extent[0], *extent)
    below = window_below(replace(cotangent, shape=shape), empty, cotangent.origin[0], shape, (stride, padding))
    if below.is_full and not cotangent.is_full:
        return max_pool(call, output, cotangent.dense())
    extent = list(below.extent[1:])
    corner = below.origin[1:]
    if isinstance(corner[0], int) and isinstance(corner[1], int):  # one box for all: cut out of whole maps
        maps = _sum_at(winner, cotangent.data, shape[1:])
        return [(source, below.with_data(maps.narrow(2, corner[0], extent[0]).narrow(3, corner[1], extent[1])))]
    # From flat places in the map to flat places in the box, whose rows are shorter.
    first, start = below.corner((0, extent[1], 1))
    place = torch.add(winner, winner // width, alpha=extent[1] - width)
    place = place if first is None else place - first.reshape(-1, 1, 1, 1)
    place = place - start if start else place
    if any(cotangent.overhang):  # winners that were read outside of the map are arbitrary
        place = place.clamp(0, extent[0] * extent[1] - 1)
    return [(source, replace(below, data=_sum_at(place, cotangent.data, tuple(extent)), clean=True))]


def _sum_at(place: Tensor, data: Tensor, shape: tuple[int, ...]) -> Tensor:
    """(P, C, *shape) sums of the data (P, C, …) at flat places of each channel's map."""
    sums = data.new_zeros(*data.shape[:2], prod(shape))
    sums.scatter_add_(2, place.expand_as(data).flatten(2), data.flatten(2))
    return sums.reshape(*data.shape[:2], *shape)


def _max_pool_forward(x: Tensor, *settings: Any, **options: Any) -> tuple[Tensor, Tensor] | None:
    """With channels last, where one instruction compares many channels: a seventh of a call on SqueezeNet."""
    if x.dim() != 4 or x.shape[1] < 8 or not x.is_contiguous():
        return None
    channels_last = x.contiguous(memory_format=torch.channels_last)
    out, winners = torch.ops.aten.max_pool2d_with_indices.default(channels_last, *settings, **options)
    # Not .contiguous(): a map of one element would keep its strides, and later operations take the hint.
    return out.clone(memory_format=torch.contiguous_format), winners.clone(memory_format=torch.contiguous_format)


FORMS = {torch.ops.aten.max_pool2d_with_indices.default: _max_pool_forward}
"""Other ways to compute operations on a CPU; None from one where the usual way is better."""


@linear("avg_pool2d", keeps_batch=_with_channels(2), field=_field, traits={"pool"})
def avg_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2) or kernel, 2)
    padding = spatial(call.arg(3, 0), 2)
    shape = call.shapes[source]
    scaled = cotangent.clear_outside().scale(_pool_shares(call, cotangent, kernel, stride, padding))
    # With ceil_mode a kernel may be far larger than the map; what lies beyond the map is cut off in any case.
    reach = [min(k, size + 2 * pad) for k, size, pad in zip(kernel, shape[1:], padding, strict=True)]
    ones = scaled.data.new_ones(1, 1, *reach)
    flat = scaled.data.flatten(0, 1)[:, None]
    data = F.conv_transpose2d(flat, ones, stride=stride)[:, 0].unflatten(0, scaled.data.shape[:2])
    return [(source, window_below(scaled, data, scaled.origin[0], shape, (stride, padding)))]


def _pool_shares(call: Call, cotangent: Window, kernel: Any, stride: Any, padding: Any) -> Tensor:
    """(1, 1, h, w): one over the number of elements of each mean, with the padding that counts."""
    include, divisor = call.arg(5, True), call.arg(6)
    if divisor is not None:
        return cotangent.data.new_full((1, 1, 1, 1), 1 / divisor)
    ones = cotangent.data.new_ones(1, *call.shapes[call.args[0]][1:])
    if include:
        ones, padding = F.pad(ones, (padding[1], padding[1], padding[0], padding[0]), value=1.0), (0, 0)
    return 1 / F.avg_pool2d(ones, kernel, stride, padding, call.arg(4, False), divisor_override=1)[None]


def _adaptive_field(call: Shapes) -> Field | None:
    """Known where every mean is of as many places."""
    if call.source == call.result:
        return keeps_place(call)
    if call.result[2:] == (1, 1):
        return call.field.change(lambda table: mix(table, [2, 3]))
    kernel = [size // count for size, count in zip(call.source[2:], call.result[2:], strict=True)]
    even = all(k * n == size for k, n, size in zip(kernel, call.result[2:], call.source[2:], strict=True))
    return slide(call, kernel, kernel, 0, 1) if even else None


@linear(
    "_adaptive_avg_pool2d", "adaptive_avg_pool2d", keeps_batch=_with_channels(2), field=_adaptive_field, traits={"pool"}
)
def adaptive_avg_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    if shape == cotangent.shape:
        return [(source, cotangent)]
    dims = mean_dims(call)
    return vjp(call, output, cotangent) if dims is None else [(source, _spread_mean(cotangent, shape, dims))]


def mean_dims(call: Call) -> tuple[int, ...] | None:
    """The dimensions that a call takes means or sums of, the first without the batch being 0; None where it does something else."""
    if call.node.kind in ("_adaptive_avg_pool2d", "adaptive_avg_pool2d"):
        return (1, 2) if call.shapes[cast(Value, call.node.outputs[0])][1:] == (1, 1) else None
    if call.node.kind not in ("mean", "sum"):
        return None
    dims, rank = call.args[1], len(call.shapes[call.args[0]]) + 1
    return tuple(sorted(dim % rank - 1 for dim in ([dims] if isinstance(dims, int) else dims)))


def _spread_mean(cotangent: Window, shape: tuple[int, ...], dims: tuple[int, ...]) -> Window:
    """Cotangents of a mean over `dims`, whose size is 1 in them, handed out to all elements alike."""
    extent = tuple(shape[d] if d in dims else cotangent.extent[d] for d in range(len(shape)))
    data = (cotangent.clear_outside().data / prod(shape[d] for d in dims)).expand(-1, *extent)
    origin = tuple(0 if d in dims else cotangent.origin[d] for d in range(len(shape)))
    return replace(cotangent, data=data, origin=origin, shape=shape, clean=True)


@linear("mean", "sum", **along(1, mixes=True), traits={"reduction"})
def mean(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    axes = mean_dims(call) or ()
    if not call.arg(2, False):
        cotangent = insert_axes(cotangent, axes)
    if call.node.kind == "sum":
        cotangent = times(cotangent, prod(shape[d] for d in axes))
    return [(source, _spread_mean(cotangent, shape, axes))]


plain("adaptive_avg_pool1d", "avg_pool1d", keeps_batch=_with_channels(1), traits={"pool"})
plain("_adaptive_avg_pool3d", "avg_pool3d", keeps_batch=_with_channels(3), traits={"pool"})


# --- elements picked by their values, on whole maps -----------------------------------------------------------------


@linear("max", "min", "median", saves="indices", **along(1, mixes=True), traits={"reduction"})
@linear("sort", saves="indices", **along(1, -1, mixes=True), traits={"reduction"})
@linear("topk", saves="indices", **along(2, -1, mixes=True), traits={"reduction"})
@linear("adaptive_max_pool2d", saves="indices", keeps_batch=_with_channels(2), traits={"pool"})
@linear(
    "max_pool3d_with_indices", "adaptive_max_pool3d", saves="indices", keeps_batch=_with_channels(3), traits={"pool"}
)
def pick(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Every element goes back to the place that it was picked from, along a dimension or in its channel's map."""
    source, cotangent = call.args[0], cotangent.dense()
    shape, data = call.shapes[source], cotangent.data
    place = _indices(call).index_select(0, cotangent.image)
    position = record_of(call.node).dims
    if position is None:  # a pool
        place = place.clamp(0, prod(shape[1:]) - 1)
        return [(source, cotangent.whole(_sum_at(place, data, shape[1:])))]
    dim = call.arg(position, call.kwargs.get("dim", -1)) % (len(shape) + 1)
    if data.dim() == len(shape):  # the dimension was dropped
        place, data = place.unsqueeze(dim), data.unsqueeze(dim)
    return [(source, cotangent.whole(data.new_zeros(len(data), *shape).scatter_add_(dim, place, data)))]


def _indices(call: Call) -> Tensor:
    """Where the elements were that an operation picked."""
    return call.saved[cast(Value, call.node.outputs[1])]
