"""What pathx knows about operations: one record each, filled in by decorators, one file per family.

A linear operation has a transpose rule, which takes cotangents from its output to its inputs; autograd's VJP of that one
operation serves where it has none. A member of the ReLU family has its slope at the frozen input. Whatever has no record
is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.geometry import Apart, FieldRule, elementwise, keeps_place
from pathx.engine.window import Window


@dataclass(frozen=True, eq=False)
class Call:
    """A node of the frozen network, with the tensors its rules need.

    Args:
        node: the recorded call.
        args, kwargs: its arguments: `Value` where the input varies with the image, tensors elsewhere.
        shapes: shape of each of its values, without the batch.
        saved: frozen tensors (B, …) that its rule asked for.
        batch: how many images there are.
        compact: rows may be dropped when they are known to be empty. Off on a GPU, where shapes must not depend on data.
        inputs: what varying arguments were in the forward pass, (B, …), for operations that ask for it.
        complex: which of its values are complex numbers.
        memory: what a rule worked out and will want again.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: dict[Value, tuple[int, ...]]
    saved: dict[Value, Tensor]
    batch: int
    compact: bool
    inputs: dict[Value, Tensor] = field(default_factory=dict)
    complex: frozenset[Value] = frozenset()
    memory: dict[str, Any] = field(default_factory=dict)

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def varies(self, item: Any) -> bool:
        """Whether an argument varies with the image."""
        return isinstance(item, Value) and item not in self.saved

    def values(self, item: Any) -> Tensor:
        """A tensor or number that does not vary with the input, or is frozen, as (B or 1, *sizes)."""
        if isinstance(item, Value):
            return self.saved[item]
        if isinstance(item, Tensor):
            return item
        dtype = torch.complex128 if isinstance(item, complex) else torch.float64
        return torch.full((1,), item, dtype=dtype)  # an operation, so that it can be recorded


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
        finite: nothing in the offset is infinite.
    """

    gain: Tensor
    given: Tensor | None = None
    offset: Tensor | None = None
    finite: bool = False

    def passed(self, window: Window) -> Window:
        """Cotangents of h from cotangents of the output."""
        if self.given is not None:
            return window.scale(self.given)
        gain = window.read(self.gain)
        if gain.shape == window.data.shape:  # in one sweep
            return window.holding(torch.ops.aten.threshold_backward.default(window.data, gain, 0))
        return window.holding(window.data * (gain > 0))


Gate = Callable[[Call, Tensor], Slopes]
Refusal = Callable[[Node, list[int]], str | None]


@dataclass(frozen=True)
class Operation:
    """All that pathx knows about one operation.

    Args:
        transpose: from cotangents of an output to cotangents of the inputs; None for what is not linear.
        varies: positions of the arguments that it is linear in; with `together` in all of them jointly, otherwise in
            any one while the others are fixed.
        constant: how cotangents meet its constant part: (P,) sums in double precision, if any.
        gate: its slopes at the frozen input, where it is a unit of the ReLU family.
        self_masking: it is such a unit only where its mask was made from the very value that it masks.
        gates_from_output: the slopes are read off its output rather than its input.
        saves: positions of outputs to keep from the forward pass: routes.
        reads: the varying inputs are kept too, where there are several.
        parts: all its outputs are parts of its input; otherwise what comes beside the first is frozen (indices).
        takes_frozen: its other tensors may be frozen at the image rather than fixed.
        frozen: not linear, but constant around any input.
        shaped: made in the shape of its first argument, with nothing of its values.
        final: stripped where it is the last operation of the model.
        after_final: may follow such an operation.
        same: hands its input on.
        pools: features are still the same features after it, pooled or in another shape.
        multiplies: a product with a matrix, as the last layer of a classifier is.
        convolves: slides a kernel over maps.
        decides: hands a value to the model's own code, which may decide by it.
        fresh: always makes a new tensor, which a ReLU may overwrite.
        refuses: why it is refused with these arguments varying; None where it is not.
        bends: known to be not linear for a given input.
        apart: whether it leaves the images of a batch apart.
        remedy: what to do where it does not.
        field: what its elements see; None for everything.
    """

    transpose: Transpose | None = None
    varies: tuple[int, ...] = (0,)
    together: bool = False
    constant: Constant | None = None
    gate: Gate | None = None
    self_masking: bool = False
    gates_from_output: bool = False
    saves: tuple[int, ...] = ()
    reads: bool = False
    parts: bool = False
    takes_frozen: bool = True
    frozen: bool = False
    shaped: bool = False
    final: bool = False
    after_final: bool = False
    same: bool = False
    pools: bool = False
    multiplies: bool = False
    convolves: bool = False
    decides: bool = False
    fresh: bool = False
    refuses: Refusal | None = None
    bends: bool = False
    apart: Apart = elementwise
    remedy: str = ""
    field: FieldRule | None = None


OPERATIONS: dict[str, Operation] = {}
FORMS: dict[Any, Callable[..., Any]] = {}
"""Other ways to compute operations on a CPU; None from one where the usual way is better."""

UNKNOWN = Operation()


def known(node: Node) -> Operation:
    """The record of a node's operation; an empty one where there is none."""
    return OPERATIONS.get(node.kind, UNKNOWN)


def record(*names: str, **what: Any) -> None:
    """Write into the records of the named operations."""
    OPERATIONS.update({name: replace(OPERATIONS.get(name, UNKNOWN), **what) for name in names})


def linear(*names: str, **what: Any) -> Callable[[Transpose], Transpose]:
    """Register the transpose rule of the named operations, with what else there is to know of them."""

    def register(rule: Transpose) -> Transpose:
        record(*names, transpose=rule, **what)
        return rule

    return register


def gate(*names: str, **what: Any) -> Callable[[Gate], Gate]:
    """Register the slopes of the named piecewise-linear units."""

    def register(rule: Gate) -> Gate:
        record(*names, **{"gate": rule, "field": keeps_place, **what})
        return rule

    return register


def constant(*names: str) -> Callable[[Constant], Constant]:
    """Register the constant part of the named operations."""

    def register(rule: Constant) -> Constant:
        record(*names, constant=rule)
        return rule

    return register


def forward(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register another way to compute the named operations on a CPU."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        FORMS.update({getattr(torch.ops.aten, name).default: rule for name in names})
        return rule

    return register


def precise(tensor: Tensor) -> torch.dtype:
    """The type in which long sums are taken: double precision wherever the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64
