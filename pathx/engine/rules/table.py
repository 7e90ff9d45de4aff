"""The records: what pathx knows about each operation, filled in by decorators, a file per family.

A linear operation has a transpose, which takes cotangents from its output to its inputs; where none is written, autograd's
VJP of that one operation serves. A gate has a slope at its frozen input. What has no record is refused.
"""

from __future__ import annotations

from collections.abc import Callable
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
        compact: rows that are known to be empty may be dropped. Off on a GPU, where shapes must not depend on data.
        inputs: its varying inputs as they were in the forward pass, (B, …), where its record saves them.
        memory: what a rule computed and will need again.
        live: of a product with a fixed matrix, the columns (first, last) of its result that anything linear reads, where these
            are not all: of queries, keys and values in one, the values.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: dict[Value, tuple[int, ...]]
    saved: dict[Value, Tensor]
    batch: int
    compact: bool
    inputs: dict[Value, Tensor] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    live: tuple[int, int] | None = None

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

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

    def passed(self, window: Window) -> Window:
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
        field: what its elements see; None for everything.
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
    field: FieldRule | None = None


OPERATIONS: dict[str, Operation] = {}
FORMS: dict[Any, Callable[..., Any]] = {}
"""Other ways to compute operations on a CPU; None from one where the usual way is better."""

UNKNOWN = Operation()


def known(node: Node) -> Operation:
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


