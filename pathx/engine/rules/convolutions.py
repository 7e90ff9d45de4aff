"""Convolutions: their transpose on single units, windows and whole maps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.rules.geometry import Field, Shapes, batch_in_front, slide, spatial
from pathx.engine.rules.shared import window_below
from pathx.engine.rules.table import Call, Cotangents, linear
from pathx.engine.window import Corners, Origin, Window, spread, with_item


def _field(call: Shapes) -> Field | None:
    """What a kernel reaches; that of a transposed convolution only without a stride."""
    kernel = call.shapes[call.node.args[1]][2:]
    stride, padding, dilation, transposed = (call.node.args[place] for place in (3, 4, 5, 6))
    if not transposed:
        return slide(call, kernel, stride, padding, dilation)
    if set(stride) != {1}:
        return None
    padding, dilation = spatial(padding, len(kernel)), spatial(dilation, len(kernel))
    reaches = [gap * (size - 1) - pad for gap, size, pad in zip(dilation, kernel, padding, strict=True)]
    return slide(call, kernel, 1, reaches, dilation)


@linear("convolution", keeps_batch=batch_in_front, field=_field, traits={"convolution", "same for all"})
def convolution(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, weight = call.args[0], call.args[1]
    dims = weight.dim() - 2
    stride, padding, dilation = (spatial(call.args[i], dims) for i in (3, 4, 5))
    transposed, groups = call.args[6], call.args[8]
    shape = call.shapes[source]
    if transposed:
        data = CONVOLUTIONS[dims](cotangent.dense().data, weight, None, stride, padding, dilation, groups)
        for dim, size in enumerate(shape[1:], start=2):
            data = data.narrow(dim, 0, size)  # output_padding of a stride and more adds places that nothing came from
        return [(source, cotangent.whole(data))]
    if all(cotangent.covers(dim) for dim in range(1, dims + 1)):
        data = _transpose(cotangent.dense().data, weight, shape, (stride, padding, dilation, groups))
        return [(source, cotangent.whole(data))]
    if cotangent.extent == (1,) * (dims + 1):
        return [(source, _rows_of_kernel(cotangent, weight, shape, (stride, padding, dilation, groups)))]
    cotangent = all_channels(cotangent.clear_outside())
    if cotangent.extent[1:] == (1,) * dims and groups == 1 and set(dilation) == {1}:
        data = (cotangent.data.flatten(1) @ weight.flatten(1)).unflatten(1, weight.shape[1:])
    else:
        box = [
            (size - 1) * step + gap * (length - 1) + 1
            for size, step, gap, length in zip(cotangent.extent[1:], stride, dilation, weight.shape[2:], strict=True)
        ]
        data = _transpose(cotangent.data, weight, (shape[0], *box), (stride, (0,) * dims, dilation, groups))
    return [(source, window_below(cotangent, data, 0, shape, (stride, padding)))]


CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _transpose(data: Tensor, weight: Tensor, shape: tuple[int, ...], geometry: Any) -> Tensor:
    """(P, *shape) the transpose of a convolution on whole maps (P, …)."""
    stride, padding, dilation, groups = geometry
    kernel = weight.shape[2:]
    if groups == 1 and set(dilation) == {1}:
        if set(kernel) == set(stride) == {1} and not any(padding):  # a product of matrices is up to three times as fast
            return torch.matmul(weight.flatten(1).t(), data.flatten(2)).reshape(-1, *shape)
        if len(kernel) == 2 and stride[0] == stride[1] > 1 and shape[0] <= 4 < len(weight):  # a network's first
            return _transpose_by_phases(data, weight, shape, stride[0], padding)
    inputs = data.new_zeros(1).expand(len(data), *shape)
    settings = (None, stride, padding, dilation, False, (0,) * len(stride), groups, [True, False, False])
    below, _, _ = torch.ops.aten.convolution_backward.default(data, inputs, weight, *settings)
    return cast(Tensor, below)


def _transpose_by_phases(
    data: Tensor, weight: Tensor, shape: tuple[int, ...], stride: int, padding: tuple[int, ...]
) -> Tensor:
    """The same for a stride: a convolution that makes the places between two steps as channels of their own."""
    channels, *kernel = weight.shape[1:]
    steps = [-(-size // stride) for size in kernel]
    missing = [n * stride - size for n, size in zip(steps, kernel, strict=True)]
    phases = F.pad(weight, (0, missing[1], 0, missing[0]))
    phases = phases.view(-1, channels, steps[0], stride, steps[1], stride).permute(1, 3, 5, 0, 2, 4).flip(4, 5)
    below = F.conv2d(data, phases.reshape(-1, len(weight), *steps), padding=[n - 1 for n in steps])
    below = F.pixel_shuffle(below, stride)
    after = [size + first - have for size, first, have in zip(shape[1:], padding, below.shape[2:], strict=True)]
    return F.pad(below, (-padding[1], after[1], -padding[0], after[0]))  # cut, or padded where no kernel reaches


def _rows_of_kernel(cotangent: Window, weight: Tensor, shape: tuple[int, ...], geometry: Any) -> Window:
    """The transpose on single units: rows of the kernel, read rather than computed."""
    stride, padding, dilation, groups = geometry
    origin = cotangent.origin[0]
    channel = cotangent.row.new_full((len(cotangent.data),), origin) if isinstance(origin, int) else origin.numbers
    if cotangent.overhang[0]:
        channel = channel.clamp(0, len(weight) - 1)
    data = weight.index_select(0, channel) * cotangent.clear_outside().data
    for dim, gap in enumerate(dilation, start=2):
        if gap > 1 and data.shape[dim] > 1:
            data = spread(data, dim, gap)
    start: Origin = 0
    if groups > 1:
        start = Corners(channel // (len(weight) // groups), groups, weight.shape[1])
    return window_below(cotangent, data, start, shape, (stride, padding))


def all_channels(cotangent: Window) -> Window:
    """The window widened to every channel."""
    if cotangent.covers(0):
        return cotangent
    wide = cotangent.data.new_zeros(len(cotangent.data), cotangent.shape[0], *cotangent.extent[1:])
    channel = cotangent.position(0).clamp(0, cotangent.shape[0] - 1).expand_as(cotangent.data)
    wide.scatter_add_(1, channel, cotangent.data)
    return replace(cotangent, data=wide, origin=with_item(cotangent.origin, 0, 0))
