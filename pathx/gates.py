"""The ReLU family: slope and constant part of every piecewise-linear unit at its frozen input h.

A unit is active where its slope is not 0. For units with two non-zero slopes (LeakyReLU, PReLU) every unit is active,
on either side of the bend: its output passes on either way, and the path may run through it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pathx.operations import Call, Slopes, gate
from pathx.trace import Value


@gate("relu")
def relu(call: Call, output: Tensor) -> Slopes:
    """The one gate that is frozen from its output, so that the forward pass may overwrite its input."""
    return Slopes(gain=output)


def _clipped(h: Tensor, low: Tensor | float, high: Tensor | float) -> Slopes:
    low, high = (torch.as_tensor(bound, dtype=h.dtype, device=h.device) for bound in (low, high))
    slope = ((h > low) & (h < high)).to(h.dtype)
    gain = slope * h
    return Slopes(gain, slope, offset=torch.clamp(h, low, high) - gain)


@gate("hardtanh", "relu6")
def hardtanh(call: Call, h: Tensor) -> Slopes:
    low, high = (
        (0.0, 6.0) if call.node.op_name == "relu6" else (call.arg(1, "min_val", -1.0), call.arg(2, "max_val", 1.0))
    )
    return _clipped(h, low, high)


@gate("clamp", "clamp_min", "clamp_max")
def clamp(call: Call, h: Tensor) -> Slopes:
    name = call.node.op_name
    low = call.arg(1, "min") if name != "clamp_max" else None
    high = call.arg(1 if name == "clamp_max" else 2, "max") if name != "clamp_min" else None
    low, high = (call.saved[bound] if isinstance(bound, Value) else bound for bound in (low, high))
    return _clipped(h, -math.inf if low is None else low, math.inf if high is None else high)


@gate("maximum", "minimum", "fmax", "fmin")
def bounded(call: Call, h: Tensor) -> Slopes:
    bound = next(call.values(item) for item in call.args if not isinstance(item, Value) or item in call.saved)
    return _clipped(h, bound, math.inf) if call.node.op_name in ("maximum", "fmax") else _clipped(h, -math.inf, bound)


@gate("threshold")
def threshold(call: Call, h: Tensor) -> Slopes:
    slope = (h > call.args[1]).to(h.dtype)
    return Slopes(slope * h, slope, offset=(1 - slope) * call.args[2])


def _two_slopes(h: Tensor, negative: Tensor | float) -> Slopes:
    slope = torch.where(h > 0, torch.ones_like(h), torch.ones_like(h) * negative)
    return Slopes(slope * h, slope)


@gate("leaky_relu")
def leaky_relu(call: Call, h: Tensor) -> Slopes:
    return _two_slopes(h, call.arg(1, "negative_slope", 0.01))


@gate("_prelu_kernel", "prelu")
def prelu(call: Call, h: Tensor) -> Slopes:
    weight = call.args[1]
    if weight.dim() == 1:
        weight = weight.reshape(1, -1, *(1,) * (h.dim() - 2))
    return _two_slopes(h, weight)


@gate("abs")
def absolute(call: Call, h: Tensor) -> Slopes:
    return Slopes(h.abs(), torch.sign(h))
