"""What pathx knows about operations: three tables, filled by decorators.

- `TRANSPOSES`: linear operations, each with the rule that takes cotangents from its output to its inputs.
- `GATES`: piecewise-linear units (the ReLU family), each with its slope at the frozen input.
- `CONSTANTS`: the constant part of an operation that is linear plus a constant.

Operations in `PLAIN_LINEAR` have no rule of their own: autograd's VJP of that one operation on the full map serves.
Whatever is in none of them is not linear for a given input and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pathx.trace import Node, Value
from pathx.window import Window


@dataclass(frozen=True, eq=False)
class Call:
    """A node of the frozen network, with the tensors its rules need.

    Args:
        node: the recorded call.
        args, kwargs: its arguments: `Value` where the input varies with the picture, tensors elsewhere.
        shapes: shape of each of its values, without the batch.
        saved: frozen tensors (B, …) that its rule asked for.
        compact: rows may be dropped when they are known to be empty. Off on a GPU, where shapes must not depend on data.
        memory: what a rule worked out and will want again.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: dict[Value, tuple[int, ...]]
    saved: dict[Value, Tensor]
    compact: bool
    memory: dict[str, Any] = field(default_factory=dict)

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def values(self, item: Any) -> Tensor:
        """A tensor or number that does not vary with the input, or is frozen, as (B or 1, *sizes)."""
        if isinstance(item, Value):
            return self.saved[item]
        if not isinstance(item, Tensor):
            return torch.tensor([item], dtype=torch.float64)
        return item


Cotangents = list[tuple[Value, Window]]
Transpose = Callable[[Call, int, Window], Cotangents]
Constant = Callable[[Call, Window], Tensor | None]


@dataclass(frozen=True)
class Slopes:
    """A gate frozen at h: output = slope * h + offset, elementwise on (B, …).

    Args:
        gain: slope * h, what an active unit passes on; 0 where the unit is not active.
        given: the slope, where it is not simply 1 for units that pass on something positive and 0 for the others.
        offset: None where the output is slope * h.
    """

    gain: Tensor
    given: Tensor | None = None
    offset: Tensor | None = None

    def passed(self, window: Window) -> Window:
        """Cotangents of h from cotangents of the output."""
        if self.given is not None:
            return window.scale(self.given)
        gain = window.read(self.gain)
        if gain.shape == window.data.shape:  # in one sweep
            return replace(window, data=torch.ops.aten.threshold_backward(window.data, gain, 0))
        return replace(window, data=window.data * (gain > 0))


Gate = Callable[[Call, Tensor], Slopes]


@dataclass(frozen=True)
class Linear:
    """A linear operation: its rule, which arguments may vary with the input, and which frozen outputs the rule needs.

    Args:
        varies: positions of the arguments that it is linear in; with `together` in all of them jointly, otherwise in
            any one while the others are fixed.
        saves: positions of outputs to keep from the forward pass.
    """

    transpose: Transpose
    varies: tuple[int, ...] = (0,)
    together: bool = False
    saves: tuple[int, ...] = ()


TRANSPOSES: dict[str, Linear] = {}
GATES: dict[str, Gate] = {}
CONSTANTS: dict[str, Constant] = {}

# Linear in their first argument, with no rule of their own.
PLAIN_LINEAR = frozenset(
    [
        "adaptive_avg_pool1d",
        "_adaptive_avg_pool3d",
        "avg_pool1d",
        "avg_pool3d",
        "upsample_nearest1d",
        "upsample_nearest2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "upsample_bicubic2d",
        "upsample_trilinear3d",
        "_upsample_bilinear2d_aa",
        "_upsample_bicubic2d_aa",
        "reflection_pad1d",
        "reflection_pad2d",
        "reflection_pad3d",
        "replication_pad1d",
        "replication_pad2d",
        "replication_pad3d",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "native_channel_shuffle",
        "roll",
        "flip",
        "cumsum",
        "index_select",
        "index",
        "gather",
        "repeat",
        "unfold",
        "im2col",
        "col2im",
        "diagonal",
        "tril",
        "triu",
        "rot90",
    ]
)

# Not linear, but constant around any input: what they say of the input, or make in its shape, is frozen with the gates.
COMPARISONS = frozenset(
    [
        "gt",
        "ge",
        "lt",
        "le",
        "eq",
        "ne",
        "argmax",
        "argmin",
        "sign",
        "isnan",
        "isinf",
        "isfinite",
        "logical_not",
        "logical_and",
        "logical_or",
        "bitwise_not",
        "any",
        "all",
        "heaviside",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "new_empty_strided",
        "fill",
        "zero",
    ]
)

# Stripped where they are the last operation of the model: the logits are what is explained.
FINAL = frozenset(["_softmax", "softmax", "_log_softmax", "log_softmax", "sigmoid", "log_sigmoid_forward"])


def transpose(
    *names: str, varies: tuple[int, ...] = (0,), together: bool = False, saves: tuple[int, ...] = ()
) -> Callable[[Transpose], Transpose]:
    """Register the transpose rule of the named operations."""

    def register(rule: Transpose) -> Transpose:
        TRANSPOSES.update({name: Linear(rule, varies, together, saves) for name in names})
        return rule

    return register


def gate(*names: str) -> Callable[[Gate], Gate]:
    """Register the slopes of the named piecewise-linear units."""

    def register(rule: Gate) -> Gate:
        GATES.update(dict.fromkeys(names, rule))
        return rule

    return register


def constant(*names: str) -> Callable[[Constant], Constant]:
    """Register how cotangents meet the constant part of the named operations: (P,) sums in double precision, if any."""

    def register(rule: Constant) -> Constant:
        CONSTANTS.update(dict.fromkeys(names, rule))
        return rule

    return register


def precise(tensor: Tensor) -> torch.dtype:
    """The type in which long sums are taken: double precision wherever the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
