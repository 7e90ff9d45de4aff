"""The traced graph read as a ReLU network: its logits, its gates, and the hidden layers they form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any

import pathx.gates
import pathx.pools
import pathx.shapes
import pathx.transposes  # noqa: F401
from pathx.errors import PathxError
from pathx.explanation import LayerTensor
from pathx.fields import Field, receptive_fields
from pathx.operations import COMPARISONS, FINAL, GATES, PLAIN_LINEAR, TRANSPOSES
from pathx.trace import Graph, Node, Value


class State(Enum):
    """How a value depends on the picture."""

    FIXED = 0  # not at all
    FROZEN = 1  # it is constant around the picture: comparisons, indices
    VARIES = 2  # linearly, once the gates are frozen


@dataclass(frozen=True, eq=False)
class Gate:
    """One call of a ReLU.

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

    @property
    def described(self) -> LayerTensor:
        return LayerTensor(self.name, self.shape)


@dataclass(frozen=True, eq=False)
class Network:
    """A graph that is linear for a given picture.

    Args:
        nodes: the calls that the logits depend on.
        logits: the value that is explained, (B, C) or with dimensions of size 1.
        layers: the gates by hidden layer; layers[n - 1] is layer n.
        lands: for each value, the layers (bit n) whose gates it reaches downwards with no gate between, bit 0 the input.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    states: dict[Value, State]
    logits: Value
    producers: dict[Value, Node]
    layers: tuple[tuple[Gate, ...], ...]
    lands: dict[Value, int]

    @property
    def depth(self) -> int:
        """N, the number of hidden layers."""
        return len(self.layers)

    @property
    def outputs(self) -> int:
        """How many logits the model has."""
        return prod(self.graph.shapes[self.logits.index][1:])

    @cached_property
    def gates(self) -> dict[int, Gate]:
        """Every gate by the number of its node."""
        return {gate.node.index: gate for layer in self.layers for gate in layer}

    @cached_property
    def layer_of(self) -> dict[int, int]:
        """The hidden layer (1 … N) of every gate, by the number of its node."""
        return {gate.node.index: n for n, layer in enumerate(self.layers, start=1) for gate in layer}

    @cached_property
    def fields(self) -> dict[Value, Field]:
        """What each value's elements see of the input."""
        varying = frozenset(value for value, state in self.states.items() if state is State.VARIES)
        return receptive_fields(self.graph, varying)

    @cached_property
    def last_use(self) -> dict[Value, int]:
        """The number of the last node that reads each value."""
        return {value: node.index for node in self.nodes for value in node.inputs}

    @cached_property
    def needed(self) -> frozenset[Value]:
        """What must be kept of a forward pass: weights, gates, routes and the logits."""
        needed = {self.logits, self.graph.input}
        for node in self.nodes:
            output = node.outputs[0]
            if output is None or self.states[output] is not State.VARIES:
                continue
            needed.update(value for value in node.inputs if self.states[value] is not State.VARIES)
            if node.index in self.gates:
                gate = self.gates[node.index]
                needed.add(gate.output if node.kind == "relu" else gate.source)
            elif node.kind in TRANSPOSES:
                saved = (node.outputs[position] for position in TRANSPOSES[node.kind].saves)
                needed.update(value for value in saved if value is not None)
        return frozenset(needed)

    @cached_property
    def top_is_shared(self) -> bool:
        """Whether nothing between the logits and the gates below them was frozen at a picture."""
        stack, seen = [self.logits], {self.logits}
        while stack:
            node = self.producers.get(stack.pop())
            if node is None or node.index in self.gates:
                continue
            linear = TRANSPOSES.get(node.kind)
            if (linear is not None and linear.saves) or any(self.states[v] is State.FROZEN for v in node.inputs):
                return False
            fresh = {v for v in node.inputs if self.states[v] is State.VARIES} - seen
            seen |= fresh
            stack.extend(fresh)
        return True

    @cached_property
    def overwritable(self) -> frozenset[int]:
        """ReLUs that may work in place: nothing else reads their input, which was made for them."""
        uses = Counter(value for node in self.nodes for value in node.inputs)
        return frozenset(
            node.index
            for node in self.nodes
            if node.kind == "relu"
            and uses[node.inputs[0]] == 1
            and node.inputs[0] not in self.needed
            and node.inputs[0] in self.producers
            and self.producers[node.inputs[0]].kind in _FRESH
        )

    def shape(self, value: Value) -> tuple[int, ...]:
        """Shape of a value for one picture."""
        return self.graph.shapes[value.index][1:]


