"""How the values of a recorded model depend on the image, and what the frozen network is linear in.

Freezing a network at an image fixes everything that multiplies. Read from the logits down, every operation passes the need for
a linear reading on to the arguments that it is linear in; whatever else it read is held as it was at the image, with all
that made it. So only what carries the decision has to be linear, and what decides about it may be anything.

One rule says which factor of a product of two computed values is held:

1. A divisor is.
2. x · g(x), computed element by element, is an activation: g(x) is its slope. So is x / g(x).
3. Of two factors, the one that came out of a function that is no activation is held (sigmoid, softmax, root, norm, …), or was made
   from such values alone (of two such, the one that was not multiplied by weights since, or else the one straight out of an
   activation); if there is none, one that was clipped on both sides; if there is none, the one that came straight out of an
   activation, and then the product, as in a gated linear unit, is an activation itself: it gates the other. A quotient is
   in this what its dividend is.
4. If both factors are alike in this, or neither is any of it, the model is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Graph, Node, Value, values_in
from pathx.engine.rules.geometry import Shapes
from pathx.engine.rules.table import (
    BATCH_REMEDIES,
    has,
    is_bound,
    is_choice,
    is_clip,
    is_norm,
    is_pointwise,
    is_smooth,
    record_of,
)
from pathx.errors import PathxError


class Dependence(IntEnum):
    """How a value depends on the image."""

    FIXED = 0  # not at all
    FROZEN = 1  # it is constant around the image: comparisons, indices
    HELD = 2  # it is computed from the image, and held as it is there
    VARIES = 3  # linearly, once all else is frozen


class Watch:
    """Follows a recording as it is made, and says which tensors rules may ask for."""

    def __init__(self, image: Value) -> None:
        self.states: dict[Value, Dependence] = {image: Dependence.VARIES}

    def __call__(self, node: Node, shapes: tuple[tuple[int, ...] | None, ...]) -> list[Value] | None:
        """The values of a node that must be kept; None where what it makes does not depend on the image.

        Args:
            shapes: of what the node made.
        """
        _follow(node, self.states)
        output = node.outputs[0] if node.outputs else None
        if output is not None and self.states[output] is Dependence.FIXED:
            return None
        if output is None or self.states[output] is not Dependence.VARIES:
            return []
        shape = (shapes[0] or ())[1:]
        may_be_logits = len(shape) - shape.count(1) <= 1
        kept = _values_to_keep(node, self.states)
        return [*kept, output] if may_be_logits else kept


def _values_to_keep(node: Node, states: dict[Value, Dependence]) -> list[Value]:
    """The values of a node that its rule may ask for, where what it makes varies with the image."""
    operation = record_of(node)
    varying: list[Value] = []
    kept: list[Value] = []
    depending = 0
    for value in node.inputs:
        state = states.get(value, Dependence.FIXED)
        depending += state is not Dependence.FIXED
        (varying if state is Dependence.VARIES else kept).append(value)
    several = depending > 1
    is_gate = operation.gate is not None and operation.saves is None and (several or not is_choice(node))
    may_be_held = several and (
        operation.factors is not None or not {*_positions(node, states)} <= {*operation.linear_in}
    )
    if operation.saves == "inputs" or is_gate or may_be_held:
        kept += varying
    if operation.saves in _SAVED_OUTPUTS:
        kept += [value for value in node.outputs[_SAVED_OUTPUTS[operation.saves]] if value is not None]
    return kept


_SAVED_OUTPUTS = {"output": slice(1), "indices": slice(1, 2), "statistics": slice(1, None)}
"""Which of its results an operation may save."""


def _follow(node: Node, states: dict[Value, Dependence]) -> None:
    """Add the states of what a node makes: FIXED, FROZEN, or VARIES for all that depends on the image in any other way."""
    reading = record_of(node).reading
    inputs = node.inputs[1:] if reading == "shape" else node.inputs
    state = max([states.get(value, Dependence.FIXED) for value in inputs], default=Dependence.FIXED)
    if has(node, "decision") and state is not Dependence.FIXED:
        raise PathxError(
            f"the model decides by the values of its input (.item(), .numpy() or `if` on a tensor in {node.module}): pathx needs a "
            "network whose operations are the same for every image",
            usage=True,
        )
    if reading != "nonlinear" and _is_random(node.op):
        raise PathxError(
            f"the model draws random numbers ({node.place}), so no two runs of it agree; use dropout modules, which are off "
            "in eval mode",
            usage=True,
        )
    if state is Dependence.VARIES and (reading == "locally constant" or _is_integer(node.kwargs.get("dtype"))):
        state = Dependence.FROZEN
    for value in node.outputs:
        if value is not None:
            states[value] = state


@cache
def _is_random(op: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in op.tags


# --- The reading of a graph -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Reading:
    """What a graph is linear in, once it is frozen at an image.

    Args:
        states: of every value. VARIES if anything is linear in it.
        linear: by the number of a node that is read linearly, the inputs that it is linear in.
        held: by the same, the inputs that it reads as they were at the image.
        sources: by the number of each activation's node, the input that it gates.
        exact: "region" if the frozen network is the model in a whole region around the image, "image" if it is at the image alone.
        because: an operation that holds something at the image, if any does.
    """

    states: dict[Value, Dependence]
    linear: dict[int, tuple[Value, ...]]
    held: dict[int, frozenset[Value]]
    sources: dict[int, Value]
    because: str | None

    @property
    def exact(self) -> str:
        return "region" if self.because is None else "image"


def read_graph(graph: Graph, nodes: Iterable[Node], logits: Value) -> Reading:
    """Read a graph from the logits down, or refuse it and say which operation in which module rules it out."""
    return _Reader(graph, tuple(nodes)).read(logits)


@dataclass(eq=False)
class _Reader:
    graph: Graph
    nodes: tuple[Node, ...]
    states: dict[Value, Dependence] = field(default_factory=dict)
    ranks: dict[Value, int] = field(default_factory=dict)
    functions: dict[Value, frozenset[Value]] = field(default_factory=dict)
    multiples: dict[Value, frozenset[Value]] = field(default_factory=dict)
    sources: dict[int, Value] = field(default_factory=dict)
    because: str | None = None

    def read(self, logits: Value) -> Reading:
        graph = self.graph
        self.states = dict.fromkeys(graph.constants, Dependence.FIXED)
        self.states[graph.input] = Dependence.VARIES
        for node in self.nodes:
            _follow(node, self.states)
            for value in node.outputs:
                rounded = value is not None and not graph.dtypes[value.index].is_floating_point
                if value is not None and rounded and self.states[value] is Dependence.VARIES:
                    self._refuse_by_record(node)  # not all integers are constant around an image: bits are not
                    self.states[value] = Dependence.FROZEN
            self._describe(node)
        needed, linear, held = {logits}, {}, {}
        for node in reversed(self.nodes):
            is_needed = not needed.isdisjoint(value for value in node.outputs if value is not None)
            if is_needed and self._varying_values(node):
                linear[node.index] = self._linear_inputs(node, needed)
                held[node.index] = frozenset(self._varying_values(node)) - {*linear[node.index]}
                needed.update(linear[node.index])
        states = {
            value: Dependence.HELD if state is Dependence.VARIES and value not in needed else state
            for value, state in self.states.items()
        }
        sources = {index: source for index, source in self.sources.items() if index in linear}
        return Reading(states, linear, held, sources, self.because)

    def _varying_values(self, node: Node) -> list[Value]:
        """The inputs that depend on the image and are not locally constant, each once."""
        return list(dict.fromkeys(v for v in node.inputs if self.states[v] is Dependence.VARIES))

    # What is known of a value from how it was made: used to choose between factors.

    def _describe(self, node: Node) -> None:
        """Note how clearly what a node makes is a factor, and what it is an element-by-element function or a multiple of."""
        output = node.outputs[0]
        depending = [v for v in node.inputs if self.states[v] is not Dependence.FIXED]
        if output is None or self.states[output] is Dependence.FIXED:
            return
        shapes = {self.graph.shapes[v.index] for v in (*depending, output)}
        if is_pointwise(node) and depending and len(shapes) == 1:
            self.functions[output] = frozenset.intersection(*map(self._functions_of, depending)) | {output}
            if has(node, "copy", "scale") and depending == node.inputs[:1]:
                self.multiples[output] = self._multiples_of(depending[0]) | {output}
        rank = self._rank(node, self._varying_values(node))
        self.ranks.update({value: rank for value in node.outputs if value is not None})

    def _functions_of(self, value: Value) -> frozenset[Value]:
        """The values that a value is an element-by-element function of, itself among them."""
        return self.functions.get(value, frozenset([value]))

    def _multiples_of(self, value: Value) -> frozenset[Value]:
        """The values that a value is a multiple of, itself among them."""
        return self.multiples.get(value, frozenset([value]))

    def _rank(self, node: Node, varying: list[Value]) -> int:
        """How clearly a value is a factor: 5 for what is no activation, 3 for what weights made of that, 4 for activations of it.

        2 for a clip, 1 for an activation, 0 for others.
        """
        operation = record_of(node)
        if not varying:
            return 0
        ranks = [self.ranks.get(value, 0) for value in varying]
        source = self._activation_source(node, varying)
        if source is not None:
            self.sources[node.index] = source
            if min(ranks) >= 4 or has(node, "saturating"):
                return 5
            return 4 if min(ranks) == 3 else 2 if is_clip(node) else 1
        if is_norm(node):
            return 0
        if operation.transpose is None:
            return 5
        if has(node, "copy", "view", "part", "move"):
            return min(ranks)
        if is_pointwise(node) and (len(varying) == 1 or operation.linear_in == (0,)):
            return ranks[0]  # of a quotient's dividend: the divisor is held
        if min(ranks) < 3:
            return 0
        return 3 if has(node, "convolution", "matrix", "head") else min(ranks)

    def _activation_source(self, node: Node, varying: list[Value]) -> Value | None:
        """The input that an activation gates; None where a node is none."""
        if record_of(node).gate is None:
            return None
        if not is_choice(node) or is_bound(node):
            alone = len(varying) == 1 and node.inputs.count(varying[0]) == 1
            return varying[0] if alone and (node.args[0] == varying[0] or is_bound(node)) else None
        depending = [v for v in node.inputs if self.states[v] is not Dependence.FIXED]
        output = node.outputs[0]
        if (
            len(depending) != 2
            or output is None
            or len({self.graph.shapes[v.index] for v in (*depending, output)}) != 1
        ):
            return None
        first, second = depending
        carried = {node.args[position] for position in record_of(node).linear_in} & {*varying}
        gated = [
            value
            for value, factor in {first: second, second: first}.items()  # h and g(h)
            if value in carried and self._multiples_of(value) & self._functions_of(factor)
        ]
        return gated[0] if len(gated) == 1 else None

    # What a node is linear in.

    def _linear_inputs(self, node: Node, needed: set[Value]) -> tuple[Value, ...]:
        operation, varying = record_of(node), self._varying_values(node)
        aside = [value for value in node.outputs[1:] if value in needed]
        if aside and not has(node, "split"):
            raise PathxError(_no_rule(node, " beside its first result"), usage=True)
        source = self.sources.get(node.index)
        if source is not None:
            if is_smooth(node) or node.inputs.count(source) > 1 or varying != [source]:
                self.because = node.place
            return (source,)
        positions = _positions(node, self.states)
        self._refuse_by_record(node)
        if operation.transpose is None:
            raise PathxError(self._refusal(node), usage=True)
        if any(values_in(arg) for arg in node.kwargs.values()):
            raise PathxError(_no_rule(node, " with these arguments computed from the image"), usage=True)
        linear = [position for position in positions if position in operation.linear_in]
        if operation.factors is not None and {*operation.factors} <= {*linear}:
            held = self._held_factor(node, operation.factors)
            linear.remove(held)
            self._note_gated_unit(node, node.args[held])
        elif not linear or (len(linear) > 1 and not operation.jointly_linear):
            raise PathxError(_no_rule(node, " with these arguments computed from the image"), usage=True)
        if len(linear) < len(positions) or is_norm(node):
            self.because = node.place
        frozen = any(self.states[value] is Dependence.FROZEN for value in node.inputs) or len(linear) < len(positions)
        if has(node, "same for all") and frozen:
            raise PathxError(
                f"the model computes an operand of {node.place} from the image: it must be the same for every image",
                usage=True,
            )
        inputs = dict.fromkeys(v for p in linear for v in values_in(node.args[p]) if v in varying)
        return tuple(inputs)

    def _refuse_by_record(self, node: Node) -> None:
        refuses = record_of(node).refuses
        if refuses is not None and (reason := refuses(node, _positions(node, self.states))) is not None:
            raise PathxError(f"pathx cannot explain the model: {node.place} {reason}", usage=True)

    def _held_factor(self, node: Node, factors: tuple[int, int]) -> int:
        """The position of the factor that is held at the image."""
        first, second = (self.ranks.get(node.args[position], 0) for position in factors)
        if first == second:
            raise PathxError(
                f"the model multiplies two values that it computed from the image ({node.place}), and neither or both are gates: "
                "its linear form is ambiguous",
                usage=True,
            )
        return factors[0] if first > second else factors[1]

    def _note_gated_unit(self, node: Node, held: Value) -> None:
        """A product with what came straight out of an activation, element by element, is an activation of the other factor."""
        values = (*node.inputs, *node.outputs[:1])
        same_shape = len({self.graph.shapes[value.index] for value in values if value is not None}) == 1
        if record_of(node).gate is not None and self.ranks.get(held, 0) not in (3, 5) and same_shape:
            self.sources[node.index] = next(value for value in node.inputs if value != held)

    def _refusal(self, node: Node) -> str:
        if node.op.namespace == "quantized" or "quantize" in node.kind:
            return f"the model is quantised ({node.place}): explain the network it was made from"
        if record_of(node).reading == "nonlinear":
            return f"pathx cannot explain the model: {node.place} is neither linear nor an activation, and multiplies nothing"
        return _no_rule(node)


def _positions(node: Node, states: dict[Value, Dependence]) -> list[int]:
    """The positions of the arguments that vary with the image."""
    return [
        position
        for position, arg in enumerate(node.args)
        if any(states.get(value) is Dependence.VARIES for value in values_in(arg))
    ]


def _no_rule(node: Node, how: str = "") -> str:
    return f"pathx has no rule for {node.place}{how}: replace it by operations that pathx knows"


def _is_integer(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and not dtype.is_floating_point


# --- The batch ----------------------------------------------------------------------------------------------------------


def shapes_of(graph: Graph, node: Node, reading: Reading) -> Shapes:
    """A node with the shapes of its values."""
    values = [*node.inputs, *(value for value in node.outputs if value is not None)]
    varying = [value for value in node.inputs if value in reading.linear.get(node.index, ())]
    depending = [value for value in node.inputs if reading.states[value] is not Dependence.FIXED]
    shapes = {value: graph.shapes[value.index] for value in values}
    return Shapes(node, shapes, varying, depending, {}, graph.shapes[graph.input.index][0])


class ImagesTogether(PathxError):
    """A model takes the images of a batch together somewhere, so that they have no dimension of their own.

    Args:
        logits: what it made of the batch, (B, classes).
    """

    logits: Tensor | None = None


def check_batch(graph: Graph, nodes: Iterable[Node], reading: Reading) -> frozenset[int]:
    """Every value that the network is linear in must keep the images apart in its first dimension.

    One image has nothing to be kept apart from, so its batch may end up anywhere, as in attention (`view(B * heads, …)`).

    Returns: the numbers of the nodes where it does, which are then read with their tensors whole.
    """
    batch = graph.shapes[graph.input.index][0]
    whole, remedies = set(), []
    for node in nodes:
        if node.index not in reading.linear:
            continue
        values = (*reading.linear[node.index], *node.outputs)
        shapes = [graph.shapes[v.index] for v in values if v is not None and reading.states[v] is Dependence.VARIES]
        keeps_batch = record_of(node).keeps_batch(shapes_of(graph, node, reading))
        odd = next((shape for shape in shapes if shape[:1] != (batch,)), None)
        if keeps_batch and odd is None:
            continue
        whole.add(node.index)
        remedy = BATCH_REMEDIES.get(node.kind, "")
        remedies += [remedy] if remedy else []
        if batch == 1:
            if (
                record_of(node).saves is not None
                and node.index not in reading.sources
                and not has(node, "last dimensions")
            ):
                problem = f"pathx has no rule for {node.place} on tensors without the batch in front"
                raise PathxError(f"{problem}; {[*remedies, 'keep the images in the first dimension'][0]}", usage=True)
            continue
        if not keeps_batch:
            problem = f"{node.place} works along the batch, so images are not explained one by one"
            raise ImagesTogether(f"{problem}; {remedy}" if remedy else problem, usage=True)
        remedy = remedy or "keep the images in the first dimension (flatten(1) rather than squeeze() or view(-1))"
        raise ImagesTogether(
            f"{node.place} makes a tensor of shape {odd} without the batch of {batch} in front; {remedy}", usage=True
        )
    return frozenset(whole)
