"""The ReLU family: slope and constant part of every piecewise-linear unit at its frozen input h.

A unit is active where its slope is not 0. For units with two non-zero slopes (LeakyReLU, PReLU) every unit is active,
on either side of the bend: its output passes on either way, and the path may run through it.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from pathx.engine.record.operations import Value
from pathx.engine.rules.table import Call, Slopes, gate


@gate("relu", gates_from_output=True)
def relu(call: Call, output: Tensor) -> Slopes:
    """The one gate that is frozen from its output, so that the forward pass may overwrite its input."""
    return Slopes(gain=output)


def _clipped(h: Tensor, low: Tensor | float, high: Tensor | float) -> Slopes:
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        low, high = (torch.as_tensor(bound, dtype=h.dtype, device=h.device) for bound in (low, high))
        active = (h > low) & (h < high)
        gain, slope = _where(active, h), active.to(h.dtype)
    else:  # one sweep each, and with numbers: many times as quick as comparisons
        gain, slope = (_inside(values, h, low, high) for values in (h, torch.ones_like(h)))
    finite = not isinstance(low, Tensor) and math.isfinite(low) and math.isfinite(high)
    clipped = torch.clamp(h, low, high)  # type: ignore[arg-type]  # both are numbers, or both tensors
    return Slopes(gain, slope, offset=clipped - gain, finite=finite)


def _inside(values: Tensor, h: Tensor, low: float, high: float) -> Tensor:
    """The values where h lies between two bounds, and 0 elsewhere."""
    return cast(Tensor, torch.ops.aten.hardtanh_backward.default(values, h, low, high))


def _where(active: Tensor, h: Tensor) -> Tensor:
    """What active units send on. Not a product: 0 times the infinity that a model padded with is no number."""
    return h.masked_fill(~active, 0.0)


@gate("hardtanh", "relu6")
def hardtanh(call: Call, h: Tensor) -> Slopes:
    low, high = (0.0, 6.0) if call.node.kind == "relu6" else (call.arg(1, "min_val", -1.0), call.arg(2, "max_val", 1.0))
    return _clipped(h, low, high)


@gate("clamp", "clamp_min", "clamp_max")
def clamp(call: Call, h: Tensor) -> Slopes:
    name = call.node.kind
    low = call.arg(1, "min") if name != "clamp_max" else None
    high = call.arg(1 if name == "clamp_max" else 2, "max") if name != "clamp_min" else None
    low, high = (call.saved[bound] if isinstance(bound, Value) else bound for bound in (low, high))
    return _clipped(h, -math.inf if low is None else low, math.inf if high is None else high)


@gate("maximum", "minimum", "fmax", "fmin", varies=(0, 1))
def bounded(call: Call, h: Tensor) -> Slopes:
    bound = next(call.values(item) for item in call.args if not isinstance(item, Value) or item in call.saved)
    return _clipped(h, bound, math.inf) if call.node.kind in ("maximum", "fmax") else _clipped(h, -math.inf, bound)


@gate("threshold")
def threshold(call: Call, h: Tensor) -> Slopes:
    active = h > call.args[1]
    slope = active.to(h.dtype)
    return Slopes(_where(active, h), slope, offset=(1 - slope) * call.args[2])


@gate("leaky_relu")
def leaky_relu(call: Call, h: Tensor) -> Slopes:
    negative = call.arg(1, "negative_slope", 0.01)
    slope = torch.ops.aten.leaky_relu_backward.default(torch.ones_like(h), h, negative, False)
    return Slopes(slope * h, slope)


@gate("_prelu_kernel", "prelu")
def prelu(call: Call, h: Tensor) -> Slopes:
    weight = call.args[1]
    if weight.dim() == 1:
        weight = weight.reshape(1, -1, *(1,) * (h.dim() - 2))
    slope = torch.where(h > 0, torch.ones_like(h), torch.ones_like(h) * weight)
    return Slopes(slope * h, slope)


@gate("abs")
def absolute(call: Call, h: Tensor) -> Slopes:
    return Slopes(h.abs(), torch.sign(h))


@gate("hardshrink")
def hardshrink(call: Call, h: Tensor) -> Slopes:
    slope = (h.abs() > call.arg(1, "lambd", 0.5)).to(h.dtype)
    return Slopes(slope * h, slope)


@gate("softshrink")
def softshrink(call: Call, h: Tensor) -> Slopes:
    lambd = call.arg(1, "lambd", 0.5)
    slope = (h.abs() > lambd).to(h.dtype)
    return Slopes(slope * h, slope, offset=-slope * torch.sign(h) * lambd)


@gate("hardsigmoid")
def hardsigmoid(call: Call, h: Tensor) -> Slopes:
    active = (h > -3) & (h < 3)
    slope = active.to(h.dtype) / 6
    return Slopes(_where(active, h) / 6, slope, offset=torch.where(h >= 3, 1.0, 3 * slope))
