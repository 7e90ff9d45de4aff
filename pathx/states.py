"""How the values of a traced graph depend on the picture, and the refusal of models that no gates make linear."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch

import pathx.gates
import pathx.masks
import pathx.pools
import pathx.shapes
import pathx.transposes  # noqa: F401
from pathx.errors import PathxError
from pathx.operations import COMPARISONS, FINAL, GATES, PLAIN_LINEAR, TRANSPOSES
from pathx.trace import Graph, Node, Value


class State(Enum):
    """How a value depends on the picture."""

    FIXED = 0  # not at all
    FROZEN = 1  # it is constant around the picture: comparisons, indices
    VARIES = 2  # linearly, once the gates are frozen


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


def states_of(graph: Graph, nodes: Iterable[Node]) -> dict[Value, State]:
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
            f"the model decides by the values of its input (.item() or `if` on a tensor in {node.module}): pathx needs a "
            "network whose operations are the same for every picture",
            usage=True,
        )
    if torch.Tag.nondeterministic_seeded in node.op.tags and "attention" not in node.kind:
        raise PathxError(
            f"the model draws random numbers ({node.place}), so no two runs of it agree; use dropout modules, which rest "
            "in eval mode",
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
    linear = TRANSPOSES.get(name)
    if name in GATES and linear is None and len(varying) == 1:
        return State.VARIES
    if name in ("where", "maximum", "minimum") and len(varying) > 1:
        raise PathxError(
            f"the model is not a ReLU network: {node.place} chooses between two computed values", usage=True
        )
    if linear is not None:
        allowed = set(varying) <= set(linear.varies) and (linear.together or len(varying) == 1)
        if allowed and not (name == "div" and varying == [1]):
            if name.endswith("batch_norm") and node.args[5] is True:
                raise PathxError(
                    f"{node.place} normalises by its batch's own statistics, so it has no exact path", usage=True
                )
            return State.VARIES
        raise PathxError(
            f"the model multiplies or divides by what it computed from the picture: {node.place} {_WHY}", usage=True
        )
    if name in PLAIN_LINEAR and varying == [0]:
        if any(states.get(value) is State.FROZEN for value in node.inputs):
            raise PathxError(
                f"the model picks elements by what it computed from the picture ({node.place}): its operations must be the "
                "same for every picture",
                usage=True,
            )
        return State.VARIES
    raise PathxError(f"the model is not a ReLU network: {node.place} {_WHY}", usage=True)


# Operations whose outputs are all parts of their input.
_PARTS = frozenset(["split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unbind"])

# Where operations name the dimensions they work along: pictures must be left apart.
_DIMENSIONS = {
    **dict.fromkeys(["mean", "sum", "max", "cumsum", "flip", "index_select", "gather", "cat", "stack"], (1,)),
    **dict.fromkeys(["transpose", "rot90"], (1, 2)),
    "roll": (2,),
}

_WHY = "is not linear for a given input, so the network has no exact path"


def _values_in(arg: Any) -> list[Value]:
    if isinstance(arg, Value):
        return [arg]
    return [v for item in arg for v in _values_in(item)] if isinstance(arg, (list, tuple)) else []


def check_batch(graph: Graph, nodes: Iterable[Node], states: dict[Value, State]) -> None:
    """Every varying value must keep the pictures apart in its first dimension."""
    batch = graph.shapes[graph.input.index][0]
    for node in nodes:
        if batch > 1 and _mixes_batch(graph, node, states):
            raise PathxError(
                f"{node.place} works along the batch, so pictures are not explained one by one", usage=True
            )
        for value in node.outputs:
            if value is not None and states.get(value) is State.VARIES and graph.shapes[value.index][:1] != (batch,):
                shape = graph.shapes[value.index]
                raise PathxError(
                    f"{node.place} makes a tensor of shape {shape} without the batch of {batch} in front; use flatten(1) "
                    "rather than squeeze() or view(-1)",
                    usage=True,
                )


def _mixes_batch(graph: Graph, node: Node, states: dict[Value, State]) -> bool:
    source = next((value for value in node.inputs if states[value] is State.VARIES), None)
    rank = 0 if source is None else len(graph.shapes[source.index])
    if not rank or node.kind == "t":
        return node.kind == "t" and rank > 1
    if node.kind == "permute":
        return bool(node.args[1][0] % rank != 0)
    if node.kind == "index":
        return node.args[1][0] is not None
    named = [node.args[place] for place in _DIMENSIONS.get(node.kind, ()) if place < len(node.args)]
    dims = [dim for item in named for dim in (item if isinstance(item, (list, tuple)) else [item])]
    return any(isinstance(dim, int) and dim % rank == 0 for dim in dims)
