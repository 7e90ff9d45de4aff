"""The transpose rule of every linear operation: cotangents of the output in, cotangents of the inputs out.

One rule serves windows and full maps alike. A rule that cannot keep a window small makes it dense first.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.operations import Call, Cotangents, constant, precise, transpose
from pathx.trace import Value
from pathx.window import Window, replaced, spread


def total(cotangent: Window, values: Tensor) -> Tensor:
    """(P,) sums of the cotangents times the values (B or 1, *sizes) under them."""
    product = cotangent.cleaned().scale(values).data
    return product.flatten(1).sum(1, dtype=precise(product))


def spatial(value: Any, dims: int) -> tuple[int, ...]:
    """A setting such as a stride, for each spatial dimension."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def grown(cotangent: Window, data: Tensor, channel: int | Tensor, shape: tuple[int, ...], geometry: Any) -> Window:
    """The window below a sliding-window operation: origins times stride less padding, overhanging by the padding."""
    stride, padding = geometry
    origin: list[int | Tensor] = [channel]
    overhang = [False]
    for dim, (step, pad) in enumerate(zip(stride, padding, strict=True), start=1):
        start = cotangent.origin[dim] * step - pad
        origin.append(start)
        inside = isinstance(start, int) and 0 <= start and start + data.shape[dim + 1] <= shape[dim]
        overhang.append(not inside)
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
    transposed, output_padding, groups = call.args[6], spatial(call.args[7], dims), call.args[8]
    shape = call.shapes[source]
    if transposed:
        data = F_CONVOLUTIONS[dims](cotangent.dense().data, weight, None, stride, padding, dilation, groups)
        return [(source, cotangent.whole(data))]
    if all(cotangent.covers(dim) for dim in range(1, dims + 1)):
        data = torch.ops.aten.convolution_backward(
            cotangent.dense().data,
            cotangent.data.new_zeros(1).expand(len(cotangent.data), *shape),
            weight,
            None,
            stride,
            padding,
            dilation,
            False,
            output_padding,
            groups,
            [True, False, False],
        )[0]
        return [(source, cotangent.whole(data))]
    if cotangent.extent == (1,) * (dims + 1):
        return [(source, _kernel_window(cotangent, weight, shape, (stride, padding, dilation, groups)))]
    cotangent = _all_channels(cotangent.cleaned())
    if cotangent.extent[1:] == (1,) * dims and groups == 1 and set(dilation) == {1}:
        data = (cotangent.data.flatten(1) @ weight.flatten(1)).unflatten(1, weight.shape[1:])
    else:
        data = F_TRANSPOSED[dims](cotangent.data, weight, None, stride, 0, 0, groups, dilation)
    return [(source, grown(cotangent, data, 0, shape, (stride, padding)))]


F_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
F_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _kernel_window(cotangent: Window, weight: Tensor, shape: tuple[int, ...], geometry: Any) -> Window:
    """What single units of a convolution's output send down: rows of its weight, read rather than computed."""
    stride, padding, dilation, groups = geometry
    channel = cotangent.position(0).flatten().expand(len(cotangent.data))
    if cotangent.overhang[0]:
        channel = channel.clamp(0, len(weight) - 1)
    data = weight[channel] * cotangent.cleaned().data
    for dim, step in enumerate(dilation, start=2):
        if step > 1 and data.shape[dim] > 1:
            data = spread(data, dim, step)
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
def convolution_constant(call: Call, cotangent: Window) -> Tensor:
    bias = call.args[2]
    return _channel_total(cotangent, bias)


def _channel_total(cotangent: Window, values: Tensor | None) -> Tensor:
    """(P,) sums of the cotangents times one value per channel."""
    data = cotangent.cleaned().data
    if values is None:
        return data.new_zeros(len(data), dtype=precise(data))
    sums = data.flatten(2).sum(2, dtype=precise(data)) if data.dim() > 2 else data.to(precise(data))
    reduced = replace(
        cotangent, data=sums, origin=cotangent.origin[:1], shape=cotangent.shape[:1], overhang=cotangent.overhang[:1]
    )
    return reduced.scale(values.to(precise(data))[None]).data.sum(1)


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
def linear_constant(call: Call, cotangent: Window) -> Tensor:
    bias = call.arg(2, "bias")
    return total(cotangent, cotangent.data.new_zeros(1, 1) if bias is None else bias[None])


