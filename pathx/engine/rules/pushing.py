"""Going up: what linear operations make of tangents, which are windows as cotangents are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from pathx.engine.record.operations import Value
from pathx.engine.rules.arithmetic import sum_factors, times, times_factor, times_matrix
from pathx.engine.rules.shared import align, order_of_dims, reshape_window, run_call, run_on_rows, varying_inputs
from pathx.engine.rules.table import Call, has, record_of
from pathx.engine.window import Window

Tangents = Mapping[Value, Window]

_ELEMENTWISE = ("mul", "div", "neg", "where", "masked_fill", "_fused_rms_norm")
"""Operations whose transposes are themselves, but for what is broadcast."""


def push(call: Call, output: int, tangents: Tangents) -> Window:
    """What a linear operation makes of tangents of its varying arguments; all of them are of the same rows."""
    node, result = call.node, call.shapes[cast(Value, call.node.outputs[output])]
    value, tangent = next(iter(tangents.items()))
    shape = call.shapes[value]
    if has(node, "copy"):
        return tangent
    if has(node, "view"):
        return reshape_window(tangent, result)
    if node.kind in ("permute", "transpose", "t"):
        order = [dim - 1 for dim in order_of_dims(node.kind, call.args, len(shape) + 1)[1:]]
        data, origin = tangent.data.permute(0, *(dim + 1 for dim in order)), tuple(tangent.origin[dim] for dim in order)
        return replace(tangent, data=data, origin=origin, shape=result)
    if has(node, "repeat"):
        return _broadcast(tangent, result)
    if has(node, "sum"):
        terms = [(tangents[item], factor) for item, factor in sum_factors(call) if item in tangents]
        return add_windows([times(_broadcast(window, result), factor) for window, factor in terms])
    if node.kind in _ELEMENTWISE:
        rule = record_of(node).transpose
        assert rule is not None
        wide = replace(call, shapes={**call.shapes, **dict.fromkeys(tangents, result)})
        parts = [(item, _broadcast(window, result)) for item, window in tangents.items()]
        return add_windows([dict(rule(wide, output, window))[item] for item, window in parts])
    if (product := fixed_matrix(call)) is not None:
        return times_matrix(tangent, product[1])
    left = has(node, "matrix") and call.varies(call.args[0])
    factor = call.values(call.args[1 if left else 0]) if has(node, "matrix") else None
    if factor is not None and min(factor.dim(), len(shape)) > 1:
        tangent = _broadcast(tangent, (*result[:-2], *shape[-2:]))
        return times_factor(tangent, align(factor, tangent), left)
    if node.kind == "native_layer_norm":
        return _layer_norm(call, tangent)
    if record_of(node).saves is not None:
        return _transpose_of_transpose(call, output, tangents)
    return _run(call, output, tangents)


def _broadcast(window: Window, shape: tuple[int, ...]) -> Window:
    """The window of a tensor that is broadcast to another shape."""
    if window.shape == shape:
        return window
    new = (1,) * (len(shape) - len(window.shape))
    return window.whole(window.dense().data.reshape(-1, *new, *window.shape).expand(-1, *shape))


def add_windows(windows: list[Window]) -> Window:
    """The sum of windows of the same rows."""
    first, *rest = windows
    for other in rest:
        if first.origin != other.origin or first.extent != other.extent:
            first, other = first.dense(), other.dense()
        first = replace(first, data=first.data + other.data, clean=first.clean and other.clean)
    return first


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
    scaled = tangent.with_data(data).scale(call.saved[cast(Value, call.node.outputs[2])])
    weight = call.arg(2, "weight")
    return scaled if weight is None else scaled.scale(align(call.values(weight), scaled))


def _run(call: Call, output: int, tangents: Tangents) -> Window:
    """By the operation itself on whole maps, minus its constant part."""
    like = next(iter(tangents.values()))
    data, sources = like.data, varying_inputs(call)
    given = {value: window.dense().data for value, window in tangents.items()}
    if call.whole:
        zeros = {value: data.new_zeros(call.shapes[value]) for value in sources}
        made = torch.vmap(lambda rows: run_call(call, output, {**zeros, **rows}))(given)
        return like.whole(made - run_call(call, output, zeros))
    rows = [given.get(value, data.new_zeros(())).expand(len(data), *call.shapes[value]) for value in sources]
    made = run_on_rows(call, output, sources, rows, like.image)
    if record_of(call.node).constant is not None:
        rows = [data.new_zeros(call.batch, *call.shapes[value]) for value in sources]
        shift = run_on_rows(call, output, sources, rows, torch.arange(call.batch, device=data.device))
        made = made - (shift if call.batch == 1 else shift.index_select(0, like.image))
    return like.whole(made)


def _transpose_of_transpose(call: Call, output: int, tangents: Tangents) -> Window:
    """The same of an operation that is linear only with what it saved: maxima, norms."""
    rule, like = record_of(call.node).transpose, next(iter(tangents.values()))
    assert rule is not None  # the network was read

    def pull(cotangent: Tensor) -> list[Tensor]:
        below = {value: cotangent.new_zeros(len(cotangent), *call.shapes[value]) for value in tangents}
        for value, window in rule(call, output, like.whole(cotangent)):
            if value in below:  # it may be read twice, or not at all
                below[value] = below[value] + window.dense().data
        return list(below.values())

    zeros = like.data.new_zeros(len(like.data), *call.shapes[cast(Value, call.node.outputs[output])])
    given = [window.dense().data for window in tangents.values()]
    return like.whole(torch.func.vjp(pull, zeros)[1](given)[0])
