"""Everything that is not linear: activations and masks, what is locally constant, and what is refused.

An activation is frozen at its input h as output = slope * h + offset. A unit is active where its slope is not 0. With two
non-zero slopes (LeakyReLU, PReLU) every unit is active: its output passes on either way, and a path may run through it.

A mask that a value makes of itself, as in `x * (x > 0)`, is a ReLU by another name and so a gate; the network decides
which it is. Any other mask is a factor of 0 or 1. A mask that chooses between two computed values is a route, as is the
larger of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.record.operations import Value
from pathx.engine.rules.geometry import keeps_place
from pathx.engine.rules.shared import align, totals, unbroadcast
from pathx.engine.rules.table import Call, Cotangents, Slopes, constant, gate, has, linear, record, smooth
from pathx.engine.window import Window

# --- activations ----------------------------------------------------------------------------------------------------


@gate("relu", saves="output")
def relu(call: Call, output: Tensor) -> Slopes:
    """Frozen from its output, so that the forward pass may overwrite its input."""
    return Slopes(gain=output)


@gate("hardtanh", "relu6", "clamp", "clamp_min", "clamp_max", "maximum", "minimum")
def clip(call: Call, h: Tensor) -> Slopes:
    """Slope 1 between two bounds and 0 outside."""
    kind = call.node.kind
    given = [0.0, 6.0] if kind == "relu6" else [item for item in call.args if not call.varies(item)]
    given = [None, *given] if kind in ("clamp_max", "minimum") else [*given, None]
    default = (-1.0, 1.0) if kind == "hardtanh" else (-math.inf, math.inf)
    bounds = (usual if bound is None else bound for usual, bound in zip(default, [*given, None], strict=False))
    low, high = (call.saved[bound] if isinstance(bound, Value) else bound for bound in bounds)
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        low, high = (torch.as_tensor(bound, dtype=h.dtype, device=h.device) for bound in (low, high))
        active = (h > low) & (h < high)
        gain, slope = _where(active, h), active.to(h.dtype)
    else:  # one kernel each, many times as quick as comparisons
        inside = torch.ops.aten.hardtanh_backward.default
        gain, slope = (inside(values, h, low, high) for values in (h, torch.ones_like(h)))
    finite = not isinstance(low, Tensor) and math.isfinite(low) and math.isfinite(high)
    clipped = torch.clamp(h, low, high)  # type: ignore[arg-type]  # both are numbers, or both tensors
    return Slopes(gain, slope, offset=clipped - gain, finite=finite)


def _where(active: Tensor, h: Tensor) -> Tensor:
    """h where the unit is active, 0 elsewhere. Not a product: 0 times an infinity that a model padded with is NaN."""
    return h.masked_fill(~active, 0.0)


@gate("leaky_relu", "abs", "hardshrink")
@gate("_prelu_kernel", traits={"same for all"})
def through_zero(call: Call, h: Tensor) -> Slopes:
    """Slopes that differ from place to place; the output is slope * h."""
    slope, _ = _slope_and_value(call, h)
    return Slopes(slope * h, slope)


def _tangent(call: Call, h: Tensor) -> Slopes:
    """Slope and offset as they are at h, whatever they are elsewhere."""
    slope, value = _slope_and_value(call, h)
    gain = _where(slope != 0, slope * h)
    return Slopes(gain, slope, offset=value - gain)


def _slope_and_value(call: Call, h: Tensor) -> tuple[Tensor, Tensor]:
    value, pull = torch.func.vjp(lambda x: _apply(call, x), h)  # type: ignore[misc]
    return pull(torch.ones_like(h))[0], value


def _apply(call: Call, h: Tensor) -> Tensor:
    rest = [call.values(arg) if isinstance(arg, Value) else arg for arg in call.args[1:]]
    out = call.node.op(h, *rest, **call.kwargs)
    return cast(Tensor, out[0] if isinstance(out, tuple) else out)


gate("threshold", "softshrink")(_tangent)
gate("hardsigmoid", traits={"saturating"})(_tangent)

# --- smooth activations ---------------------------------------------------------------------------------------------

# No product with h: the constant part of the tangent goes to the bias.
smooth("elu", "celu", "softplus")(_tangent)
smooth("tanh", traits={"saturating"})(_tangent)
smooth("sigmoid", "log_sigmoid_forward", traits={"saturating", "final"})(_tangent)


_FACTORS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": torch.sigmoid,
    "gelu": torch.special.ndtr,
    "gelu, tanh": lambda h: torch.sigmoid(math.sqrt(8 / math.pi) * (h + 0.044715 * h**3)),
    "hardswish": F.hardsigmoid,
    "mish": lambda h: F.softplus(h).tanh_(),
}


@smooth("silu", "gelu", "hardswish", "mish")
@smooth("pow", "square", "sqrt", traits={"saturating"})
def product(call: Call, h: Tensor) -> Slopes:
    """h · g(h), where g(h) is held as it is at the image; also h² = h · h, as in StarReLU, and other powers."""
    if has(call.node, "saturating"):
        g = (_apply(call, h) / h).masked_fill_(h == 0, 0.0)
    else:
        g = _FACTORS["gelu, tanh" if call.kwargs.get("approximate") == "tanh" else call.node.kind](h)
    return Slopes(g * h, g)


# --- masks and choices ----------------------------------------------------------------------------------------------


def _choices(call: Call) -> list[tuple[Any, Tensor]]:
    """Each value that a call chooses from, and where it is taken."""
    if call.node.kind == "masked_fill":
        mask = call.values(call.args[1])
        return [(call.args[0], ~mask), (call.args[2], mask)]
    if call.node.kind == "where":
        condition = call.values(call.args[0])
        return [(call.args[1], condition), (call.args[2], ~condition)]
    first, second = (call.inputs[item] for item in call.args)
    taken = first >= second if call.node.kind == "maximum" else first <= second
    return [(call.args[0], taken), (call.args[1], ~taken)]


@gate("where", "masked_fill")
def mask_of_itself(call: Call, h: Tensor) -> Slopes:
    """`where(h > 0, h, constant)`."""
    (taken,) = (torch.broadcast_to(taken, h.shape) for item, taken in _choices(call) if call.varies(item))
    (other,) = (call.values(item) for item, _ in _choices(call) if not call.varies(item))
    offset = other.to(h).expand_as(h).masked_fill(taken, 0.0)
    return Slopes(_where(taken, h), taken.to(h.dtype), offset)


@gate("mul", "div", traits={"scale"})
def product_with_itself(call: Call, h: Tensor) -> Slopes:
    """`h * (h > 0)`: the other factor is the slope; of `h * h`, h itself. `h / (1 + exp(-h))` is such a product, too."""
    fixed = [call.values(item) for item in call.args if not call.varies(item)]
    slope = torch.broadcast_to(fixed[0], h.shape).to(h.dtype) if fixed else h
    slope = slope.reciprocal() if call.node.kind == "div" else slope
    return Slopes(slope * h, slope)


@linear("where", linear_in=(1, 2), jointly_linear=True, field=keeps_place)
@linear("masked_fill", field=keeps_place)
@linear("maximum", "minimum", linear_in=(0, 1), jointly_linear=True, saves="inputs", field=keeps_place)
def choose(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Every element goes back to the value that it was taken from. (With one value fixed, a maximum is a gate.)"""
    return [
        (item, unbroadcast(cotangent.scale(align(taken, cotangent)), call.shapes[item]))
        for item, taken in _choices(call)
        if call.varies(item)
    ]


