"""Pooling and picking: means are spread over what they were taken of, maxima go back to the element that won."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.rules.arithmetic import times
from pathx.engine.rules.geometry import (
    BatchRule,
    Field,
    Shapes,
    along,
    batch_in_front,
    keeps_place,
    mix,
    mixes_along,
    slide,
    spatial,
)
from pathx.engine.rules.shared import insert_axes, plain, vjp, window_below
from pathx.engine.rules.table import Call, Cotangents, linear
from pathx.engine.window import Window


def _with_channels(dims: int) -> BatchRule:
    """Takes (B, C, …) with so many spatial dimensions: without channels, torch would take the images for them."""
    return lambda call: batch_in_front(call) and len(call.source) == dims + 2


def _field(call: Shapes) -> Field:
    dilation = call.arg(4, "dilation", 1) if call.node.kind.startswith("max") else 1
    kernel = call.arg(1, "kernel_size")
    return slide(call, kernel, call.arg(2, "stride") or kernel, call.arg(3, "padding", 0), dilation)


@linear("max_pool2d_with_indices", saves="indices", keeps_batch=_with_channels(2), field=_field, traits={"pool"})
def max_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Every cotangent goes to the element that won its place in the forward pass."""
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2, "stride") or kernel, 2)
    padding, dilation = spatial(call.arg(3, "padding", 0), 2), spatial(call.arg(4, "dilation", 1), 2)
    shape = call.shapes[source]
    width = shape[2]
    cotangent = cotangent.clear_outside()
    winner = cotangent.read(call.saved[call.node.outputs[1]])  # type: ignore[index]
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


@linear("adaptive_max_pool2d", saves="indices", keeps_batch=_with_channels(2), traits={"pool"})
@linear(
    "max_pool3d_with_indices", "adaptive_max_pool3d", saves="indices", keeps_batch=_with_channels(3), traits={"pool"}
)
def max_pool_by_index(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Other pools that give the flat index of each winner inside its channel's map."""
    source = call.args[0]
    shape = call.shapes[source]
    cotangent = cotangent.dense()
    winner = call.saved[call.node.outputs[1]].index_select(0, cotangent.image)  # type: ignore[index]
    winner = winner.clamp(0, prod(shape[1:]) - 1)
    return [(source, cotangent.whole(_sum_at(winner, cotangent.data, shape[1:])))]


@linear("avg_pool2d", keeps_batch=_with_channels(2), field=_field, traits={"pool"})
def avg_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2, "stride") or kernel, 2)
    padding = spatial(call.arg(3, "padding", 0), 2)
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
    include, divisor = call.arg(5, "count_include_pad", True), call.arg(6, "divisor_override")
    out = cotangent.shape[1:]
    if divisor is not None:
        return cotangent.data.new_full((1, 1, *out), 1 / divisor)
    size = call.shapes[call.args[0]][1:]
    counts = []
    for length, k, step, pad, n in zip(out, kernel, stride, padding, size, strict=True):
        start = torch.arange(length, device=cotangent.data.device) * step - pad
        end = torch.clamp(start + k, max=n + pad)
        counts.append(end - start if include else torch.clamp(end, max=n) - torch.clamp(start, min=0))
    return 1 / (counts[0][:, None] * counts[1][None]).to(cotangent.data.dtype)[None, None]


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
    if cotangent.shape[1:] == (1, 1):
        return [(source, _spread_mean(cotangent, shape, (1, 2)))]
    return vjp(call, output, cotangent)


def _spread_mean(cotangent: Window, shape: tuple[int, ...], dims: tuple[int, ...]) -> Window:
    """Cotangents of a mean over `dims`, whose size is 1 in them, handed out to all elements alike."""
    extent = tuple(shape[d] if d in dims else cotangent.extent[d] for d in range(len(shape)))
    data = (cotangent.clear_outside().data / prod(shape[d] for d in dims)).expand(-1, *extent)
    origin = tuple(0 if d in dims else cotangent.origin[d] for d in range(len(shape)))
    return replace(cotangent, data=data, origin=origin, shape=shape, clean=True)


@linear("mean", "sum", keeps_batch=along(1), field=mixes_along(1), traits={"reduction"})
def mean(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dims = call.arg(1, "dim")
    axes = tuple(sorted(d % (len(shape) + 1) - 1 for d in ([dims] if isinstance(dims, int) else dims)))
    if not call.arg(2, "keepdim", False):
        cotangent = insert_axes(cotangent, axes)
    if call.node.kind == "sum":
        cotangent = times(cotangent, prod(shape[d] for d in axes))
    return [(source, _spread_mean(cotangent, shape, axes))]


plain("adaptive_avg_pool1d", "avg_pool1d", keeps_batch=_with_channels(1), traits={"pool"})
plain("_adaptive_avg_pool3d", "avg_pool3d", keeps_batch=_with_channels(3), traits={"pool"})


# --- elements picked by their values, along one dimension -----------------------------------------------------------


def _pick(call: Call, output: int, cotangent: Window, position: int, default: int | None) -> Cotangents:
    """Every element goes back to the place that it was picked from, along the dimension that an argument names."""
    source = call.args[0]
    shape = call.shapes[source]
    dim = call.arg(position, "dim", default) % (len(shape) + 1)
    cotangent = cotangent.dense()
    place = call.saved[call.node.outputs[1]].index_select(0, cotangent.image)  # type: ignore[index]
    data = cotangent.data
    if data.dim() == len(shape):  # the dimension was dropped
        place, data = place.unsqueeze(dim), data.unsqueeze(dim)
    return [(source, cotangent.whole(data.new_zeros(len(data), *shape).scatter_add_(dim, place, data)))]


def _picks(*names: str, position: int = 1, default: int | None = None) -> None:
    """Register operations that pick elements by their values and say where they were."""
    linear(
        *names,
        saves="indices",
        keeps_batch=along(position, default=default),
        field=mixes_along(position, default=default),
        traits={"reduction"},
    )(partial(_pick, position=position, default=default))


_picks("max", "min", "median")
_picks("sort", default=-1)
_picks("topk", position=2, default=-1)
