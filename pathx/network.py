"""The traced graph read as a ReLU network: its logits, its gates, and the hidden layers they form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from pathx.errors import PathxError
from pathx.explanation import LayerTensor
from pathx.fields import Field, receptive_fields
from pathx.folds import fold
from pathx.operations import FINAL, GATES, TRANSPOSES
from pathx.states import State, check_batch, states_of
from pathx.trace import Graph, Node, Value


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
    def dropped(self) -> dict[int, list[Value]]:
        """The values that nothing needs any more after a node, by its number."""
        last = {v: node.index for node in self.nodes for v in (*node.outputs, *node.inputs) if v is not None}
        dropped: dict[int, list[Value]] = {node.index: [] for node in self.nodes}
        for value, index in last.items():
            if value not in self.needed:
                dropped[index].append(value)
        return dropped

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
    graph = fold(graph)
    producers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    logits = _find_logits(graph, producers)
    used = _ancestors(logits, producers)
    nodes = tuple(node for node in graph.nodes if node.index in used)
    states = states_of(graph, nodes)
    if states[logits] is not State.VARIES:
        raise PathxError("the model's output does not depend on its input in a way that can be explained", usage=True)
    check_batch(graph, nodes, states)
    gates = _gates(graph, nodes, states, producers)
    layers, lands = _layers(graph, states, gates, logits, producers)
    if not layers:
        raise PathxError("the model has no ReLU between its input and its output: there is no path to find", usage=True)
    return Network(graph, nodes, states, logits, producers, layers, lands)


# Operations that always make a new tensor.
_FRESH = frozenset(["convolution", "addmm", "mm", "add", "native_batch_norm", "cat"])

# Operations that hand their input on, and those that may follow a final softmax or sigmoid.
_SAME = frozenset(["clone", "alias", "detach", "_to_copy", "contiguous"])
_AFTERWARDS = frozenset(["view", "_unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze", "log", "exp"])


def _find_logits(graph: Graph, producers: dict[Value, Node]) -> Value:
    """The logits among what the model returned: by name, or else the one candidate that no other is computed from."""
    found = _flat_outputs(graph.outputs)
    batch = graph.shapes[graph.input.index][0]

    def is_logits(value: Any) -> bool:
        if not isinstance(value, Value) or not graph.dtypes[value.index].is_floating_point:
            return False
        shape = graph.shapes[value.index]
        return shape[:1] == (batch,) and sum(size != 1 for size in shape[1:]) <= 1

    candidates = {name: _strip_final(value, producers) for name, value in found.items() if is_logits(value)}
    for name in ("logits", "out", "output"):
        if name in candidates:
            return candidates[name]
    distinct = set(candidates.values())
    used = {value: _ancestors(value, producers) for value in distinct}
    last = [v for v in distinct if not any(v in producers and producers[v].index in used[w] for w in distinct - {v})]
    if len(last) == 1:
        return last[0]
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
    """The logits before a final softmax, log-softmax or sigmoid, whatever shape or scale its result is given."""
    logits = value
    while value in producers:
        node = producers[value]
        if node.kind not in FINAL and node.kind not in _SAME and node.kind not in _AFTERWARDS:
            break
        if "softmax" in node.kind and node.args[1] == 0:
            raise PathxError(f"{node.place} is taken over the batch, not over the classes; use dim=1", usage=True)
        value = node.inputs[0]
        logits = value if node.kind in FINAL or (logits == node.outputs[0] and node.kind in _SAME) else logits
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


def _gates(graph: Graph, nodes: Iterable[Node], states: dict[Value, State], producers: dict[Value, Node]) -> list[Gate]:
    """The ReLUs on the way to the logits, named as torchvision names feature nodes: repeated calls are numbered."""
    seen: Counter[str] = Counter()
    gates = []
    for node in nodes:
        output = node.outputs[0]
        if output is None or states[output] is not State.VARIES or node.kind not in GATES:
            continue
        source = next(value for value in node.inputs if states[value] is State.VARIES)
        if node.kind in TRANSPOSES and not _masks_itself(node, source, states, producers):
            continue  # a mask from elsewhere is a factor like any other
        name = node.name
        seen[name] += 1
        if seen[name] > 1:
            name = f"{name}_{seen[name] - 1}"
        gates.append(Gate(node, source, output, name, graph.shapes[output.index][1:]))
    return gates


def _masks_itself(node: Node, source: Value, states: dict[Value, State], producers: dict[Value, Node]) -> bool:
    """Whether what masks a value was computed from that value, as in `x * (x > 0)`."""

    def origin(value: Value) -> Value:
        while value in producers and producers[value].kind in _SAME:
            value = producers[value].inputs[0]
        return value

    stack = [value for value in node.inputs if states[value] is State.FROZEN]
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        if states[value] is State.FROZEN and value not in seen:
            seen.add(value)
            stack.extend(producers[value].inputs)
        elif states[value] is State.VARIES and origin(value) == origin(source):
            return True
    return False


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
