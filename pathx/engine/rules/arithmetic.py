"""Arithmetic: sums, normalisation, and products with a factor that is fixed or frozen at each image."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.geometry import (
    Field,
    Shapes,
    align_table,
    batch_in_front,
    elementwise,
    keeps_place,
    mix,
    mixes_last,
)
from pathx.engine.rules.shared import align, channel_total, plain, total, totals, unbroadcast, vjp
from pathx.engine.rules.table import Call, Cotangents, constant, linear, precise
from pathx.engine.window import Window, with_item

# --- sums and normalisation -----------------------------------------------------------------------------------------


def sum_factors(call: Call) -> list[tuple[Any, float]]:
    """The terms of a sum, each with its factor."""
    alpha = call.arg(2, call.kwargs.get("alpha", 1))
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.kind]
    return list(zip(call.args[:2], factors, strict=True))


@linear("add", linear_in=(0, 1), jointly_linear=True, field=keeps_place, traits={"sum"})
@linear("sub", "rsub", linear_in=(0, 1), jointly_linear=True, field=keeps_place, traits={"pointwise"})
def add(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [
        (item, times(unbroadcast(cotangent, call.shapes[item]), factor))
        for item, factor in sum_factors(call)
        if call.varies(item)
    ]


@constant("add", "sub", "rsub")
def add_constant(call: Call, cotangent: Window) -> Tensor | None:
    terms = [(item, factor) for item, factor in sum_factors(call) if not call.varies(item)]
    return totals([(times(cotangent, factor), call.values(item)) for item, factor in terms])


def times(cotangent: Window, factor: float) -> Window:
    """The cotangents times a number."""
    return cotangent if factor == 1 else cotangent.with_data(cotangent.data * factor)


@linear("neg", field=keeps_place)
def neg(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], cotangent.with_data(-cotangent.data))]


@linear(
    *("clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh_copy", "positive", "dropout"),
    field=keeps_place,
    traits={"copy"},
)
def copy_of_input(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], cotangent)]


def _refuse_batch_statistics(node: Node, varying: list[int]) -> str | None:
    training = node.kind != "_native_batch_norm_legit_no_training" and node.args[5] is True
    return "normalises by its batch's own statistics" if training or varying != [0] else None


BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit_no_training")


def _batch_norm_scale(call: Call) -> Tensor:
    """By channel."""
    if "scale" not in call.memo:
        weight, _, _, variance = call.args[1:5]
        eps = call.args[7] if len(call.args) > 7 else call.args[6]
        scale = torch.rsqrt(variance + eps)
        call.memo["scale"] = scale if weight is None else scale * weight
    return call.memo["scale"]


@linear(
    *BATCH_NORMS,
    refuses=_refuse_batch_statistics,
    keeps_batch=batch_in_front,
    field=keeps_place,
    traits={"same for all"},
)
def batch_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    scale = _batch_norm_scale(call)
    return [(call.args[0], cotangent.scale(scale.reshape(1, -1, *(1,) * (len(cotangent.shape) - 1))))]


@constant(*BATCH_NORMS)
def batch_norm_constant(call: Call, cotangent: Window) -> Tensor:
    bias, mean = call.args[2:4]
    shift = -mean * _batch_norm_scale(call)
    return channel_total(cotangent, shift if bias is None else shift + bias)


# --- normalisation by statistics of the image itself: the mean is linear, the scale is held -----------------------------


NORM: dict[str, Any] = {"saves": "statistics", "traits": {"last dimensions"}}


def _within_images(call: Shapes) -> bool:
    """The normalised dimensions, the last ones, leave out the batch."""
    return batch_in_front(call) and len(call.node.args[1]) < len(call.source)


def _norm_field(call: Shapes) -> Field:
    """The mean is of the last dimensions, or of all where groups of channels are normalised; every element stays where it is."""
    rank = len(call.source)
    count = rank - 1 if call.node.kind == "native_group_norm" else len(call.node.args[1])
    return call.field.change(lambda table: mix(table, range(rank - count, rank), place=True))


@linear("native_layer_norm", field=_norm_field, keeps_batch=_within_images, **NORM)
@linear("_fused_rms_norm", field=keeps_place, keeps_batch=_within_images, **NORM)
def last_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    """(x - mean) * scale * weight over the last dimensions, without the mean in RMSNorm. Boxes stay as they are in the others."""
    dims = range(len(cotangent.shape) - len(call.args[1]), len(cotangent.shape))
    cotangent = cotangent.clear_outside() if all(map(cotangent.covers, dims)) else cotangent.dense()
    weight = call.arg(2)
    weighted = cotangent if weight is None else cotangent.scale(align(call.values(weight), cotangent))
    below = weighted.scale(scale_of_norm(call))
    if call.node.kind == "native_layer_norm":
        below = below.with_data(below.data - below.data.mean([dim + 1 for dim in dims], keepdim=True))
    return [(call.args[0], below)]


@linear("native_group_norm", saves="statistics", keeps_batch=batch_in_front, field=_norm_field)
def group_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    """The same over groups of channels and all places."""
    source, weight, groups = call.args[0], call.arg(1), call.args[6]
    cotangent = cotangent.dense()
    data = cotangent.data
    if weight is not None:
        data = data * call.values(weight).reshape(-1, *(1,) * (data.dim() - 2))
    data = data.reshape(len(data), groups, -1)
    data = data * scale_of_norm(call).index_select(0, cotangent.image)[:, :, None]
    data = data - data.mean(2, keepdim=True)
    return [(source, cotangent.whole(data.reshape(-1, *call.shapes[source])))]


def scale_of_norm(call: Call) -> Tensor:
    """What a norm returned last: the scale that it normalised by."""
    return call.saved[cast(Value, call.node.outputs[-1])]


# --- what is added in the end -----------------------------------------------------------------------------------------


_BIASES = {"linear": 2, "native_layer_norm": 3, "convolution": 2, "native_group_norm": 2}
"""Positions of biases."""


@constant("linear", "native_layer_norm")
def bias_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.arg(_BIASES[call.node.kind])
    return None if bias is None else total(cotangent, align(call.values(bias), cotangent))


@constant("convolution", "native_group_norm")
def channel_bias_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.arg(_BIASES[call.node.kind])
    return None if bias is None else channel_total(cotangent, call.values(bias))


# --- products, element by element -----------------------------------------------------------------------------------


def _refuse_division(node: Node, varying: list[int]) -> str | None:
    if node.kwargs.get("rounding_mode"):
        return "rounds what it computed from the image"
    return None if 0 in varying else "divides by what it computed from the image"


@linear("div", refuses=_refuse_division, field=keeps_place, traits={"scale"})
@linear("mul", linear_in=(0, 1), factors=(0, 1), field=keeps_place)
def mul(call: Call, output: int, cotangent: Window) -> Cotangents:
    """The other factor is fixed, or frozen at each image (B, …); either may be broadcast."""
    first, second = call.args[:2]
    source, factor = (first, call.values(second)) if call.varies(first) else (second, call.values(first))
    if call.node.kind == "div":
        factor = 1 / (factor if factor.is_floating_point() else factor.to(precise(factor)))
    return [(source, unbroadcast(cotangent.scale(align(factor, cotangent)), call.shapes[source]))]


# --- products of matrices -------------------------------------------------------------------------------------------


def _keeps_rows(call: Shapes) -> bool:
    """Rows of a product are images, or parts of one."""
    return elementwise(call) and len(call.source) > 1


def times_matrix(window: Window, matrix: Tensor) -> Window:
    """x @ matrix for windows x (P, …, in) and one matrix (in, out). Boxes stay as they are but for `in`."""
    window, last = window.clear_outside(), len(window.shape) - 1
    if window.extent[last] == 1 and not window.covers(last):
        row = window.position(last).flatten().expand(len(window.data)).clamp(0, window.shape[last] - 1)
        data = window.data * matrix.index_select(0, row).unflatten(0, (-1, *(1,) * last))
    else:
        window = window if window.covers(last) else window.dense()
        # One product: `@` makes one per token where rows are strided, as the tokens of nn.MultiheadAttention are.
        data = (window.data.reshape(-1, len(matrix)) @ matrix).reshape(*window.data.shape[:-1], -1)
    return _widen(window, last, matrix.shape[1], data)


@linear("addmm", linear_in=(1,), keeps_batch=_keeps_rows, field=mixes_last, traits={"head"})
def addmm(call: Call, output: int, cotangent: Window) -> Cotangents:
    below = times_matrix(cotangent, call.values(call.args[2]).t())
    return [(call.args[1], times(below, call.kwargs.get("alpha", 1)))]


@constant("addmm")
def addmm_constant(call: Call, cotangent: Window) -> Tensor:
    return total(cotangent, align(call.values(call.args[0]) * call.kwargs.get("beta", 1), cotangent))


@linear("linear", keeps_batch=_keeps_rows, field=mixes_last, traits={"head"})
def linear_layer(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], times_matrix(cotangent, call.values(call.args[1])))]


def _product_field(call: Shapes) -> Field | None:
    """(…, n, k) @ (…, k, m) adds up along k: attention sees all tokens that it may look at."""
    rank, left = len(call.source), call.node.args[0] == call.varying[0]
    if rank < 2 or len(call.result) < rank:
        return None
    dim = rank - 1 if left else rank - 2
    return call.field.change(lambda table: align_table(mix(table, [dim]), len(call.result)))


def _keeps_rows_of_first(call: Shapes) -> bool:
    return _keeps_rows(call) and call.varying[0] == call.node.args[0]


@linear(
    "mm",
    linear_in=(0, 1),
    factors=(0, 1),
    keeps_batch=_keeps_rows_of_first,
    field=_product_field,
    traits={"matrix", "head"},
)
@linear("matmul", linear_in=(0, 1), factors=(0, 1), keeps_batch=_keeps_rows, field=_product_field, traits={"matrix"})
@linear("bmm", linear_in=(0, 1), factors=(0, 1), field=_product_field, traits={"matrix"})
def matmul(call: Call, output: int, cotangent: Window) -> Cotangents:
    """(…, n, k) @ (…, k, m): one varies, the other is fixed, or frozen at each image (B, …, ·, ·); either may be broadcast."""
    first, second = call.args
    left = call.varies(first)
    source, factor = (first, call.values(second)) if left else (second, call.values(first))
    if left and factor.dim() == 2:
        return [(source, times_matrix(cotangent, factor.t()))]
    if factor.dim() < 2 or len(call.shapes[source]) < 2:
        return vjp(call, output, cotangent)
    below = times_factor(cotangent, align(factor, cotangent).mT, left)
    return [(source, unbroadcast(below, call.shapes[source]))]


def times_factor(window: Window, factor: Tensor, left: bool) -> Window:
    """x @ factor (B or 1, …, k, m) for windows x (P, …, n, k), or factor (…, n, k) @ x (P, …, k, m) where they are not on the left.

    Boxes stay as they are along n or m, whichever x has, and are whole along the other.
    """
    window, rows, columns = window.clear_outside(), len(window.shape) - 2, len(window.shape) - 1
    inner, outer, size = (columns, rows, factor.shape[-1]) if left else (rows, columns, factor.shape[-2])
    if window.is_full and len(factor) == 1:
        return _widen(window, inner, size, _times_same(window.data, factor[0], left))
    under = window.data.narrow(outer + 1, 0, 1).expand(with_item(window.data.shape, outer + 1, size))
    read = _widen(window, outer, size, under).read(factor.mT).mT
    if window.extent[inner] == 1:  # such as one token
        return _widen(window, inner, size, window.data * read)
    return _widen(window, inner, size, window.data @ read if left else read @ window.data)


def _times_same(x: Tensor, factor: Tensor, left: bool) -> Tensor:
    """The product of x (P, …) with the same factor (…) for every row, without a copy of that for each."""
    if left:
        rows, count = x.movedim(0, -3), x.shape[-2]
        product = rows.flatten(-3, -2) @ factor
        return product.reshape(*product.shape[:-2], len(x), count, -1).movedim(-3, 0)
    columns, count = x.movedim(0, -2), x.shape[-1]
    product = factor @ columns.flatten(-2)
    return product.reshape(*product.shape[:-1], len(x), count).movedim(-2, 0)


def _widen(cotangent: Window, dim: int, size: int, data: Tensor) -> Window:
    """The boxes in a map whose dimension `dim` is `size` long, all of it, with other data."""
    return Window(
        data,
        with_item(cotangent.origin, dim, 0),
        with_item(cotangent.shape, dim, size),
        cotangent.row,
        cotangent.image,
        ordered=cotangent.ordered,
    )


plain("baddbmm", linear_in=(0, 1, 2), jointly_linear=True, factors=(1, 2))
plain("addcmul", linear_in=(0, 1, 2), jointly_linear=True, factors=(1, 2), field=keeps_place)
plain("mv", keeps_batch=lambda call: len(call.source) == 2, traits={"same for all"})
plain("addmv", linear_in=(1,), keeps_batch=lambda call: len(call.source) == 2, traits={"same for all"})