def forward(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a quicker way to compute the named operations on a CPU; None from it where torch's own is better."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        FORMS.update({getattr(torch.ops.aten, name).default: rule for name in names})
        return rule

    return register


def is_clip(node: Node) -> bool:
    """Whether an activation is clipped on both sides."""
    clamped = node.kind == "clamp" and len([bound for bound in node.args[1:3] if bound is not None]) == 2
    return clamped or node.kind in ("hardtanh", "relu6")


def precise(tensor: Tensor) -> torch.dtype:
    """The type in which long sums are taken: double precision wherever the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


# --- roles: what the analysis of a network asks about few operations -------------------------------------------------

COPIES = frozenset(["clone", "alias", "detach", "_to_copy", "contiguous", "lift_fresh_copy", "positive", "dropout"])
"""Their output is their input."""

VIEWS = frozenset(["view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"])
PERMUTATIONS = frozenset(["permute", "transpose", "t"])
ELEMENTWISE = frozenset(["add", "sub", "mul", "div"])
MAP_POOLS = frozenset(["avg_pool2d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d", "max_pool2d_with_indices"])
REDUCTIONS = frozenset(["mean", "sum", "max"])

KEEP_ELEMENTS = (COPIES | VIEWS | REDUCTIONS) | {"permute", "transpose", "slice", "select"}
"""Every element of their input reaches at most one element of their output."""

FINAL = frozenset(["_softmax", "softmax", "_log_softmax", "log_softmax", "sigmoid", "log_sigmoid_forward"])
"""Stripped where they end a model: the logits are what is explained."""

AFTER_FINAL = COPIES | VIEWS | {"log", "exp"}
"""What may follow a final softmax."""

MATRIX_PRODUCTS = frozenset(["addmm", "mm"])
CONVOLUTIONS = frozenset(["convolution"])
"""With these two a classifier may end."""

KEEP_FEATURES = (COPIES | VIEWS | MAP_POOLS | REDUCTIONS) | {
    *("permute", "transpose", "t", "cat", "select", "adaptive_max_pool2d", "fractional_max_pool2d", "min", "median"),
    *("adaptive_max_pool3d", "fractional_max_pool3d", "avg_pool1d", "avg_pool3d", "adaptive_avg_pool1d"),
    *(
        "_adaptive_avg_pool3d",
        "max_pool3d_with_indices",
        "nanmedian",
        "mode",
        "cummax",
        "cummin",
        "sort",
        "topk",
        "kthvalue",
    ),
}
"""Features are the same features after these, pooled or in another shape: a network that ends so is a backbone."""

SELF_MASKS = frozenset(["where", "masked_fill", "mul"])
"""Gates only where the mask was made from the very value that it masks."""

BOUNDS = frozenset(["maximum", "minimum", "fmax", "fmin"])
"""Gates of either argument, bounded by the other."""

MOVES = VIEWS | {
    *("permute", "transpose", "t", "expand", "slice", "select", "cat", "stack", "constant_pad_nd", "roll", "flip"),
    *("index_select", "repeat", "pixel_shuffle", "pixel_unshuffle"),
}
"""They give elements other places, and change none."""

REPEATS = frozenset(["expand"])

SCALES = frozenset(["mul", "div"])

NORMS = frozenset(["native_layer_norm", "native_group_norm", "_fused_rms_norm", "rms_norm"])
"""Linear once the scale that they divide by is held at the image."""

LAST_DIMENSIONS = frozenset(["native_layer_norm", "_fused_rms_norm"])
"""Norms over the last dimensions, wherever the batch is."""

GATED = frozenset(["silu", "gelu", "hardswish", "mish", "pow", "square"])
"""Activations h · g(h): g(h) is held at the image."""

SATURATING = frozenset(["sigmoid", "tanh", "hardsigmoid", "log_sigmoid_forward", "pow", "square"])
"""Functions that are factors wherever they multiply something; elsewhere they are activations."""

SMOOTH = GATED | {*("sigmoid", "tanh", "log_sigmoid_forward", "elu", "softplus")}
"""Activations whose slope changes with the image, however little that changes."""

POINTWISE = frozenset(
    [
        *(COPIES | ELEMENTWISE | SMOOTH | SATURATING),
        *(
            "rsub",
            "neg",
            "relu",
            "relu6",
            "hardtanh",
            "clamp",
            "clamp_min",
            "clamp_max",
            "leaky_relu",
            "abs",
            "threshold",
        ),
        *("exp", "expm1", "log", "log1p", "pow", "sqrt", "rsqrt", "reciprocal", "erf", "square", "sin", "cos", "atan"),
        *("gt", "ge", "lt", "le", "eq", "ne", "sign", "sgn", "heaviside", "logical_not", "bitwise_not"),
    ]
)
"""Every element of the result is computed from the elements at its own place."""

MATRICES = frozenset(["matmul", "bmm"])

LAST_PRODUCTS = {"matmul": False, "linear": True}
"""Products of tensors (…, in) with a matrix, by whether that is written (out, in)."""

SUMS = COPIES | {"add"}
PARTS = VIEWS | PERMUTATIONS | {"unbind", "split", "split_with_sizes", "chunk", "select", "slice"}
"""Every element of their result is one of their input's."""

SPLITS = frozenset(["unbind", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk"])
"""All their outputs are parts of their input. Of others, what follows the first output (indices, statistics) is frozen."""

APPLIED = (COPIES | ELEMENTWISE | SPLITS | MATRICES | MATRIX_PRODUCTS | CONVOLUTIONS) | {
    *("permute", "transpose", "t", "slice", "select", "cat", "linear", "mean", "sum", "neg", "rsub", "roll", "flip"),
    *("constant_pad_nd", "avg_pool2d", "_adaptive_avg_pool2d"),
}
"""Linear as they are, for any number of rows: what they make of tangents is what they are."""

SHARED_WEIGHTS = {"mm": (0, 1), "addmm": (1, 2), "linear": (1, 2), "convolution": (1, 2)}
"""Positions of tensors that are the same for every image, however long their first dimension is."""

SAME_FOR_ALL_IMAGES = frozenset(["convolution", "native_batch_norm", "_prelu_kernel", "prelu", "mv", "addmv"]).union(
    ["index", "index_select", "index_put", "index_add", "index_copy", "index_fill"]
)
"""Their other tensors must be fixed, not frozen at each image."""

DECISIONS = frozenset(["_local_scalar_dense"])
"""They hand a number to the model's own code (`.item()`, `if`), which may decide by it."""

BATCH_REMEDIES = {
    "cat": "run the network once for each and average what comes out",
    "stack": "stack along dim 1 and go on there",
}
"""What to do where they mix the images of a batch."""
