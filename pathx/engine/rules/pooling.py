"""Pooling: means are handed out, maxima go to the element that won."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.rules.fallback import plain
from pathx.engine.rules.geometry import Apart, Field, Shapes, along, any_shape, away_from, slid
from pathx.engine.rules.shapes import inserted
from pathx.engine.rules.sliding import grown, spatial
from pathx.engine.rules.sums import scaled_by
from pathx.engine.rules.table import Call, Cotangents, forward, linear
from pathx.engine.window import Window


def _with_channels(dims: int) -> Apart:
    """Images, channels and so many dimensions: without channels the images would be taken for them."""
    return lambda call: any_shape(call) and len(call.source) == dims + 2


def _field(call: Shapes) -> Field:
    dilation = call.arg(4, "dilation", 1) if call.node.kind.startswith("max") else 1
    kernel = call.arg(1, "kernel_size")
    return slid(call, kernel, call.arg(2, "stride") or kernel, call.arg(3, "padding", 0), dilation)


@linear("max_pool2d_with_indices", saves=(1,), apart=_with_channels(2), field=_field, pools=True)
def max_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Every cotangent goes to the element that won its place in the forward pass."""
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2, "stride") or kernel, 2)
    padding, dilation = spatial(call.arg(3, "padding", 0), 2), spatial(call.arg(4, "dilation", 1), 2)
    shape = call.shapes[source]
    width = shape[2]
    cotangent = cotangent.cleaned()
    winner = cotangent.read(call.saved[call.node.outputs[1]])  # type: ignore[index]
    if dilation != (1, 1):  # which may leave a place with padding alone, of which torch gives any number
        winner = winner.clamp(0, shape[1] * width - 1)
    if cotangent.covers(1) and cotangent.covers(2):
        data = cotangent.data.new_zeros(*cotangent.data.shape[:2], shape[1] * width)
        data.scatter_add_(2, winner.flatten(2).expand(*data.shape[:2], -1), cotangent.data.flatten(2))
        return [(source, replace(cotangent, data=data.unflatten(2, shape[1:]), shape=shape))]
    extent = [
        (size - 1) * step + spacing * (length - 1) + 1
        for size, step, spacing, length in zip(cotangent.extent[1:], stride, dilation, kernel, strict=True)
    ]
    empty = cotangent.data.new_zeros(1).expand(len(cotangent.data), cotangent.extent[0], *extent)
    below = grown(replace(cotangent, shape=shape), empty, cotangent.origin[0], shape, (stride, padding))
    if below.is_full and not cotangent.is_full:
        return max_pool(call, output, cotangent.dense())
    extent = list(below.extent[1:])
    corner = below.origin[1:]
    if isinstance(corner[0], int) and isinstance(corner[1], int):  # one box for all: cut out of whole maps
        maps = cotangent.data.new_zeros(*cotangent.data.shape[:2], shape[1] * width)
        maps.scatter_add_(2, winner.flatten(2).expand(*maps.shape[:2], -1), cotangent.data.flatten(2))
        data = maps.unflatten(2, shape[1:]).narrow(2, corner[0], extent[0]).narrow(3, corner[1], extent[1])
        return [(source, below.holding(data))]
    # From its place in the map to that in the box: rows are shorter there, and the first is that of the corner.
    first, start = below.corner((0, extent[1], 1))
    place = torch.add(winner, winner // width, alpha=extent[1] - width)
    place = place if first is None else place - first.reshape(-1, 1, 1, 1)
    place = (place - start if start else place).expand_as(cotangent.data)
    if any(cotangent.overhang):  # what was read outside the map points anywhere
        place = place.clamp(0, extent[0] * extent[1] - 1)
    data = cotangent.data.new_zeros(*cotangent.data.shape[:2], extent[0] * extent[1])
    data.scatter_add_(2, place.flatten(2), cotangent.data.flatten(2))
    return [(source, replace(below, data=data.unflatten(2, extent), clean=True))]


@forward("max_pool2d_with_indices")
def max_pool_forward(x: Tensor, *settings: Any, **options: Any) -> tuple[Tensor, Tensor] | None:
    """With channels last, where one instruction compares many of them."""
    if x.dim() != 4 or x.shape[1] < 8 or not x.is_contiguous():
        return None
    channels_last = x.contiguous(memory_format=torch.channels_last)
    out, winners = torch.ops.aten.max_pool2d_with_indices.default(channels_last, *settings, **options)
    # Not .contiguous(): a map of one element would keep its strides, and later operations take the hint.
    return out.clone(memory_format=torch.contiguous_format), winners.clone(memory_format=torch.contiguous_format)


@linear("adaptive_max_pool2d", "fractional_max_pool2d", saves=(1,), apart=_with_channels(2), pools=True)
@linear(
    *("max_pool3d_with_indices", "adaptive_max_pool3d", "fractional_max_pool3d"),
    **{"saves": (1,), "apart": _with_channels(3), "pools": True},
)
def routed(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Other pools that say who won: flat index inside each channel's map."""
    source = call.args[0]
    shape = call.shapes[source]
    cotangent = cotangent.dense()
    winner = call.saved[call.node.outputs[1]].index_select(0, cotangent.image)  # type: ignore[index]
    data = cotangent.data.new_zeros(*cotangent.data.shape[:2], prod(shape[1:]))
    data.scatter_add_(2, winner.flatten(2).clamp(0, data.shape[2] - 1), cotangent.data.flatten(2))
    return [(source, cotangent.whole(data.unflatten(2, shape[1:])))]


@linear("avg_pool2d", apart=_with_channels(2), field=_field, pools=True)
def avg_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2, "stride") or kernel, 2)
    padding = spatial(call.arg(3, "padding", 0), 2)
    shape = call.shapes[source]
    # How many elements each mean was taken over: what the pool makes of a map of ones and its own padding.
    cotangent = cotangent.cleaned()
    share = _pool_shares(call, cotangent, kernel, stride, padding)
    scaled = cotangent.scale(share)
    ones = scaled.data.new_ones(1, 1, *kernel)
    flat = scaled.data.flatten(0, 1)[:, None]
    data = F.conv_transpose2d(flat, ones, stride=stride)[:, 0].unflatten(0, scaled.data.shape[:2])
    below = grown(scaled, data, scaled.origin[0], shape, (stride, padding))
    return [(source, below)]


