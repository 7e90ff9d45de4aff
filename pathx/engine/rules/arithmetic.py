"""Arithmetic with what is fixed: normalisation, sums and factors."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from pathx.engine.record.operations import Node
from pathx.engine.rules.fallback import plain
from pathx.engine.rules.geometry import any_shape, keeps_place
from pathx.engine.rules.sums import channel_total, map_like, scaled_by, total, unbroadcast
from pathx.engine.rules.table import Call, Cotangents, constant, linear, precise
from pathx.engine.window import Window


def _batch_norm_scale(call: Call) -> Tensor:
    """By channel. Kept for the call, as several cotangents ask for it."""
    if "scale" not in call.memory:
        weight, _, _, variance = call.args[1:5]
        eps = call.args[7] if len(call.args) > 7 else call.args[6]
        scale = torch.rsqrt(variance + eps)
        call.memory["scale"] = scale if weight is None else scale * weight
    return cast(Tensor, call.memory["scale"])


def _own_statistics(node: Node, varying: list[int]) -> str | None:
    training = node.args[5] is True or varying != [0]
    return "normalises by its batch's own statistics" if training else None


@linear("native_batch_norm", fresh=True, refuses=_own_statistics, apart=any_shape, field=keeps_place)
@linear("cudnn_batch_norm", "miopen_batch_norm", refuses=_own_statistics, apart=any_shape, field=keeps_place)
@linear("_native_batch_norm_legit_no_training", apart=any_shape, field=keeps_place)
def batch_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    scale = _batch_norm_scale(call)
    return [(call.args[0], cotangent.scale(scale.reshape(1, -1, *(1,) * (len(cotangent.shape) - 1))))]


@constant("native_batch_norm", "_native_batch_norm_legit_no_training", "cudnn_batch_norm", "miopen_batch_norm")
def batch_norm_constant(call: Call, cotangent: Window) -> Tensor:
    bias, mean = call.args[2:4]
    shift = -mean * _batch_norm_scale(call)
    return channel_total(cotangent, shift if bias is None else shift + bias)


@linear("sub", "rsub", varies=(0, 1), together=True, field=keeps_place)
@linear("add", varies=(0, 1), together=True, fresh=True, field=keeps_place)
def add(call: Call, output: int, cotangent: Window) -> Cotangents:
    alpha = call.arg(2, "alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.kind]
    return [
        (item, scaled_by(unbroadcast(cotangent, call.shapes[item]), factor))
        for item, factor in zip(call.args[:2], factors, strict=True)
        if call.varies(item)
    ]


@constant("add", "sub", "rsub")
def add_constant(call: Call, cotangent: Window) -> Tensor | None:
    alpha = call.arg(2, "alpha", 1)
    factors = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.node.kind]
    fixed = [
        factor * total(cotangent, map_like(call.values(item), cotangent))
        for item, factor in zip(call.args[:2], factors, strict=True)
        if not call.varies(item)
    ]
    return sum(fixed[1:], fixed[0]) if fixed else None


def _divided(node: Node, varying: list[int]) -> str | None:
    if node.kwargs.get("rounding_mode"):
        return "rounds what it computed from the image"
    return None if varying == [0] else "divides by what it computed from the image"


@linear("div", varies=(0, 1), refuses=_divided, field=keeps_place)
@linear("mul", varies=(0, 1), field=keeps_place)
def mul(call: Call, output: int, cotangent: Window) -> Cotangents:
    first, second = call.args[:2]
    source, factor = (first, call.values(second)) if call.varies(first) else (second, call.values(first))
    if call.node.kind == "div":  # whole numbers as precisely as there is
        factor = 1 / (factor if factor.is_floating_point() or factor.is_complex() else factor.to(precise(factor)))
    if factor.is_complex():
        factor = factor.conj()
    return [(source, unbroadcast(cotangent.scale(map_like(factor, cotangent)), call.shapes[source]))]


@linear("neg", field=keeps_place)
def neg(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], cotangent.holding(-cotangent.data))]


@linear("clone", "alias", "detach", "_to_copy", "contiguous", same=True, pools=True, field=keeps_place)
@linear("lift_fresh_copy", "positive", "dropout", pools=True, field=keeps_place)
def same(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], cotangent)]


plain("lerp", takes_frozen=True, varies=(0, 1), together=True, field=keeps_place)
