"""What a model did, as a list of operations on numbered values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

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


def values_in(item: Any) -> list[Value]:
    """The values in an argument, in order."""
    if isinstance(item, (list, tuple)):
        return [value for part in item for value in values_in(part)]
    return [item] if isinstance(item, Value) else []


@dataclass(frozen=True)
class Scope:
    """Where a call was made.

    Args:
        path: of the module, "" for the model itself.
        leaf: the module is one of torch.nn's own, so that its path names the call.
    """

    path: str = ""
    leaf: bool = False


@dataclass(frozen=True, eq=False)
class Node:
    """One call of an aten operation.

    Args:
        args, kwargs: as the operation takes them, with a `Value` for every tensor.
        outputs: the values it makes; None where an output is not a tensor.
        scope: the module the call was made in.
    """

    index: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    scope: Scope

    @cached_property
    def inputs(self) -> list[Value]:
        """The values among the arguments, in order."""
        found: list[Value] = []
        for arg in (*self.args, *self.kwargs.values()):
            if type(arg) is Value:
                found.append(arg)
            elif isinstance(arg, (list, tuple)):
                found.extend(values_in(arg))
        return found

    @cached_property
    def kind(self) -> str:
        """The name under which the tables hold the operation: `convolution`, whatever its overload.

        They hold torch's own. What others call by the same name may do anything: `quantized.linear`.
        """
        return _kind(self.op)

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
