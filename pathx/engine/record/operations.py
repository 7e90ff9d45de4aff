"""What a model did, as a list of operations on numbered values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a recording, by its number. Recordings share these objects: there is one for each number."""

    index: int


_VALUES: dict[int, Value] = {}


def value_at(index: int) -> Value:
    """The value with this number."""
    return _VALUES.get(index) or _VALUES.setdefault(index, Value(index))


def map_leaves(item: Any, fill: Callable[[Any], Any]) -> Any:
    """An argument with `fill` applied to everything in it that is not a list or tuple."""
    if isinstance(item, (list, tuple)):
        return [map_leaves(part, fill) for part in item]
    return fill(item)


def run_node(node: Node, values: Mapping[Value, Any]) -> Any:
    """What an operation makes of the tensors of its values."""

    def actual(leaf: Any) -> Any:
        return values[leaf] if isinstance(leaf, Value) else leaf

    return node.op(
        *map_leaves(node.args, actual), **{name: map_leaves(arg, actual) for name, arg in node.kwargs.items()}
    )


def by_value(node: Node, out: Any) -> dict[Value, Any]:
    """What an operation made, by its values."""
    several = out if isinstance(out, (tuple, list)) else (out,)
    return {value: one for value, one in zip(node.outputs, several, strict=True) if value is not None}


def run_by_value(node: Node, values: Mapping[Value, Any]) -> dict[Value, Any]:
    """What an operation makes of the tensors of its values, by its own values."""
    return by_value(node, run_node(node, values))


def values_in(item: Any) -> list[Value]:
    """The values in an argument, in order."""
    if type(item) is Value:
        return [item]
    values: list[Value] = []
    for part in item if isinstance(item, (list, tuple)) else ():
        if type(part) is Value:
            values.append(part)
        elif isinstance(part, (list, tuple)):
            values += values_in(part)
    return values


class Scope(NamedTuple):
    """Where a call was made.

    Args:
        path: of the module, "" for the model itself.
        leaf: the module is one of torch.nn's own, so that its path names the call.
    """

    path: str = ""
    leaf: bool = False


@dataclass(eq=False)
class Node:
    """One call of an aten operation. Never changed; not frozen, because hundreds are made in every call of `pathx.explain`.

    Args:
        args, kwargs: as the operation takes them, with a `Value` for every tensor.
        outputs: the values it makes; None where an output is not a tensor.
        scope: the module the call was made in.
        inputs: the values among the arguments, in order.
        kind: the name under which the tables hold the operation: `convolution`, whatever its overload. They hold torch's own.
            What others call by the same name may do anything: `quantized.linear`.
    """

    index: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    scope: Scope
    inputs: list[Value] = field(init=False)
    kind: str = field(init=False)

    def __post_init__(self) -> None:
        self.kind = _kind(self.op)
        self.inputs = values_in(self.args)
        if self.kwargs:
            self.inputs += values_in([*self.kwargs.values()])

    @property
    def op_name(self) -> str:
        """The operation without its namespace and overload: `relu`, `convolution`."""
        return str(self.op.__name__).split(".")[0].strip("_")

    @property
    def place(self) -> str:
        """Operation and module path for messages: `sigmoid in features.1.block.1`."""
        return f"{self.op_name if self.op.namespace == 'aten' else self.kind} in {self.module}"

    @property
    def module(self) -> str:
        """The module path for messages."""
        return self.scope.path or "the model itself"

    @property
    def name(self) -> str:
        """The call as torchvision names feature nodes: `features.28` for a module, `layer1.0.relu` for a function."""
        alone = self.scope.leaf and self.scope.path  # a ReLU that is the whole model has no path
        return self.scope.path if alone else f"{self.scope.path}.{self.op_name}".strip(".")


@cache
def _kind(op: Any) -> str:
    name = str(op.overloadpacket.__name__)
    return name if op.namespace == "aten" else f"{op.namespace}.{name}"


@dataclass(frozen=True, eq=False)
class Graph:
    """What a model did with a batch of images. It holds no tensors.

    Args:
        shapes, dtypes: of every value, the batch dimension included.
        constants: the values that do not depend on the image, each with the dotted names of the model's tensors that it was
            computed from; None for what came from outside of torch.
        outputs: what the model returned, with a `Value` for every tensor.
    """

    nodes: tuple[Node, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    input: Value
    constants: dict[Value, frozenset[str] | None]
    outputs: Any
