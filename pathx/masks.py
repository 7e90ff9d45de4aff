"""Masks: `where`, `masked_fill` and products with what is frozen or fixed.

A mask that a value makes of itself, as in `x * (x > 0)`, is a ReLU by another name and so a gate; which it is, the
network decides. Any other mask is a factor of 0 or 1 like every fixed factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathx.operations import Call, Cotangents, Slopes, constant, gate, transpose
from pathx.trace import Value
from pathx.transposes import map_like, total, unbroadcast
from pathx.window import Window


@dataclass(frozen=True)
class _Mask:
    """A masking call: `source` passes where `taken`, and `other` stands in its place elsewhere."""

    source: Value
    taken: Tensor
    other: Any


def _mask(call: Call) -> _Mask:
    first, second, third = call.args
    if call.node.kind == "masked_fill":
        return _Mask(first, ~call.values(second), third)
    if isinstance(second, Value) and second not in call.saved:
        return _Mask(second, call.values(first), third)
    return _Mask(third, ~call.values(first), second)


@gate("where", "masked_fill")
def masked(call: Call, h: Tensor) -> Slopes:
    mask = _mask(call)
    slope = torch.broadcast_to(mask.taken, h.shape).to(h.dtype)
    return Slopes(slope * h, slope, offset=(1 - slope) * call.values(mask.other).to(h))


@gate("mul")
def multiplied(call: Call, h: Tensor) -> Slopes:
    """`h * (h > 0)`: the other factor is the slope."""
    first, second = call.args
    factor = call.values(second if isinstance(first, Value) and first not in call.saved else first)
    slope = torch.broadcast_to(factor, h.shape).to(h.dtype)
    return Slopes(slope * h, slope)


@transpose("where", varies=(1, 2))
@transpose("masked_fill")
def mask(call: Call, output: int, cotangent: Window) -> Cotangents:
    mask = _mask(call)
    taken = map_like(mask.taken, cotangent)
    return [(mask.source, unbroadcast(cotangent.scale(taken), call.shapes[mask.source]))]


@constant("where", "masked_fill")
def mask_constant(call: Call, cotangent: Window) -> Tensor:
    mask = _mask(call)
    left = cotangent.scale(1 - map_like(mask.taken, cotangent))
    return total(left, map_like(call.values(mask.other), cotangent))
