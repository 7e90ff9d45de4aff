"""Transpose rules of arithmetic: convolutions, matrix products, fixed normalisation, sums and factors.

A rule takes cotangents of an operation's output to cotangents of its inputs; one rule serves windows and full maps
alike, and one that cannot keep a window small makes it dense first. Pooling is in pools.py, reshaping in shapes.py.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.operations import Call, Cotangents, constant, precise, transpose
from pathx.trace import Value
from pathx.window import Window, replaced, spread


def total(cotangent: Window, values: Tensor) -> Tensor:
    """(P,) sums of the cotangents times the values (B or 1, *sizes) under them."""
    product = cotangent.cleaned().scale(values).data
    return product.reshape(len(product), -1).sum(1, dtype=precise(product))


def spatial(value: Any, dims: int) -> tuple[int, ...]:
    """A setting such as a stride, for each spatial dimension."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def grown(cotangent: Window, data: Tensor, channel: int | Tensor, shape: tuple[int, ...], geometry: Any) -> Window:
    """The window below a sliding-window operation: origins times stride less padding, overhanging by the padding.

    Where the box is the same for all, it is cut to the map instead.
    """
    stride, padding = geometry
    origin: list[int | Tensor] = [channel]
    overhang = [False]
    for dim, (step, pad) in enumerate(zip(stride, padding, strict=True), start=1):
        start = cotangent.origin[dim]
        start = start if step == 1 else start * step
        start = start - pad if pad else start
        reach = data.shape[dim + 1] - (cotangent.extent[dim] - 1) * step  # of one element
        beyond = (cotangent.shape[dim] - 1) * step + reach > shape[dim]
        if isinstance(start, int):
            first, last = max(0, -start), min(data.shape[dim + 1], shape[dim] - start)
            data, start = data.narrow(dim + 1, first, last - first), start + first
            overhang.append(False)
        else:
            overhang.append(pad > 0 or beyond or cotangent.overhang[dim])
        origin.append(start)
    window = replace(
        cotangent, data=data, origin=tuple(origin), shape=shape, overhang=tuple(overhang), clean=not any(overhang)
    )
    too_large = any(extent > size for extent, size in zip(window.extent[1:], shape[1:], strict=True))
    return window.dense() if too_large else window


# --- convolution ----------------------------------------------------------------------------------------------------


