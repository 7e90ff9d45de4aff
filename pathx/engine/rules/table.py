"""The records: what pathx knows about each operation, filled in by decorators, a file per family.

A linear operation has a transpose, which takes cotangents from its output to its inputs; where none is written, autograd's
VJP of that one operation serves. A gate has a slope at its frozen input. What has no record is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.geometry import BatchRule, FieldRule, elementwise, keeps_place
from pathx.engine.window import Window


@dataclass(frozen=True, eq=False)
class Call:
    """A node of the frozen network, with the tensors that its rule needs.

    Args:
        args, kwargs: its arguments: `Value` where they depend on the image, tensors and numbers elsewhere.
        shapes: of its values, without the batch.
        saved: its values that are frozen at the images, (B, …): factors, masks, indices.
        batch: how many images there are.
        inputs: its varying inputs as they were in the forward pass, (B, …), where its record saves them.
        whole: the tensors are of one image, wherever the batch is in them, and rows have no place in the arguments.
        memo: what its rule computes once, though it is asked several times.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: dict[Value, tuple[int, ...]]
    saved: dict[Value, Tensor]
    batch: int
    inputs: dict[Value, Tensor] = field(default_factory=dict)
    whole: bool = False
    memo: dict[str, Tensor] = field(default_factory=dict)

    def arg(self, position: int, default: Any = None) -> Any:
        """An argument by position. (torch leaves out defaults at the end.)"""
        return self.args[position] if position < len(self.args) else default

    def varies(self, item: Any) -> bool:
        """Whether an argument varies with the image."""
        return isinstance(item, Value) and item not in self.saved

    def values(self, item: Any) -> Tensor:
        """An argument that does not vary: frozen (B, …), a fixed tensor, or a number as a tensor."""
        if isinstance(item, Value):
            return self.saved[item]
        return item if isinstance(item, Tensor) else torch.tensor([item], dtype=torch.float64)


@dataclass(frozen=True)
class Slopes:
    """A gate frozen at h: output = slope * h + offset, elementwise on (B, …). The slope is any real number.

    Args:
        gain: slope * h; 0 where the unit is not active.
        given: the slope; None stands for 1 where the gain is positive and 0 elsewhere.
        offset: None where the output is slope * h.
        finite: the offset is finite everywhere.
    """

    gain: Tensor
    given: Tensor | None = None
    offset: Tensor | None = None
    finite: bool = False

    def pull_back(self, window: Window) -> Window:
        """Cotangents of h from cotangents of the output."""
        if self.given is not None:
            return window.scale(self.given)
        gain = window.read(self.gain)
        if gain.shape == window.data.shape:  # one kernel
            return window.with_data(torch.ops.aten.threshold_backward.default(window.data, gain, 0))
        return window.with_data(window.data * (gain > 0))


Cotangents = list[tuple[Value, Window]]
Transpose = Callable[[Call, int, Window], Cotangents]
Constant = Callable[[Call, Window], Tensor | None]
Gate = Callable[[Call, Tensor], Slopes]
Refusal = Callable[[Node, list[int]], str | None]


@dataclass(frozen=True)
class Operation:
    """The record of one operation.

    Args:
        transpose: from cotangents of one output to cotangents of the varying inputs; None where it is not linear.
        constant: (P,) what its constant part adds under cotangents, in double precision; None where it has none.
        linear_in: positions of the arguments that it is linear in: in any one of them while the others are fixed.
        jointly_linear: it is linear in all of them at once, as a sum is.
        factors: positions of two arguments that it multiplies; where both vary, one is held at the image.
        gate: its slopes at the frozen input (or output, where it saves that), if it is an activation.
        saves: what is kept of the forward pass for its rule: its varying inputs, its output, or what it returns beside that, the
            indices of what it picked or the statistics that it normalised by. A gate that saves nothing else saves its input.
        reading: where it is not linear, how it depends on its varying input: locally constant, on its shape alone, or
            nonlinear.
        refuses: why it is refused with these arguments varying; None where it is not.
        keeps_batch: whether a call leaves the images of a batch apart, in the first dimension.
        dims: the position of the argument that names dimensions, if there is one.
        field: what its elements see; None for everything.
        traits: what the analysis of a network asks about it.
    """

    transpose: Transpose | None = None
    constant: Constant | None = None
    linear_in: tuple[int, ...] = (0,)
    jointly_linear: bool = False
    factors: tuple[int, int] | None = None
    gate: Gate | None = None
    saves: Literal["inputs", "output", "indices", "statistics"] | None = None
    reading: Literal["locally constant", "shape", "nonlinear"] | None = None
    refuses: Refusal | None = None
    keeps_batch: BatchRule = elementwise
    dims: int | None = None
    field: FieldRule | None = None
    traits: Set[Trait] = frozenset()