def _pool_shares(call: Call, cotangent: Window, kernel: Any, stride: Any, padding: Any) -> Tensor:
    """(1, 1, h, w): one over the divisor of each mean."""
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


@linear("_adaptive_avg_pool2d", "adaptive_avg_pool2d", apart=_with_channels(2), pools=True)
def adaptive_avg_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    if shape == cotangent.shape:
        return [(source, cotangent)]
    if cotangent.shape[1:] == (1, 1):
        return [(source, _spread_mean(cotangent, shape, (1, 2)))]
    data = cotangent.dense().data
    down, across = (_bins(size, out, data) for size, out in zip(shape[1:], cotangent.shape[1:], strict=True))
    return [(source, cotangent.whole(down.t() @ data @ across))]


def _bins(size: int, out: int, like: Tensor) -> Tensor:
    """(out, size) the means that adaptive pooling takes along one axis, as a matrix."""
    place = torch.arange(size, device=like.device)
    number = torch.arange(out, device=like.device)[:, None]
    first, last = number * size // out, ((number + 1) * size + out - 1) // out
    inside = ((place >= first) & (place < last)).to(like.dtype)
    return inside / (last - first)


def _spread_mean(cotangent: Window, shape: tuple[int, ...], dims: tuple[int, ...]) -> Window:
    """Cotangents of a mean over `dims`, whose size is 1 in them, handed out to all elements alike."""
    extent = tuple(shape[d] if d in dims else cotangent.extent[d] for d in range(len(shape)))
    data = (cotangent.cleaned().data / prod(shape[d] for d in dims)).expand(-1, *extent)
    origin = tuple(0 if d in dims else cotangent.origin[d] for d in range(len(shape)))
    return replace(cotangent, data=data, origin=origin, shape=shape, clean=True)


@linear("mean", "sum", apart=along(1), field=away_from(1), pools=True)
def mean(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dims = call.arg(1, "dim")
    axes = tuple(sorted(d % (len(shape) + 1) - 1 for d in ([dims] if isinstance(dims, int) else dims)))
    if not call.arg(2, "keepdim", False):
        cotangent = inserted(cotangent, axes)
    if call.node.kind == "sum":
        cotangent = scaled_by(cotangent, prod(shape[d] for d in axes))
    return [(source, _spread_mean(cotangent, shape, axes))]


plain("adaptive_avg_pool1d", "avg_pool1d", apart=_with_channels(1))
plain("_adaptive_avg_pool3d", "avg_pool3d", apart=_with_channels(3))