@transpose("convolution")
def convolution(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, weight = call.args[0], call.args[1]
    dims = weight.dim() - 2
    stride, padding, dilation = (spatial(call.args[i], dims) for i in (3, 4, 5))
    transposed, groups = call.args[6], call.args[8]
    shape = call.shapes[source]
    if transposed:
        data = F_CONVOLUTIONS[dims](cotangent.dense().data, weight, None, stride, padding, dilation, groups)
        return [(source, cotangent.whole(data))]
    if all(cotangent.covers(dim) for dim in range(1, dims + 1)):
        data = _whole_map(cotangent.dense().data, weight, shape, (stride, padding, dilation, groups))
        return [(source, cotangent.whole(data))]
    if cotangent.extent == (1,) * (dims + 1):
        return [(source, _kernel_window(cotangent, weight, shape, (stride, padding, dilation, groups)))]
    cotangent = _all_channels(cotangent.cleaned())
    if cotangent.extent[1:] == (1,) * dims and groups == 1 and set(dilation) == {1}:
        data = (cotangent.data.flatten(1) @ weight.flatten(1)).unflatten(1, weight.shape[1:])
    else:
        box = [
            (size - 1) * step + gap * (length - 1) + 1
            for size, step, gap, length in zip(cotangent.extent[1:], stride, dilation, weight.shape[2:], strict=True)
        ]
        data = _whole_map(cotangent.data, weight, (shape[0], *box), (stride, (0,) * dims, dilation, groups))
    return [(source, grown(cotangent, data, 0, shape, (stride, padding)))]


F_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def _whole_map(data: Tensor, weight: Tensor, shape: tuple[int, ...], geometry: Any) -> Tensor:
    """(P, *shape) what whole maps (P, …) of a convolution's output send down, by whichever way is quickest."""
    stride, padding, dilation, groups = geometry
    cpu = data.device.type == "cpu"
    if cpu and not any(padding) and _is_product(data, weight, groups):
        below = _mixed(data, weight)
        if set(stride) == {1}:
            return below
        result = below.new_zeros(len(data), *shape)
        places = tuple(slice(None, None, step) for step in stride)
        result[(slice(None), slice(None), *places)] = below
        return result
    if cpu and weight.dim() == 4 and weight.shape[1] <= 4 and groups == 1:  # down to the colours
        kernel = weight.shape[2:]
        if len({*stride}) == 1 < stride[0] and set(dilation) == {1} and min(kernel) > 2 * stride[0]:
            return _by_phases(data, weight, shape, stride[0], padding)
        columns = weight.flatten(1).t() @ data.flatten(2)
        return F.fold(columns, shape[1:], tuple(kernel), dilation, padding, stride)
    below, _, _ = torch.ops.aten.convolution_backward(
        data,
        data.new_zeros(1).expand(len(data), *shape),
        weight,
        None,
        stride,
        padding,
        dilation,
        False,
        (0,) * len(stride),
        groups,
        [True, False, False],
    )
    return cast(Tensor, below)


def _by_phases(data: Tensor, weight: Tensor, shape: tuple[int, ...], step: int, padding: tuple[int, ...]) -> Tensor:
    """A strided convolution's transpose as a plain convolution: each of the step² phases has a part of the kernel."""
    outputs, channels, *kernel = weight.shape
    taps = [-(-length // step) for length in kernel]  # of a phase
    filled = F.pad(weight, (0, taps[1] * step - kernel[1], 0, taps[0] * step - kernel[0]))
    phases = filled.reshape(outputs, channels, taps[0], step, taps[1], step).permute(1, 3, 5, 0, 2, 4)
    phases = phases.reshape(-1, outputs, *taps).flip(2, 3)
    padded = F.pixel_shuffle(F.conv2d(data, phases, padding=(taps[0] - 1, taps[1] - 1)), step)
    sides = [(-pad, size + pad - have) for size, pad, have in zip(shape[1:], padding, padded.shape[2:], strict=True)]
    return F.pad(padded, (*sides[1], *sides[0]))


def _is_product(data: Tensor, weight: Tensor, groups: int) -> bool:
    """Whether a kernel of one element is best taken as a matrix product: where places are many, or rows few."""
    return prod(weight.shape[2:]) == 1 and groups == 1 and (prod(data.shape[2:]) >= 16 or len(data) <= 4)


def _mixed(data: Tensor, weight: Tensor) -> Tensor:
    """Cotangents (P, out, …) through a kernel of one element: (P, in, …)."""
    matrix = weight.reshape(weight.shape[:2]).t()
    flat = data.reshape(*data.shape[1 if len(data) == 1 else 0 : 2], -1)
    return (matrix @ flat).reshape(len(data), len(matrix), *data.shape[2:])


def spread_by(data: Tensor, steps: tuple[int, ...]) -> Tensor:
    """The data (P, channels, …) with step - 1 zeros between neighbours."""
    for dim, step in enumerate(steps, start=2):
        if step > 1 and data.shape[dim] > 1:
            data = spread(data, dim, step)
    return data


def _kernel_window(cotangent: Window, weight: Tensor, shape: tuple[int, ...], geometry: Any) -> Window:
    """What single units of a convolution's output send down: rows of its weight, read rather than computed."""
    stride, padding, dilation, groups = geometry
    origin = cotangent.origin[0]
    channel = origin if isinstance(origin, Tensor) else cotangent.row.new_full((len(cotangent.data),), origin)
    if cotangent.overhang[0]:
        channel = channel.clamp(0, len(weight) - 1)
    data = weight.index_select(0, channel) * cotangent.cleaned().data
    data = spread_by(data, dilation)
    start: int | Tensor = 0
    if groups > 1:
        start = channel // (len(weight) // groups) * weight.shape[1]
    return grown(cotangent, data, start, shape, (stride, padding))


def _all_channels(cotangent: Window) -> Window:
    """The window widened to every channel."""
    if cotangent.covers(0):
        return cotangent
    wide = cotangent.data.new_zeros(len(cotangent.data), cotangent.shape[0], *cotangent.extent[1:])
    channel = cotangent.position(0).clamp(0, cotangent.shape[0] - 1).expand_as(cotangent.data)
    wide.scatter_add_(1, channel, cotangent.data)
    return replace(
        cotangent,
        data=wide,
        origin=replaced(cotangent.origin, 0, 0),
        overhang=replaced(cotangent.overhang, 0, False),
    )


@constant("convolution")
def convolution_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.args[2]
    return None if bias is None else _channel_total(cotangent, bias)


def _channel_total(cotangent: Window, values: Tensor) -> Tensor:
    """(P,) sums of the cotangents times one value per channel."""
    data = cotangent.cleaned().data
    sums = data.sum(tuple(range(2, data.dim()))) if data.dim() > 2 else data
    if cotangent.covers(0):
        return (sums * values).sum(1, dtype=precise(data))
    reduced = replace(
        cotangent, data=sums, origin=cotangent.origin[:1], shape=cotangent.shape[:1], overhang=cotangent.overhang[:1]
    )
    return reduced.scale(values[None]).data.sum(1, dtype=precise(data))


# --- matrix products ------------------------------------------------------------------------------------------------


def _times(call: Call, source: Value, matrix: Tensor, cotangent: Window, factor: float = 1) -> Cotangents:
    """Cotangents (P, …, out) of x @ matrix, for x (…, in) and a matrix (in, out)."""
    if cotangent.is_one_hot and len(cotangent.shape) == 1:
        column = cotangent.position(0).flatten().expand(len(cotangent.data)).clamp(0, cotangent.shape[0] - 1)
        data = matrix.t()[column] * cotangent.cleaned().data
    else:
        data = cotangent.dense().data @ matrix.t()
    if factor != 1:
        data = data * factor
    return [(source, cotangent.whole(data.reshape(-1, *call.shapes[source])))]


@transpose("addmm", varies=(1,))
def addmm(call: Call, output: int, cotangent: Window) -> Cotangents:
    return _times(call, call.args[1], call.args[2], cotangent, call.kwargs.get("alpha", 1))


@constant("addmm")
def addmm_constant(call: Call, cotangent: Window) -> Tensor:
    bias = call.args[0] * call.kwargs.get("beta", 1)
    return total(cotangent, bias.reshape(1, -1))


@transpose("mm", "matmul", varies=(0,))
def mm(call: Call, output: int, cotangent: Window) -> Cotangents:
    return _times(call, call.args[0], call.args[1], cotangent)


@transpose("linear")
def linear(call: Call, output: int, cotangent: Window) -> Cotangents:
    return _times(call, call.args[0], call.args[1].t(), cotangent)


@constant("linear")
def linear_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.arg(2, "bias")
    return None if bias is None else total(cotangent, bias[None])


# --- normalisation with fixed statistics, sums and factors ----------------------------------------------------------


def _batch_norm_terms(call: Call) -> tuple[Tensor, Tensor]:
    """Scale and shift per channel."""
    if "terms" not in call.memory:
        weight, bias, mean, variance = call.args[1:5]
        eps = call.args[7] if len(call.args) > 7 else call.args[6]
        scale = torch.rsqrt(variance + eps)
        if weight is not None:
            scale = scale * weight
        shift = -mean * scale
        call.memory["terms"] = (scale, shift if bias is None else shift + bias)
    return cast("tuple[Tensor, Tensor]", call.memory["terms"])


@transpose("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    scale, _ = _batch_norm_terms(call)
    return [(call.args[0], cotangent.scale(scale.reshape(1, -1, *(1,) * (len(cotangent.shape) - 1))))]


@constant("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm_constant(call: Call, cotangent: Window) -> Tensor:
    return _channel_total(cotangent, _batch_norm_terms(call)[1])


def unbroadcast(cotangent: Window, shape: tuple[int, ...]) -> Window:
    """Cotangents of an input that was broadcast to the output's shape: sums over the repeats."""
    if cotangent.shape == shape:
        return cotangent
    data = cotangent.dense().data
    extra = data.dim() - 1 - len(shape)
    if extra:
        data = data.flatten(1, extra).sum(1) if extra > 1 else data.sum(1)
    for dim, size in enumerate(shape, start=1):
        if size == 1 and data.shape[dim] != 1:
            data = data.sum(dim, keepdim=True)
    return cotangent.whole(data)


def scaled_by(cotangent: Window, factor: Any) -> Window:
    return cotangent if factor == 1 else replace(cotangent, data=cotangent.data * factor)


@transpose("add", "sub", "rsub", varies=(0, 1), together=True)
def add(call: Call, output: int, cotangent: Window) -> Cotangents:
    alpha = call.kwargs.get("alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.op_name]
    return [
        (item, scaled_by(unbroadcast(cotangent, call.shapes[item]), factor))
        for item, factor in zip(call.args, factors, strict=False)
        if isinstance(item, Value) and item not in call.saved
    ]


@constant("add", "sub", "rsub")
def add_constant(call: Call, cotangent: Window) -> Tensor | None:
    alpha = call.kwargs.get("alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.op_name]
    fixed = [
        factor * total(cotangent, map_like(call.values(item), cotangent))
        for item, factor in zip(call.args, factors, strict=False)
        if not isinstance(item, Value) or item in call.saved
    ]
    return sum(fixed[1:], fixed[0]) if fixed else None


def map_like(values: Tensor, cotangent: Window) -> Tensor:
    """Fixed values as (B or 1, *sizes) against the map of the cotangents."""
    values = values.to(cotangent.data)
    missing = len(cotangent.shape) + 1 - values.dim()
    return values.reshape(*(1,) * missing, *values.shape) if missing > 0 else values


@transpose("mul", "div", varies=(0, 1))
def mul(call: Call, output: int, cotangent: Window) -> Cotangents:
    first, second = call.args[:2]
    if isinstance(first, Value) and first not in call.saved:
        source, factor = first, call.values(second)
    else:
        source, factor = second, call.values(first)
    factor = 1 / factor if call.node.op_name == "div" else factor
    return [(source, unbroadcast(cotangent.scale(map_like(factor, cotangent)), call.shapes[source]))]


@transpose("neg")
def neg(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], replace(cotangent, data=-cotangent.data))]


@transpose("clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh_copy", "positive", "dropout")
def same(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], cotangent)]


# --- everything else ------------------------------------------------------------------------------------------------


def vjp(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Autograd's transpose of one linear operation, on full maps: the way of every operation without a rule."""
    cotangent = cotangent.dense()
    source = call.args[0]
    probe = cotangent.data.new_zeros(len(cotangent.data), *call.shapes[source])

    def apply(x: Tensor) -> Any:
        out = call.node.op(x, *call.args[1:], **call.kwargs)
        return out[output] if isinstance(out, (tuple, list)) else out

    pull = torch.func.vjp(apply, probe)[1]
    (data,) = pull(cotangent.data)
    return [(source, cotangent.whole(data))]


def vjp_constant(call: Call, cotangent: Window) -> Tensor:
    """The constant part of an operation without a rule: what it makes of zeros."""
    source = call.args[0]
    zeros = cotangent.data.new_zeros(1, *call.shapes[source])
    out = call.node.op(zeros, *call.args[1:], **call.kwargs)
    return total(cotangent, out[0] if isinstance(out, (tuple, list)) else out)
