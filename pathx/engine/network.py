"""The recorded graph read as a network: its logits, its gates, and the hidden layers they form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from pathx.engine.dependence import Dependence, Reading, check_batch, read_graph
from pathx.engine.fields import boxes, fields_above, find_places
from pathx.engine.record.operations import Graph, Node, Value, run_by_value
from pathx.engine.record.spellings import fold
from pathx.engine.rules.geometry import Field
from pathx.engine.rules.shared import lift
from pathx.engine.rules.table import has, is_norm, is_pointwise, record_of
from pathx.engine.window import unravel
from pathx.errors import PathxError, kind_in_words
from pathx.explanation import LayerTensor


@dataclass(frozen=True, eq=False)
class Gate:
    """One call of an activation.

    Args:
        source: the value it gates, the pre-activations h.
        output: the value it makes.
    """

    node: Node
    source: Value
    output: Value
    name: str
    shape: tuple[int, ...]

    @property
    def units(self) -> int:
        return prod(self.shape)


Step = Callable[[Node, dict[Value, Tensor]], dict[Value, Tensor]]
Form = tuple[dict[Value, tuple[int, ...]], list[Value], tuple[Any, ...] | None]


@dataclass(frozen=True, eq=False)
class Network:
    """A graph that is linear for a given image.

    Args:
        nodes: the calls that the logits depend on.
        logits: the value that is explained, (B, C) or with dimensions of size 1.
        layers: the gates by hidden layer; layers[n - 1] is layer n.
        class_gates: gates of a class layer, by the number of their node: they belong to the output.
        whole: numbers of the nodes that are read with the tensors of one image whole, wherever the batch is in them.
        lands: for each value, the layers (bit n) whose gates it reaches downwards with no gate between, bit 0 the input.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    reading: Reading
    logits: Value
    producers: dict[Value, Node]
    layers: tuple[tuple[Gate, ...], ...]
    class_gates: dict[int, Gate]
    whole: frozenset[int]
    lands: dict[Value, int]
    _forms: dict[int, Form] = field(default_factory=dict, repr=False)
    _tensors: dict[int, LayerTensor] = field(default_factory=dict, repr=False)

    def form(self, node: Node) -> Form:
        """The shapes of a node's values, without the batch; and those of them that are frozen at the images.

        Where the batch, of one image, is not in front: all of the shapes, and the arguments of the call with one more dimension
        in front, if these are known.
        """
        if node.index not in self._forms:
            values = [*node.inputs, *(value for value in node.outputs if value is not None)]
            shapes, lifted = {v: self.shape(v) for v in values}, None
            if node.index in self.whole:
                shapes = {v: self.graph.shapes[v.index] for v in values}
                lifted = lift(node, {value: len(shape) for value, shape in shapes.items()})
            self._forms[node.index] = (
                shapes,
                [v for v in values if self._is_frozen(v, node)],
                lifted,
            )
        return self._forms[node.index]

    @property
    def depth(self) -> int:
        """N, the number of hidden layers."""
        return len(self.layers)

    @property
    def outputs(self) -> int:
        """How many logits the model has."""
        return prod(self.shape(self.logits))

    @cached_property
    def gates(self) -> dict[int, Gate]:
        """Every gate by the number of its node."""
        return {gate.node.index: gate for layer in self.layers for gate in layer}

    @cached_property
    def fields(self) -> dict[Value, Field]:
        """What each value's elements see of the input."""
        return fields_above(self.graph, self.nodes, self.reading, self.graph.input)

    @cached_property
    def same_numbers(self) -> dict[Value, list[Value]]:
        """By value, the values that hold the same numbers in the same order, in another shape."""
        views: dict[Value, list[Value]] = {}
        for node in self.graph.nodes:
            output, shapes = node.outputs[0] if node.outputs else None, self.graph.shapes
            if output is None or not has(node, "view", "copy", "repeat"):
                continue
            if prod(shapes[output.index]) == prod(shapes[node.inputs[0].index]):
                views.setdefault(node.inputs[0], []).append(output)
        return views

    @cached_property
    def placed(self) -> tuple[bool, ...]:
        """For every hidden layer, from the output down, whether units of it have a place in the image."""
        return tuple(any(self.tensor(gate).places for gate in layer) for layer in reversed(self.layers))

    def tensor(self, gate: Gate) -> LayerTensor:
        """An activation, with where its units are in the image."""
        if gate.node.index not in self._tensors:
            places = find_places(self.fields.get(gate.source), gate.shape, self.shape(self.graph.input))
            self._tensors[gate.node.index] = LayerTensor(gate.name, gate.shape, *(places or ()))
        return self._tensors[gate.node.index]

    def boxes(self, gate: Gate, units: Tensor) -> Tensor:
        """(n, 4) the receptive fields of units of an activation, by their flat indices; (n, 0) where inputs are no images."""
        return boxes(self.fields.get(gate.source), unravel(units, gate.shape), self.shape(self.graph.input))

    @cached_property
    def needed(self) -> frozenset[Value]:
        """What must be kept of a forward pass: weights, gates, routes and the logits."""
        needed = {self.logits, self.graph.input}
        for node in self.nodes:
            if node.index not in self.reading.linear:
                continue
            needed.update(value for value in node.inputs if value not in self.reading.linear[node.index])
            gate = self.gates.get(node.index) or self.class_gates.get(node.index)
            if gate is not None:
                needed.add(gate.output if record_of(node).saves == "output" else gate.source)
            elif record_of(node).saves == "inputs":
                needed.update(node.inputs)
            elif record_of(node).saves in ("indices", "statistics"):
                needed.update(value for value in node.outputs[1:] if value is not None)
        return frozenset(needed)

    def run(
        self, wanted: Collection[Value], known: Mapping[Value, Tensor], step: Step = run_by_value
    ) -> dict[Value, Tensor]:
        """The tensors of some values, computed from others that are known; what nobody will read is let go on the way.

        Args:
            step: runs one call.
        """
        calls, read = [], {*wanted}
        for node in reversed(self.nodes):
            made = [value for value in node.outputs if value is not None]
            if any(value in read and value not in known for value in made):
                done = {*node.inputs, *made} - read
                read |= done
                calls.append((node, done))
        values = {value: known[value] for value in read & known.keys()}
        for node, done in reversed(calls):
            values.update(step(node, values))
            for value in done & values.keys():
                del values[value]
        return {value: values[value] for value in wanted}

    @cached_property
    def top_is_shared(self) -> bool:
        """Whether nothing between the logits and the gates below them was frozen at an image."""
        between, _ = _top(self.logits, self.producers, self.reading, lambda node: node.index in self.gates)
        return not any(
            record_of(node).saves or node.index in self.class_gates or node.index in self.whole for node in between
        ) and not any(self._is_of_images(value, node) for node in between for value in node.inputs)

    def _is_frozen(self, value: Value, node: Node) -> bool:
        """Whether a node reads or made a value as it was at the images."""
        state = self.reading.states[value]
        held = value in self.reading.held.get(node.index, ()) or value in node.outputs[1:]
        return state in (Dependence.FROZEN, Dependence.HELD) or (held and not has(node, "split"))

    def _is_of_images(self, value: Value, node: Node) -> bool:
        """Whether an input of a node was frozen at the images, or is fixed with one entry for each of them."""
        if self.reading.states[value] is not Dependence.FIXED:
            return self._is_frozen(value, node)
        output, shape = node.outputs[0], self.graph.shapes[value.index]
        batch = self.graph.shapes[self.graph.input.index][0]
        rank = len(self.graph.shapes[output.index]) if output is not None else 0
        return len(shape) == rank and shape[0] == batch > 1

    def shape(self, value: Value) -> tuple[int, ...]:
        """Shape of a value for one image."""
        return shape_of_one(self.graph, value)


