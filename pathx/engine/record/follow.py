"""The forward pass of a model whose graph is known: the model itself runs, and is compared with the graph as it goes.

So the values are always the model's own, whatever has changed since it was recorded: weights, settings, hooks, globals
that its code reads. Where it does something else than what the graph says, the graph is no longer its graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from pathx.engine.record.listen import Departed, Listener, is_plain, run, written
from pathx.engine.record.rewrites import spelled
from pathx.engine.record.trace import (
    Graph,
    Node,
    Value,
    factor_of,
    filled,
    has_global_hooks,
    in_place,
    modules_of,
    out_of_place,
)


@dataclass(frozen=True, slots=True)
class _Constant:
    """An argument that is no tensor and holds none."""

    value: Any

    def is_like(self, given: Any) -> bool:
        mine = self.value
        if isinstance(mine, list):
            return isinstance(given, (list, tuple)) and list(given) == mine
        return type(given) is type(mine) and bool(given == mine or (given != given and mine != mine))


def _expected(arg: Any) -> Any:
    """An argument of the graph, made ready to be compared."""
    if isinstance(arg, Value):
        return arg
    if isinstance(arg, (list, tuple)):
        parts = [_expected(part) for part in arg]
        return (
            _Constant(list(arg))
            if all(type(p) is _Constant and not isinstance(p.value, list) for p in parts)
            else parts
        )
    return _Constant(arg)


@dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """One node to follow.

    Args:
        plain: the operation, where models call it under the name that the graph has for it; None for others.
        named: its place in the model must be the recorded one.
        dropped: the values that nothing reads after it.
    """

    node: Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plain: Any
    named: bool
    dropped: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Course:
    """A graph to follow, and what is wanted of it.

    Args:
        wanted: the values to keep.
        overwritable: ReLUs whose input nothing reads after them, by number.
        named: nodes whose place in the model must be the recorded one, by number.
        quicker: other ways to compute nodes, by number.
    """

    graph: Graph
    wanted: frozenset[Value]
    overwritable: frozenset[int]
    named: frozenset[int]
    quicker: dict[int, Callable[..., Any]]

    @cached_property
    def external(self) -> frozenset[Value]:
        """Values that the model brings along: parameters, buffers, other tensors."""
        return frozenset([*self.graph.parameters.values(), *self.graph.constants])

    @cached_property
    def makers(self) -> dict[Value, Node]:
        return {value: node for node in self.graph.nodes for value in node.outputs if value is not None}

    @cached_property
    def steps(self) -> list[_Step]:
        """What is to be checked at each node.

        Values that nothing reads at all are never dropped: the model may hand them to an operation that was recorded as
        another.
        """
        returned: set[Value] = set()
        _leaves(self.graph.outputs, lambda leaf: returned.add(leaf) if isinstance(leaf, Value) else None)
        last = {value: node.index for node in self.graph.nodes for value in node.inputs}
        dropped: dict[int, list[Value]] = {}
        for value, index in last.items():
            if value not in returned and value not in self.external and value is not self.graph.input:
                dropped.setdefault(index, []).append(value)
        return [
            _Step(
                node,
                tuple(_expected(arg) for arg in node.args),
                {name: _expected(arg) for name, arg in node.kwargs.items()},
                plain=node.op if is_plain(node.op) else None,
                named=node.index in self.named,
                dropped=tuple(dropped.get(node.index, ())),
            )
            for node in self.graph.nodes
        ]


@dataclass(frozen=True, eq=False)
class ModelRun:
    """What a run of a model left.

    Args:
        kept: the values that were wanted.
        external: the tensors that the model brought along, by value.
    """

    kept: dict[Value, Tensor]
    external: dict[Value, Tensor]


def follow(model: nn.Module, images: Tensor, course: Course, *, quick: bool) -> ModelRun:
    """Run a model, which is in eval mode, on images as its graph says; raises `Departed` where it does otherwise.

    Args:
        images: may be written into by the model.
        quick: compute nodes in the course's other ways.
    """
    follower = _Follower(model, images, course, quick)
    outputs = run(follower, functional=course.graph.functional)
    follower.check_outputs(outputs, course.graph.outputs)
    return ModelRun(follower.kept, follower.external)


class _Follower(Listener):
    """The mode that compares a model with its graph."""

    def __init__(self, model: nn.Module, images: Tensor, course: Course, quick: bool) -> None:
        super().__init__(model, images)
        self.course, self.graph, self.steps, self.device = course, course.graph, course.steps, images.device
        self.quicker = course.quicker if quick else {}
        self.position = 0
        self.values: dict[int, Value] = {id(images): self.graph.input}
        self.alive: dict[Value, Tensor] = {self.graph.input: images}  # an id stays unique only while its tensor lives
        self.kept: dict[Value, Tensor] = {}
        self.external: dict[Value, Tensor] = {}
        self.stored: dict[int, list[Value]] = {}  # the values kept on each piece of memory
        self.scattered = False  # the model's tensors are on several devices
        own = (module._forward_hooks or module._forward_pre_hooks for module in modules_of(model))
        watched = has_global_hooks() or any(own)  # by someone who may look at what a ReLU is given
        self.overwritable: frozenset[int] = frozenset() if watched else course.overwritable

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.position < len(self.steps):
            step = self.steps[self.position]
            if func is step.plain:  # the common case, in which nothing needs another spelling
                self.position += 1
                self._check(step, args, kwargs)
                return self._took(step, self._made(step.node, args, kwargs))
        return super()._dispatched(func, args, kwargs)

    def heard(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.position == len(self.steps):
            raise Departed
        step = self.steps[self.position]
        self.position += 1
        writes = func._schema.is_mutable
        plain, given = spelled(out_of_place(func) if writes else func, args, args)
        if plain is not step.node.op:
            raise Departed
        self._check(step, given, kwargs)
        if writes:
            return self._took(step, self._written(func, args, kwargs))
        return self._took(step, self._made(step.node, given if plain is not func else args, kwargs))

    def _check(self, step: _Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare the arguments of a call, and where it is made, with the graph."""
        if len(args) != len(step.args) or kwargs.keys() != step.kwargs.keys():
            raise Departed
        values = self.values
        for arg, expected in zip(args, step.args, strict=True):
            kind = type(expected)  # of what is nearly always there: tensors known and new, and numbers
            if kind is Value:
                known = values.get(id(arg))
                if known is expected:
                    continue
                if known is None and type(arg) is nn.Parameter and self._is_new(expected):
                    self._bind(expected, arg)
                    continue
            elif kind is _Constant and type(arg) is type(expected.value) and arg == expected.value:
                continue
            self._compare(arg, expected)
        for name, arg in kwargs.items():
            self._compare(arg, step.kwargs[name])
        if step.named and self.graph.framed and self.place() != step.node.scope:
            raise Departed

    def _took(self, step: _Step, out: Any) -> Any:
        """Take note of what an operation made, and forget what nothing will read any more."""
        made = step.node.outputs
        if isinstance(out, (tuple, list)):
            if len(out) != len(made):
                raise Departed
            for value, tensor in zip(made, out, strict=True):
                if value is not None:
                    self._keep(value, tensor)
        elif len(made) != 1:
            raise Departed
        elif made[0] is not None:
            self._keep(made[0], out)
        for value in step.dropped:
            tensor = self.alive.pop(value)
            if self.values.get(id(tensor)) is value:
                del self.values[id(tensor)]
        return out

    def _compare(self, given: Any, expected: Any) -> None:
        """Whether an argument is what the graph says; tensors that the model brings along are taken as they are."""
        if isinstance(given, Tensor):
            known = self.values.get(id(given))
            if known is None and self._is_new(expected):
                self._bind(expected, given)
            elif known is not expected or known is None:
                raise Departed
        elif type(expected) is _Constant:
            if not expected.is_like(given):
                raise Departed
        elif not isinstance(given, (list, tuple)) or not isinstance(expected, list) or len(given) != len(expected):
            raise Departed
        else:
            for one, other in zip(given, expected, strict=True):
                self._compare(one, other)

    def _is_new(self, value: Any) -> bool:
        """Whether this is a value that the model brings along, and has not brought yet."""
        return value in self.course.external and value not in self.alive

    def _bind(self, value: Value, tensor: Tensor) -> None:
        if tensor.shape != self.graph.shapes[value.index] or tensor.dtype != self.graph.dtypes[value.index]:
            raise Departed
        self.values[id(tensor)] = value
        self.alive[value] = tensor
        memory = tensor.untyped_storage()._cdata
        self.foreign.add(memory)
        self.stored.setdefault(memory, []).append(value)
        elsewhere = tensor.device != self.device
        self.scattered |= elsewhere
        self.external[value] = (self.here(tensor) if elsewhere else tensor).detach()
        if value in self.course.wanted:
            self.kept[value] = self.external[value]

    def _made(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.scattered:
            args = tuple(filled(arg, self.here) for arg in args)
        if node.index in self.overwritable:
            return in_place(node.op)(*args)
        output = node.outputs[0]
        other = self.quicker.get(node.index) if output is not None and self.graph.contiguous[output.index] else None
        out = None if other is None else other(*args, **kwargs)
        return node.op(*args, **kwargs) if out is None else out

    def _written(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an in-place operation after what it writes over was put aside."""
        self.protect(func, args, kwargs)
        for tensor in written(func, args, kwargs):
            self._put_aside(tensor.untyped_storage()._cdata)
        return func(*args, **kwargs)

    def _put_aside(self, memory: int) -> None:
        for value in self.stored.pop(memory, ()):
            for held in (self.kept, self.external):
                if value in held:
                    held[value] = held[value].clone()

    def _keep(self, value: Value, tensor: Any) -> None:
        if not isinstance(tensor, Tensor) or tensor.shape != self.graph.shapes[value.index]:
            raise Departed
        self.values[id(tensor)] = value
        self.alive[value] = tensor
        if value in self.course.wanted:
            self.kept[value] = tensor
            self.stored.setdefault(tensor.untyped_storage()._cdata, []).append(value)

    def factor(self, part: Tensor, whole: Tensor) -> Any:
        made = self.values.get(id(part))
        node = None if made is None else self.course.makers.get(made)
        return factor_of(node, self.values.get(id(whole)), self.alive.__getitem__)

    def ended(self) -> None:
        for memory in self.writes.memory:  # what is taken back must stay in what was kept
            self._put_aside(memory)
        super().ended()

    def check_outputs(self, outputs: Any, expected: Any) -> None:
        """What the model returned must be what it returned when it was recorded."""
        if self.position != len(self.steps):
            raise Departed
        if isinstance(expected, dict):
            if not isinstance(outputs, dict) or outputs.keys() != expected.keys():
                raise Departed
            for key, item in expected.items():
                self.check_outputs(outputs[key], item)
        elif isinstance(expected, list):
            if not isinstance(outputs, list) or len(outputs) != len(expected):
                raise Departed
            for one, other in zip(outputs, expected, strict=True):
                self.check_outputs(one, other)
        elif isinstance(outputs, Tensor) or isinstance(expected, Value):
            self._compare(outputs, expected)


def _leaves(outputs: Any, see: Callable[[Any], Any]) -> None:
    for item in outputs.values() if isinstance(outputs, dict) else outputs if isinstance(outputs, list) else ():
        _leaves(item, see)
    see(outputs)