@constant("where", "masked_fill")
def choose_constant(call: Call, cotangent: Window) -> Tensor | None:
    fixed = [(taken, call.values(item)) for item, taken in _choices(call) if not call.varies(item)]
    return totals([(cotangent.scale(align(taken, cotangent)), values) for taken, values in fixed])


# --- what is frozen, and what is refused ----------------------------------------------------------------------------

record(
    *("gt", "ge", "lt", "le", "eq", "ne", "isnan", "isinf", "isfinite", "any", "all", "argmax", "argmin", "argsort"),
    *("logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not", "bitwise_and", "bitwise_or"),
    *("sign", "sgn", "heaviside", "floor", "ceil", "round", "trunc"),
    reading="locally constant",
)

record(
    *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"),
    *("new_empty_strided", "fill", "zero"),
    reading="shape",
)

record("_softmax", "softmax", "_log_softmax", "log_softmax", reading="nonlinear", traits={"final"})
record("log", "exp", reading="nonlinear", traits={"after final"})
record("_local_scalar_dense", traits={"decision"})
record(
    *("logit", "rsqrt", "reciprocal", "expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "erf", "atan"),
    *("selu", "glu", "linalg_vector_norm", "renorm", "var", "std", "var_mean", "std_mean", "prod", "cumprod"),
    *("rms_norm", "logsumexp", "logcumsumexp", "atan2", "cdist", "_cdist_forward", "_trilinear", "lstm"),
    *("mkldnn_rnn_layer", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math", "_native_multi_head_attention"),
    reading="nonlinear",
)