def shape_of_one(graph: Graph, value: Value) -> tuple[int, ...]:
    """Shape of a value for one image; all of it where the batch, of one image, is not in front."""
    shape, batch = graph.shapes[value.index], graph.shapes[graph.input.index][0]
    return shape[1:] if shape[:1] == (batch,) else shape


def read_network(graph: Graph) -> Network:
    """Read a graph as a network that is linear at an image, or refuse it and say which operation in which module rules it out."""
    graph = fold(graph)
    producers = _producers(graph)
    logits = find_logits(graph)
    used = _ancestors(logits, producers)
    nodes = tuple(node for node in graph.nodes if node.index in used)
    if logits in graph.constants and graph.constants[logits] is None:
        raise PathxError(
            "the model's output is the same for every image, or is made where pathx cannot follow: in another thread, or outside "
            "of torch",
            usage=True,
        )
    reading = read_graph(graph, nodes, logits)
    if reading.states[logits] is not Dependence.VARIES or reading.states[graph.input] is not Dependence.VARIES:
        problem = "the model's output does not depend on its input in a way that can be explained"
        raise PathxError(f"{problem}{_where_rounded(graph, nodes, reading)}", usage=True)
    whole = check_batch(graph, nodes, reading)
    gates = {gate.node.index: gate for gate in _gates(graph, nodes, reading)}
    class_gates = _class_gates(graph, reading, gates, logits, producers)
    if len(class_gates) == len(gates):  # a class layer is all that there is
        class_gates = {}
    hidden = {index: gate for index, gate in gates.items() if index not in class_gates}
    layers, lands = _layers(graph, reading, hidden, logits)
    if not layers:
        raise PathxError(
            "the model has no activation between its input and its output: there is no path to find", usage=True
        )
    _check_head(graph, logits, reading, gates, producers)
    return Network(graph, nodes, reading, logits, producers, layers, class_gates, whole, lands)