OPERATIONS: dict[str, Operation] = {}

UNKNOWN = Operation()


def record_of(node: Node) -> Operation:
    """The record of a node's operation; an empty one where there is none."""
    return OPERATIONS.get(node.kind, UNKNOWN)


def record(*names: str, **fields: Any) -> None:
    """Write into the records of the named operations."""
    OPERATIONS.update({name: replace(OPERATIONS.get(name, UNKNOWN), **fields) for name in names})


def _register(part: str, names: tuple[str, ...], fields: dict[str, Any]) -> Callable[[Any], Any]:
    def register(rule: Any) -> Any:
        record(*names, **{part: rule, **fields})
        return rule

    return register


def linear(*names: str, **fields: Any) -> Callable[[Transpose], Transpose]:
    """Register the transpose of the named operations."""
    return _register("transpose", names, fields)


def constant(*names: str) -> Callable[[Constant], Constant]:
    """Register the constant part of the named operations."""
    return _register("constant", names, {})


def gate(*names: str, **fields: Any) -> Callable[[Gate], Gate]:
    """Register the slopes of the named activations."""
    return _register("gate", names, {"field": keeps_place, **fields})


def smooth(*names: str, **fields: Any) -> Callable[[Gate], Gate]:
    """Register activations whose slope changes with the image, however little that changes."""
    return gate(*names, reading="nonlinear", **fields)


def precise(tensor: Tensor) -> torch.dtype:
    """The type in which long sums are taken: double precision wherever the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


# --- traits: what the analysis of a network asks about an operation --------------------------------------------------

Trait = Literal[
    "copy",  # its output is its input
    "view",  # its output is its input in another shape
    "part",  # every element of its output is one of its input's; it works on any kind of numbers
    "split",  # all its outputs are parts of its input. Of others, what follows the first output is frozen
    "move",  # it gives elements other places, or repeats them, and changes none
    "repeat",  # its output is its input, repeated
    "pool",  # means or maxima of places
    "reduction",  # it puts elements along some dimensions together, or picks some of them
    "sum",
    "scale",  # a product or a quotient, element by element
    "pointwise",  # every element is computed from those at its place; asked of what torch does not tag so
    "matrix",  # a product of two tensors of matrices
    "head",  # with such a product a classifier may end
    "convolution",
    "last dimensions",  # a norm over the last dimensions, wherever the batch is
    "saturating",  # a factor wherever it multiplies something; elsewhere an activation
    "final",  # stripped where it ends a model: the logits are what is explained
    "after final",  # may follow a final softmax
    "same for all",  # its other tensors must be the same for every image
    "decision",  # it hands a number to the model's own code (`.item()`, `if`), which may decide by it
]


def has(node: Node, *traits: Trait) -> bool:
    """Whether a node's operation has any of some traits."""
    return not record_of(node).traits.isdisjoint(traits)


def is_pointwise(node: Node) -> bool:
    """Whether every element of the result is computed from the elements at its own place."""
    tagged = torch.Tag.pointwise in node.op.tags or record_of(node).gate is not None
    return tagged or has(node, "copy", "pointwise")


def is_smooth(node: Node) -> bool:
    """Whether an activation's slope changes with the image, however little that changes."""
    return record_of(node).gate is not None and record_of(node).reading == "nonlinear"


def is_norm(node: Node) -> bool:
    """Whether an operation is linear once the scale that it divides by is held at the image."""
    return record_of(node).saves == "statistics"


def is_choice(node: Node) -> bool:
    """Whether an operation is a gate where a value masks or bounds itself, and linear elsewhere."""
    return record_of(node).gate is not None and record_of(node).transpose is not None


def is_bound(node: Node) -> bool:
    """Whether a choice is the larger or the smaller of two values: a gate of either, bounded by the other."""
    return is_choice(node) and record_of(node).saves == "inputs"


def is_clip(node: Node) -> bool:
    """Whether an activation is clipped on both sides."""
    clamped = node.kind == "clamp" and len([bound for bound in node.args[1:3] if bound is not None]) == 2
    return clamped or node.kind in ("hardtanh", "relu6")


BATCH_REMEDIES = {
    "cat": "run the network once for each and average what comes out",
    "stack": "stack along dim 1 and go on there",
}
"""What to do where they mix the images of a batch."""