# --- normalisation with fixed statistics, sums and factors ----------------------------------------------------------


def _batch_norm_terms(call: Call) -> tuple[Tensor, Tensor]:
    """Scale and shift per channel."""
    weight, bias, mean, variance = call.args[1:5]
    eps = call.args[7] if len(call.args) > 7 else call.args[6]
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight
    shift = -mean * scale
    return scale, shift if bias is None else shift + bias


@transpose("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    scale, _ = _batch_norm_terms(call)
    return [(call.args[0], cotangent.scale(scale.reshape(1, -1, *(1,) * (len(cotangent.shape) - 1))))]


@constant("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm_constant(call: Call, cotangent: Window) -> Tensor:
    return _channel_total(cotangent, _batch_norm_terms(call)[1])


def _unbroadcast(cotangent: Window, shape: tuple[int, ...]) -> Window:
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


def _scaled(cotangent: Window, factor: Any) -> Window:
    return cotangent if factor == 1 else replace(cotangent, data=cotangent.data * factor)


@transpose("add", "sub", "rsub", varies=(0, 1), together=True)
def add(call: Call, output: int, cotangent: Window) -> Cotangents:
    alpha = call.kwargs.get("alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.op_name]
    return [
        (item, _scaled(_unbroadcast(cotangent, call.shapes[item]), factor))
        for item, factor in zip(call.args, factors, strict=False)
        if isinstance(item, Value) and item not in call.saved
    ]


@constant("add", "sub", "rsub")
def add_constant(call: Call, cotangent: Window) -> Tensor:
    alpha = call.kwargs.get("alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.op_name]
    result = cotangent.data.new_zeros(len(cotangent.data), dtype=precise(cotangent.data))
    for item, factor in zip(call.args, factors, strict=False):
        if not isinstance(item, Value) or item in call.saved:
            result = result + factor * total(cotangent, _map_like(call.values(item), cotangent))
    return result


def _map_like(values: Tensor, cotangent: Window) -> Tensor:
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
    return [(source, _unbroadcast(cotangent.scale(_map_like(factor, cotangent)), call.shapes[source]))]


@transpose("neg")
def neg(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], replace(cotangent, data=-cotangent.data))]


@transpose("clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh_copy", "positive", "dropout")
def same(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], cotangent)]


# --- pooling --------------------------------------------------------------------------------------------------------