def _top(
    logits: Value, producers: dict[Value, Node], reading: Reading, is_end: Callable[[Node], bool]
) -> tuple[list[Node], list[Node | None]]:
    """The operations on the way down from the logits, and those that end it; None among these for the input."""
    between: list[Node] = []
    ends: list[Node | None] = []
    stack, seen = [logits], {logits}
    while stack:
        node = producers.get(stack.pop())
        if node is None or is_end(node):
            ends.append(node)
            continue
        between.append(node)
        fresh = {*reading.linear.get(node.index, ())} - seen
        seen |= fresh
        stack.extend(fresh)
    return between, ends


def _class_gates(
    graph: Graph, reading: Reading, gates: dict[int, Gate], logits: Value, producers: dict[Value, Node]
) -> dict[int, Gate]:
    """The gates of a class layer: every unit of theirs sends to one class only, by construction.

    Between them and the logits there are only operations that hand every element on to one element of their result:
    reshapes, means and maxima of whole maps, fixed factors. Empty where the top layer is no such layer.
    """
    between, ends = _top(logits, producers, reading, lambda node: node.index in gates)
    apart = all(_keeps_elements_apart(graph, node, reading) for node in between)
    if None in ends or not apart or prod(shape_of_one(graph, logits)) == 1:
        return {}
    return {node.index: gates[node.index] for node in ends if node is not None}


def _keeps_elements_apart(graph: Graph, node: Node, reading: Reading) -> bool:
    """Whether every element that an operation is given reaches at most one element of its result."""
    linear, output = reading.linear.get(node.index, ()), node.outputs[0]
    if output is None or len(linear) != 1:
        return False
    before, after = (graph.shapes[value.index] for value in (linear[0], output))
    if has(node, "pool"):
        return prod(after[2:]) == 1
    return has(node, "view", "part", "reduction") or (is_pointwise(node) and before == after)


_FEATURES = 64
"""Fewer outputs than this may well be classes, whatever made them."""


def _check_head(
    graph: Graph, logits: Value, reading: Reading, gates: dict[int, Gate], producers: dict[Value, Node]
) -> None:
    """Refuse a backbone, which ends in the features of an activation or of a norm: they are no classes.

    Networks may end in a ReLU over one map per class, though (SqueezeNet): a product or a 1 x 1 convolution right
    before the ReLU.
    """
    between, ends = _top(logits, producers, reading, lambda node: node.index in gates or is_norm(node))
    hands_on = all(has(node, "copy", "view", "part", "move", "pool", "reduction") for node in between)
    if prod(shape_of_one(graph, logits)) < _FEATURES or None in ends or not hands_on:
        return  # few enough for classes, or something was learned after the last activation
    for node in ends:
        gate = gates.get(node.index) if node is not None else None
        head = None if gate is None else producers.get(gate.source)
        if node is not None and (head is None or not _is_head(graph, head)):
            raise PathxError(
                f"the model ends in the features of {node.name if gate is None else gate.name}, not in class logits: it seems to "
                "be a backbone; give it with its head",
                usage=True,
            )


def _is_head(graph: Graph, node: Node) -> bool:
    """Whether a node can be the last layer of a classifier."""
    if has(node, "head"):
        return True
    weight = node.args[1] if has(node, "convolution") else None
    return isinstance(weight, Value) and prod(graph.shapes[weight.index][2:]) == 1


def _where_rounded(graph: Graph, nodes: Iterable[Node], reading: Reading) -> str:
    """Where what varied with the image became integers, for the message."""
    for node in nodes:
        output = node.outputs[0]
        states = reading.states
        became = output is not None and states[output] is Dependence.FROZEN and graph.dtypes[output.index] != torch.bool
        if became and any(states[value] in (Dependence.VARIES, Dependence.HELD) for value in node.inputs):
            return f": {node.place} makes integers of it, which are constant around any image"
    return ""


