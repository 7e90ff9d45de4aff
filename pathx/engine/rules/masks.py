"""Masks: `where`, `masked_fill` and products with what is frozen or fixed.

A mask that a value makes of itself, as in `x * (x > 0)`, is a ReLU by another name and so a gate; which it is, the
network decides. Any other mask is a factor of 0 or 1 like every fixed factor, and one that chooses between two computed
values is a route, as is the larger of the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathx.engine.rules.geometry import keeps_place
from pathx.engine.rules.sums import map_like, total, unbroadcast
from pathx.engine.rules.table import Call, Cotangents, Slopes, constant, gate, linear
from pathx.engine.window import Window


def _choices(call: Call) -> list[tuple[Any, Tensor]]:
    """Each value that a call chooses from, and where it is taken."""
    if call.node.kind == "masked_fill":
        filled = call.values(call.args[1])
        return [(call.args[0], ~filled), (call.args[2], filled)]
    if call.node.kind == "where":
        condition = call.values(call.args[0])
        return [(call.args[1], condition), (call.args[2], ~condition)]
    first, second = (call.inputs[item] for item in call.args)
    taken = first >= second if call.node.kind in ("maximum", "fmax") else first <= second
    return [(call.args[0], taken), (call.args[1], ~taken)]


@gate("where", "masked_fill", self_masking=True)
def masked(call: Call, h: Tensor) -> Slopes:
    choices = _choices(call)
    ((_, own),) = (choice for choice in choices if call.varies(choice[0]))
    ((other, _),) = (choice for choice in choices if not call.varies(choice[0]))
    taken = torch.broadcast_to(own, h.shape)
    offset = call.values(other).to(h).expand_as(h).masked_fill(taken, 0.0)
    return Slopes(h.masked_fill(~taken, 0.0), taken.to(h.dtype), offset)


@gate("mul", self_masking=True)
def multiplied(call: Call, h: Tensor) -> Slopes:
    """`h * (h > 0)`: the other factor is the slope."""
    first, second = call.args
    slope = torch.broadcast_to(call.values(second if call.varies(first) else first), h.shape).to(h.dtype)
    return Slopes(slope * h, slope)


@linear("where", varies=(1, 2), together=True, field=keeps_place)
@linear("masked_fill", field=keeps_place)
def chosen(call: Call, output: int, cotangent: Window) -> Cotangents:
    """What was taken goes back to where it came from."""
    return [
        (item, unbroadcast(cotangent.scale(map_like(taken, cotangent)), call.shapes[item]))
        for item, taken in _choices(call)
        if call.varies(item)
    ]


@constant("where", "masked_fill")
def chosen_constant(call: Call, cotangent: Window) -> Tensor | None:
    fixed = [
        total(cotangent.scale(map_like(taken, cotangent)), map_like(call.values(item), cotangent))
        for item, taken in _choices(call)
        if not call.varies(item)
    ]
    return sum(fixed[1:], fixed[0]) if fixed else None


# The larger of two computed values; with one of them fixed it is a gate, to be found there.
linear("maximum", "minimum", "fmax", "fmin", varies=(0, 1), together=True, reads=True, field=keeps_place)(chosen)