def read_network(graph: Graph) -> Network:
    """Read a graph as a ReLU network, or refuse it and say which operation in which module rules it out."""
    producers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    logits = _strip_final(_find_logits(graph), producers)
    used = _ancestors(logits, producers)
    nodes = tuple(node for node in graph.nodes if node.index in used)
    states = _states(graph, nodes)
    if states[logits] is not State.VARIES:
        raise PathxError("the model's output does not depend on its input in a way that can be explained", usage=True)
    _check_batch(graph, nodes, states)
    gates = _gates(graph, nodes, states)
    layers, lands = _layers(graph, states, gates, logits, producers)
    if not layers:
        raise PathxError("the model has no ReLU between its input and its output: there is no path to find", usage=True)
    return Network(graph, nodes, states, logits, producers, layers, lands)


def _find_logits(graph: Graph) -> Value:
    """The tensor that holds the logits among what the model returned."""
    found = _flat_outputs(graph.outputs)
    batch = graph.shapes[graph.input.index][0]

    def is_logits(value: Any) -> bool:
        if not isinstance(value, Value) or not graph.dtypes[value.index].is_floating_point:
            return False
        shape = graph.shapes[value.index]
        return shape[:1] == (batch,) and sum(size != 1 for size in shape[1:]) <= 1

    candidates: dict[str, Value] = {name: value for name, value in found.items() if is_logits(value)}
    for name in ("logits", "out", "output"):
        if name in candidates:
            return candidates[name]
    if len(candidates) == 1:
        return next(iter(candidates.values()))
    shapes = ", ".join(f"{n or 'output'} {_shape_of(graph, v)}" for n, v in found.items()) or "nothing"
    if candidates:
        raise PathxError(
            f"the model returns several outputs that could be logits ({shapes}); wrap it so that it returns one",
            usage=True,
        )
    raise PathxError(
        f"the model returns {shapes}, not one row of class logits per picture, (batch, classes); wrap it so that it does",
        usage=True,
    )


def _shape_of(graph: Graph, value: Any) -> str:
    return f"of shape {graph.shapes[value.index]}" if isinstance(value, Value) else type(value).__name__


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


def _strip_final(value: Value, producers: dict[Value, Node]) -> Value:
    """The logits before a final softmax, log-softmax or sigmoid."""
    while value in producers:
        node = producers[value]
        if node.kind not in FINAL and node.kind not in ("clone", "alias", "detach"):
            break
        value = node.inputs[0]
    return value


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


class Watch:
    """Follows a trace as it is recorded and refuses what rules a model out at once, before the model has run to its end."""

    def __init__(self) -> None:
        self.states: dict[Value, State] = {}

    def __call__(self, node: Node, image: Value) -> None:
        self.states[image] = State.VARIES
        if node.kind in FINAL:  # may be the last operation; whether it is shows at the end
            self.states.update({value: State.FROZEN for value in node.outputs if value is not None})
        else:
            _follow(node, self.states)


def _states(graph: Graph, nodes: Iterable[Node]) -> dict[Value, State]:
    """The state of every value that the nodes read or make."""
    states = dict.fromkeys([*graph.parameters.values(), *graph.constants], State.FIXED)
    states[graph.input] = State.VARIES
    for node in nodes:
        _follow(node, states)
    return states


def _follow(node: Node, states: dict[Value, State]) -> None:
    """Add the states of what a node makes; refuses operations that are not linear for a given picture."""
    state = max((states.get(value, State.FIXED) for value in node.inputs), key=lambda s: s.value, default=State.FIXED)
    if node.kind == "_local_scalar_dense" and state is not State.FIXED:
        raise PathxError(
            f"the model decides by the values of its input (.item() or `if` on a tensor, {node.place}): pathx needs a "
            "network whose operations are the same for every picture",
            usage=True,
        )
    if state is State.VARIES:
        state = _state_of(node, states)
    for position, value in enumerate(node.outputs):
        if value is not None:  # what comes beside the first output (indices, statistics) is frozen, parts are not
            aside = position > 0 and state is State.VARIES and node.kind not in _PARTS
            states[value] = State.FROZEN if aside else state