def find_logits(graph: Graph) -> Value:
    """The logits among what the model returned: by name, or else the one candidate that no other is computed from."""
    producers = _producers(graph)
    returned = _flat_outputs(graph.outputs)
    batch = graph.shapes[graph.input.index][0]

    def is_logits(value: Any) -> bool:
        if not isinstance(value, Value) or not graph.dtypes[value.index].is_floating_point:
            return False
        shape = graph.shapes[value.index]
        return shape[:1] == (batch,) and 0 not in shape and sum(size != 1 for size in shape[1:]) <= 1

    candidates = {name: _strip_final(graph, value, producers) for name, value in returned.items() if is_logits(value)}
    for name in ("logits", "out", "output"):
        if name in candidates:
            return candidates[name]
    distinct = set(candidates.values())
    used = {value: _ancestors(value, producers) for value in distinct}
    last = [v for v in distinct if not any(v in producers and producers[v].index in used[w] for w in distinct - {v})]
    if len(last) == 1:
        return last[0]
    shapes = ", ".join(f"{n or 'output'} {_shape_of(graph, v)}" for n, v in returned.items()) or "nothing"
    if candidates:
        raise PathxError(
            f"the model returns several outputs that could be logits ({shapes}); wrap it so that it returns one",
            usage=True,
        )
    maps = any(isinstance(v, Value) and len(graph.shapes[v.index]) == 4 for v in returned.values())
    row = "such a row (of maps of logits, one pixel or their mean)" if maps else "one"
    raise PathxError(
        f"the model returns {shapes}, not one row of class logits per image, (batch, classes); wrap it so that it returns {row}",
        usage=True,
    )


def _producers(graph: Graph) -> dict[Value, Node]:
    return {value: node for node in graph.nodes for value in node.outputs if value is not None}


def _shape_of(graph: Graph, value: Any) -> str:
    return f"of shape {graph.shapes[value.index]}" if isinstance(value, Value) else kind_in_words(value)


def _flat_outputs(outputs: Any, name: str = "") -> dict[str, Any]:
    if isinstance(outputs, dict):
        items = outputs.items()
    elif isinstance(outputs, (list, tuple)):
        items = dict(enumerate(outputs)).items()
    else:
        return {name: outputs}
    return {
        key: value for part, item in items for key, value in _flat_outputs(item, f"{name}.{part}".strip(".")).items()
    }


def _strip_final(graph: Graph, value: Value, producers: dict[Value, Node]) -> Value:
    """The logits before a final softmax, log-softmax or sigmoid, whatever shape or scale its result is given."""
    logits = value
    while value in producers:
        node = producers[value]
        if not has(node, "final", "after final", "copy", "view"):
            break
        if has(node, "final") and len(node.args) > 1:
            shape = graph.shapes[value.index] or (1,)
            size, outputs = shape[node.args[1]], prod(shape_of_one(graph, value))
            if node.args[1] % len(shape) == 0 and shape[0] == graph.shapes[graph.input.index][0]:
                raise PathxError(f"{node.place} is taken over the batch, not over the classes; use dim=1", usage=True)
            if size != outputs:
                raise PathxError(
                    f"{node.place} is taken over groups of {size} of the {outputs} outputs; wrap the model so that it returns "
                    "the logits of one group",
                    usage=True,
                )
        value = node.inputs[0]
        if has(node, "final") or (logits == node.outputs[0] and has(node, "copy")):
            logits = value
    return logits


def _ancestors(value: Value, producers: dict[Value, Node]) -> set[int]:
    """Numbers of the nodes that a value depends on."""
    used: set[int] = set()
    stack = [value]
    while stack:
        node = producers.get(stack.pop())
        if node is not None and node.index not in used:
            used.add(node.index)
            stack.extend(node.inputs)
    return used


def _gates(graph: Graph, nodes: Iterable[Node], reading: Reading) -> list[Gate]:
    """The activations on the way to the logits, named as torchvision names feature nodes: repeated calls are numbered."""
    seen: Counter[str] = Counter()
    gates = []
    for node in nodes:
        output, source = node.outputs[0], reading.sources.get(node.index)
        if output is None or source is None:
            continue
        name = node.name
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}_{seen[name] - 1}"
        gates.append(Gate(node, source, output, name, shape_of_one(graph, output)))
    return gates


def _layers(
    graph: Graph, reading: Reading, gates: dict[int, Gate], logits: Value
) -> tuple[tuple[tuple[Gate, ...], ...], dict[Value, int]]:
    """Layers by the largest number of gates on a route to the logits, and where routes land."""
    distance: dict[Value, int] = {logits: 0}
    for node in reversed(graph.nodes):
        reached = [distance[v] for v in node.outputs if v is not None and v in distance]
        if reached:
            steps = max(reached) + (node.index in gates)
            for value in reading.linear.get(node.index, ()):
                distance[value] = max(distance.get(value, 0), steps)
    total = max((distance[gate.output] + 1 for gate in gates.values() if gate.output in distance), default=0)
    layers: list[list[Gate]] = [[] for _ in range(total)]
    lands: dict[Value, int] = {graph.input: 1}
    for node in graph.nodes:
        if node.index in gates:
            gate = gates[node.index]
            if gate.output in distance:
                layer = total - distance[gate.output]
                layers[layer - 1].append(gate)
                lands[gate.output] = 1 << layer
            continue
        reach = 0
        for value in reading.linear.get(node.index, ()):
            reach |= lands.get(value, 0)
        lands.update({v: reach for v in node.outputs if v is not None and node.index in reading.linear})
    return tuple(tuple(layer) for layer in layers), lands
