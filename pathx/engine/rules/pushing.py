"""Going up: what linear operations make of tangents, which are windows as cotangents are."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

import torch
from torch import Tensor

from pathx.engine.record.operations import Value
from pathx.engine.rules.arithmetic import BATCH_NORMS, scale_of_norm, sum_factors, times, times_factor, times_matrix
from pathx.engine.rules.convolutions import CONVOLUTIONS, all_channels
from pathx.engine.rules.geometry import spatial
from pathx.engine.rules.pooling import mean_dims
from pathx.engine.rules.shapes import dim_of, part_of, pieces
from pathx.engine.rules.shared import (
    align,
    order_of_dims,
    reshape_window,
    vjp_of_one,
    window_below,
)
from pathx.engine.rules.table import Call, has, record_of
from pathx.engine.window import Window, with_item

_ELEMENTWISE = ("mul", "div", "neg", "where", "masked_fill", "_fused_rms_norm", *BATCH_NORMS)
"""Operations whose transposes are themselves, but for what is broadcast."""


def push(call: Call, output: int, value: Value, tangent: Window) -> Window:
    """What a linear operation makes of tangents of one of its varying arguments."""
    node, shape, result = call.node, call.shapes[value], call.shapes[cast(Value, call.node.outputs[output])]
    if has(node, "copy"):
        return tangent
    if has(node, "view"):
        return reshape_window(tangent, result)
    if node.kind in ("permute", "transpose", "t"):
        return tangent.permute(order_of_dims(node.kind, call.args, len(shape) + 1))
    if has(node, "repeat"):
        return _broadcast(tangent, result)
    if has(node, "sum"):
        return times(_broadcast(tangent, result), sum(factor for item, factor in sum_factors(call) if item == value))
    if node.kind in _ELEMENTWISE and not call.whole:
        rule = record_of(node).transpose
        assert rule is not None
        wide = replace(call, shapes={**call.shapes, value: result})
        below = rule(wide, output, _broadcast(tangent, result))
        first, *again = [window for item, window in below if item == value]  # it may be read twice
        return first.with_data(sum((window.data for window in again), first.data))
    if node.kind == "cat" and not call.whole and call.args[0].count(value) == 1:
        dim = dim_of(call, 1, len(shape) + 1)
        return tangent.shift(dim, next(at for item, at, _ in pieces(call, dim) if item is value), result[dim])
    if has(node, "part") and not call.whole:
        dim, start, step = part_of(call, output) or (0, 0, 1)
        if step == 1:
            size = 1 if node.kind in ("select", "unbind") else result[dim]
            return reshape_window(tangent.shift(dim, -start, size), result)
    if (product := fixed_matrix(call)) is not None:
        return times_matrix(tangent, product[1])
    left = has(node, "matrix") and call.varies(call.args[0])
    factor = call.values(call.args[1 if left else 0]) if has(node, "matrix") else None
    if factor is not None and min(factor.dim(), len(shape)) > 1:
        tangent = _broadcast(tangent, (*result[:-2], *shape[-2:]))
        return times_factor(tangent, align(factor, tangent), left)
    if node.kind == "native_layer_norm":
        return _layer_norm(call, tangent)
    if node.kind == "convolution" and not call.whole and not call.args[6]:
        return _convolution(call, tangent, result)
    if not call.whole and (dims := mean_dims(call)) is not None:
        return _mean(call, tangent, dims, result)
    return _transpose_of_transpose(call, output, value, tangent)


def _broadcast(window: Window, shape: tuple[int, ...]) -> Window:
    """The window of a tensor that is broadcast to another shape."""
    if window.shape == shape:
        return window
    new = (1,) * (len(shape) - len(window.shape))
    return window.whole(window.dense().data.reshape(-1, *new, *window.shape).expand(-1, *shape))


def fixed_matrix(call: Call) -> tuple[Value, Tensor] | None:
    """What (…, in) a call multiplies by a fixed matrix (in, out), and that; None where it does something else."""
    position = {"matmul": 0, "mm": 0, "linear": 0, "addmm": 1}.get(call.node.kind)
    if position is None or not call.varies(call.args[position]) or call.kwargs.get("alpha", 1) != 1:
        return None
    matrix = call.args[position + 1]
    if not isinstance(matrix, Tensor) or matrix.dim() != 2:
        return None
    return call.args[position], matrix.t() if call.node.kind == "linear" else matrix


def _layer_norm(call: Call, tangent: Window) -> Window:
    """(x - mean) * scale * weight, over the last dimensions. Boxes in the other dimensions stay as they are."""
    dims = range(len(tangent.shape) - len(call.args[1]), len(tangent.shape))
    tangent = tangent.clear_outside() if all(tangent.covers(dim) for dim in dims) else tangent.dense()
    data = tangent.data - tangent.data.mean([dim + 1 for dim in dims], keepdim=True)
    scaled = tangent.with_data(data).scale(scale_of_norm(call))
    weight = call.arg(2)
    return scaled if weight is None else scaled.scale(align(call.values(weight), scaled))


def _convolution(call: Call, tangent: Window, shape: tuple[int, ...]) -> Window:
    """Without the bias. With a stride of 1, boxes grow by what the kernel reaches."""
    weight, groups, dims = call.args[1], call.args[8], call.args[1].dim() - 2
    stride, padding, dilation = (spatial(call.args[position], dims) for position in (3, 4, 5))
    if max(stride) > 1:
        data = CONVOLUTIONS[dims](tangent.dense().data, weight, None, stride, padding, dilation, groups)
        return tangent.whole(data)
    reach = [gap * (size - 1) for gap, size in zip(dilation, weight.shape[2:], strict=True)]
    tangent = tangent.clear_outside()
    if tangent.is_one_hot and groups == 1 and set(dilation) == {1}:  # a column of the kernel, read rather than computed
        channel = tangent.position(0).flatten().expand(len(tangent.data)).clamp(0, tangent.shape[0] - 1)
        data = weight.transpose(0, 1).index_select(0, channel).flip(tuple(range(2, weight.dim()))) * tangent.data
    else:
        tangent = all_channels(tangent)
        data = CONVOLUTIONS[len(reach)](tangent.data, weight, None, 1, reach, dilation, groups)
    beyond = [far - pad for far, pad in zip(reach, padding, strict=True)]
    return window_below(tangent, data, 0, shape, ([1] * len(reach), beyond))


def _mean(call: Call, tangent: Window, dims: tuple[int, ...], shape: tuple[int, ...]) -> Window:
    data = tangent.clear_outside().data.sum([dim + 1 for dim in dims], keepdim=True)
    if call.node.kind != "sum":
        data = data / prod(tangent.shape[dim] for dim in dims)
    for dim in dims:
        tangent = replace(tangent, origin=with_item(tangent.origin, dim, 0), shape=with_item(tangent.shape, dim, 1))
    return reshape_window(replace(tangent, data=data, clean=True), shape)


def _transpose_of_transpose(call: Call, output: int, value: Value, tangent: Window) -> Window:
    """By autograd, on whole maps: of any operation, as its rule pulls cotangents back."""
    rule, data = vjp_of_one if call.whole else record_of(call.node).transpose, tangent.dense().data
    assert rule is not None  # the network was read

    def pull(cotangent: Tensor) -> Tensor:
        below = torch.zeros_like(data)
        for source, window in rule(call, output, tangent.whole(cotangent)):
            if source == value:  # it may be read twice, or not at all
                below = below + window.dense().data
        return below

    zeros = data.new_zeros(len(data), *call.shapes[cast(Value, call.node.outputs[output])])
    return tangent.whole(torch.func.vjp(pull, zeros)[1](data)[0])