def _state_of(node: Node, states: dict[Value, State]) -> State:
    """State of what an operation on varying values makes; refuses operations that are not linear for a given picture."""
    name = node.kind
    varying = [p for p, arg in enumerate(node.args) if any(states.get(v) is State.VARIES for v in _values_in(arg))]
    if name in COMPARISONS:
        return State.FROZEN
    if name == "where":
        return _where_state(node, states)
    if name in GATES and len(varying) == 1:
        return State.VARIES
    linear = TRANSPOSES.get(name)
    if linear is not None:
        allowed = set(varying) <= set(linear.varies) and (linear.together or len(varying) == 1)
        if allowed and not (name == "div" and varying == [1]):
            if name.endswith("batch_norm") and node.args[5] is True:
                raise PathxError(
                    f"{node.place} normalises by its batch's own statistics, so it has no exact path", usage=True
                )
            return State.VARIES
        raise PathxError(
            f"the model multiplies or divides by what it computed from the picture ({node.place}): {_WHY}", usage=True
        )
    if name in PLAIN_LINEAR and varying == [0]:
        return State.VARIES
    raise PathxError(f"the model is not a ReLU network: {node.place} {_WHY}", usage=True)


# Operations whose outputs are all parts of their input.
_PARTS = frozenset(["split", "split_with_sizes", "chunk", "unbind"])

# Operations that always make a new tensor.
_FRESH = frozenset(["convolution", "addmm", "mm", "add", "native_batch_norm", "cat"])

_WHY = "is not linear for a given input, so the network has no exact path"


def _where_state(node: Node, states: dict[Value, State]) -> State:
    condition, *branches = (
        states.get(arg, State.FIXED) if isinstance(arg, Value) else State.FIXED for arg in node.args
    )
    if condition is not State.VARIES and branches.count(State.VARIES) == 1:
        return State.VARIES
    raise PathxError(f"the model is not a ReLU network: {node.place} chooses between two computed values", usage=True)


def _values_in(arg: Any) -> list[Value]:
    if isinstance(arg, Value):
        return [arg]
    return [v for item in arg for v in _values_in(item)] if isinstance(arg, (list, tuple)) else []


def _check_batch(graph: Graph, nodes: Iterable[Node], states: dict[Value, State]) -> None:
    """Every varying value must keep the pictures apart in its first dimension."""
    batch = graph.shapes[graph.input.index][0]
    for node in nodes:
        for value in node.outputs:
            if value is not None and states.get(value) is State.VARIES and graph.shapes[value.index][:1] != (batch,):
                shape = graph.shapes[value.index]
                raise PathxError(
                    f"{node.place} makes a tensor of shape {shape} without the batch of {batch} in front; use flatten(1) "
                    "rather than squeeze() or view(-1)",
                    usage=True,
                )


def _gates(graph: Graph, nodes: Iterable[Node], states: dict[Value, State]) -> list[Gate]:
    """The ReLUs on the way to the logits, named as torchvision names feature nodes: repeated calls are numbered."""
    seen: Counter[str] = Counter()
    gates = []
    for node in nodes:
        if node.kind not in GATES:
            continue
        output = node.outputs[0]
        if output is None or states[output] is not State.VARIES:
            continue
        name = node.name
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}_{seen[name] - 1}"
        source = next(value for value in node.inputs if states[value] is State.VARIES)
        gates.append(Gate(node, source, output, name, graph.shapes[output.index][1:]))
    return gates


def _layers(
    graph: Graph, states: dict[Value, State], gates: list[Gate], logits: Value, producers: dict[Value, Node]
) -> tuple[tuple[tuple[Gate, ...], ...], dict[Value, int]]:
    """Layers by the largest number of gates on a route to the logits, and where routes land."""
    by_node = {gate.node.index: gate for gate in gates}
    distance: dict[Value, int] = {logits: 0}
    for node in reversed(graph.nodes):
        reached = [distance[v] for v in node.outputs if v is not None and v in distance]
        if reached:
            steps = max(reached) + (node.index in by_node)
            for value in node.inputs:
                if states.get(value) is State.VARIES:
                    distance[value] = max(distance.get(value, 0), steps)
    total = max((distance[gate.output] + 1 for gate in gates if gate.output in distance), default=0)
    layers: list[list[Gate]] = [[] for _ in range(total)]
    lands: dict[Value, int] = {graph.input: 1}
    for node in graph.nodes:
        if node.index in by_node:
            gate = by_node[node.index]
            if gate.output in distance:
                layer = total - distance[gate.output]
                layers[layer - 1].append(gate)
                lands[gate.output] = 1 << layer
            continue
        reach = 0
        for value in node.inputs:
            reach |= lands.get(value, 0)
        lands.update({v: reach for v in node.outputs if v is not None and states.get(v) is State.VARIES})
    return tuple(tuple(layer) for layer in layers), lands