@transpose("max_pool2d_with_indices", saves=(1,))
def max_pool(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Every cotangent goes to the element that won its place in the forward pass."""
    source, kernel = call.args[0], spatial(call.args[1], 2)
    stride = spatial(call.arg(2, "stride") or kernel, 2)
    padding, dilation = spatial(call.arg(3, "padding", 0), 2), spatial(call.arg(4, "dilation", 1), 2)
    shape = call.shapes[source]
    width = shape[2]
    cotangent = cotangent.cleaned()
    winner = cotangent.read(call.saved[call.node.outputs[1]])  # type: ignore[index]
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
    if below.is_full:
        return max_pool(call, output, cotangent.dense())
    y = winner // width - _corner(below, 1)
    x = winner % width - _corner(below, 2)
    place = (y * extent[1] + x).expand_as(cotangent.data)
    if cotangent.inside() is not None:  # what was read outside the map points anywhere
        place = place.clamp(0, extent[0] * extent[1] - 1)
    data = cotangent.data.new_zeros(*cotangent.data.shape[:2], extent[0] * extent[1])
    data.scatter_add_(2, place.flatten(2), cotangent.data.flatten(2))
    overhang = (cotangent.overhang[0], *below.overhang[1:])
    return [(source, replace(below, data=data.unflatten(2, extent), overhang=overhang, clean=True))]


def _corner(window: Window, dim: int) -> int | Tensor:
    origin = window.origin[dim]
    return origin.reshape(-1, *(1,) * len(window.shape)) if isinstance(origin, Tensor) else origin


@transpose("adaptive_max_pool2d", "max_pool3d_with_indices", "adaptive_max_pool3d", saves=(1,))
def routed(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Other pools that say who won: flat index inside each channel's map."""
    source = call.args[0]
    shape = call.shapes[source]
    cotangent = cotangent.dense()
    winner = call.saved[call.node.outputs[1]].index_select(0, cotangent.image)  # type: ignore[index]
    data = cotangent.data.new_zeros(*cotangent.data.shape[:2], prod(shape[1:]))
    data.scatter_add_(2, winner.flatten(2), cotangent.data.flatten(2))
    return [(source, cotangent.whole(data.unflatten(2, shape[1:])))]


@transpose("avg_pool2d")
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


@transpose("_adaptive_avg_pool2d", "adaptive_avg_pool2d")
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
    overhang = tuple(d not in dims and cotangent.overhang[d] for d in range(len(shape)))
    return replace(cotangent, data=data, origin=origin, shape=shape, overhang=overhang, clean=True)


@transpose("mean", "sum")
def mean(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dims = call.arg(1, "dim")
    axes = tuple(sorted(d % (len(shape) + 1) - 1 for d in ([dims] if isinstance(dims, int) else dims)))
    if not call.arg(2, "keepdim", False):
        cotangent = reduce_insert(cotangent, axes)
    if call.node.op_name == "sum":
        cotangent = _scaled(cotangent, prod(shape[d] for d in axes))
    return [(source, _spread_mean(cotangent, shape, axes))]


def reduce_insert(cotangent: Window, axes: tuple[int, ...]) -> Window:
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


# --- shapes ---------------------------------------------------------------------------------------------------------


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
    return [(call.args[0], _unbroadcast(cotangent, call.shapes[call.args[0]]))]


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


@transpose("slice")
def slice_(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dim = call.arg(1, "dim", 0) % (len(cotangent.shape) + 1) - 1
    size = call.shapes[source][dim]
    start = call.arg(2, "start") or 0
    start = max(0, start + size) if start < 0 else min(start, size)
    return [(source, cotangent.shift(dim, start, size, step=call.arg(4, "step", 1)))]


@transpose("select")
def select(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dim = call.args[1] % (len(shape) + 1) - 1
    return [(source, reduce_insert(cotangent, (dim,)).shift(dim, call.args[2] % shape[dim], shape[dim]))]


@transpose("split", "split_with_sizes", "chunk", "unbind")
def split(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    shape = call.shapes[source]
    dim = call.arg(1 if call.node.op_name == "unbind" else 2, "dim", 0) % (len(shape) + 1) - 1
    if call.node.op_name == "unbind":
        return [(source, reduce_insert(cotangent, (dim,)).shift(dim, output, shape[dim]))]
    offset = sum(call.shapes[o][dim] for o in call.node.outputs[:output] if o is not None)
    return [(source, cotangent.shift(dim, offset, shape[dim]))]


@transpose("constant_pad_nd")
def pad(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, pads = call.args[0], call.args[1]
    for number in range(len(pads) // 2):
        dim = len(cotangent.shape) - 1 - number
        cotangent = cotangent.shift(dim, -pads[2 * number], call.shapes[source][dim])
    return [(source, cotangent)]


# --- everything else ------------------------------------------------------------------------------------------------


def vjp(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Autograd's transpose of one linear operation, on full maps: the way of every operation without a rule."""
    cotangent = cotangent.dense()
    source = call.args[0]
    probe = cotangent.data.new_zeros(len(cotangent.data), *call.shapes[source])

    def apply(x: Tensor) -> Tensor:
        out = call.node.op(x, *call.args[1:], **call.kwargs)
        return out[output] if isinstance(out, (tuple, list)) else out

    _, pull = torch.func.vjp(apply, probe)
    (data,) = pull(cotangent.data)
    return [(source, cotangent.whole(data))]


def vjp_constant(call: Call, cotangent: Window) -> Tensor:
    """The constant part of an operation without a rule: what it makes of zeros."""
    source = call.args[0]
    zeros = cotangent.data.new_zeros(1, *call.shapes[source])
    out = call.node.op(zeros, *call.args[1:], **call.kwargs)
    return total(cotangent, out[0] if isinstance(out, (tuple, list)) else out)
