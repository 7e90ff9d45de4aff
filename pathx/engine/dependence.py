"""How the values of a traced graph depend on the image, and the refusal of models that no gates make linear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import torch

from pathx.engine.record.operations import Graph, Node, Value
from pathx.engine.rules.geometry import Shapes
from pathx.engine.rules.table import BATCH_REMEDIES, DECISIONS, FINAL, SAME_FOR_ALL_IMAGES, SELF_MASKS, SPLITS, known
from pathx.errors import PathxError


class Dependence(Enum):
    """How a value depends on the image."""

    FIXED = 0  # not at all
    FROZEN = 1  # it is constant around the image: comparisons, indices
    VARIES = 2  # linearly, once the gates are frozen


class Watch:
    """Follows a recording as it is made: refuses at once what rules a model out, and says which tensors rules will ask for."""

    def __init__(self, image: Value) -> None:
        self.states: dict[Value, Dependence] = {image: Dependence.VARIES}

    def __call__(self, node: Node, shapes: tuple[tuple[int, ...] | None, ...]) -> list[Value]:
        """The values of a node that must be kept.

        Args:
            shapes: of what the node made.
        """
        if node.kind in FINAL:  # may be the last operation; whether it is shows at the end
            self.states.update({value: Dependence.FROZEN for value in node.outputs if value is not None})
            return []
        _follow(node, self.states)
        output = node.outputs[0] if node.outputs else None
        if output is None or self.states[output] is not Dependence.VARIES:
            return []
        may_be_logits = sum(size != 1 for size in (shapes[0] or ())[1:]) <= 1
        return [*_kept(node, self.states), *([output] if may_be_logits else [])]


def _kept(node: Node, states: dict[Value, Dependence]) -> Iterator[Value]:
    """The values of a node that its rules may ask for, where what it makes varies with the image."""
    operation = known(node)
    varying = [value for value in node.inputs if states.get(value) is Dependence.VARIES]
    others = [value for value in node.inputs if states.get(value) is not Dependence.VARIES]
    yield from others
    masked = any(states.get(value) is Dependence.FROZEN for value in others)
    is_gate = operation.gate is not None and len(varying) == 1 and (masked or node.kind not in SELF_MASKS)
    saves = operation.saves or ("inputs" if is_gate else None)
    if saves == "inputs":
        yield from varying
    elif saves is not None:
        yield from (value for value in node.outputs[saves == "indices" :][:1] if value is not None)


def states_of(graph: Graph, nodes: Iterable[Node]) -> dict[Value, Dependence]:
    """The state of every value that the nodes read or make."""
    states = dict.fromkeys([*graph.parameters.values(), *graph.constants], Dependence.FIXED)
    states[graph.input] = Dependence.VARIES
    for node in nodes:
        _follow(node, states)
        for value in node.outputs:
            if value is None or states[value] is Dependence.FIXED:
                continue
            if graph.dtypes[value.index].is_complex:
                raise PathxError(
                    f"the model computes with complex numbers ({node.place}): pathx explains networks of real numbers",
                    usage=True,
                )
            if not graph.dtypes[value.index].is_floating_point:  # rounded: constant around the image
                states[value] = Dependence.FROZEN
    return states


def _follow(node: Node, states: dict[Value, Dependence]) -> None:
    """Add the states of what a node makes; refuses operations that are not linear for a given image."""
    inputs = node.inputs[1:] if known(node).reading == "shape" else node.inputs
    state = max(
        (states.get(value, Dependence.FIXED) for value in inputs), key=lambda s: s.value, default=Dependence.FIXED
    )
    if node.kind in DECISIONS and state is not Dependence.FIXED:
        raise PathxError(
            f"the model decides by the values of its input (.item(), .numpy() or `if` on a tensor in {node.module}): pathx needs a "
            "network whose operations are the same for every image",
            usage=True,
        )
    if torch.Tag.nondeterministic_seeded in node.op.tags and known(node).reading != "nonlinear":
        raise PathxError(
            f"the model draws random numbers ({node.place}), so no two runs of it agree; use dropout modules, which rest "
            "in eval mode",
            usage=True,
        )
    if state is Dependence.VARIES:
        state = _state_of(node, states)
    for position, value in enumerate(node.outputs):
        if value is not None:  # what comes beside the first output (indices, statistics) is frozen, parts are not
            aside = position > 0 and state is Dependence.VARIES and node.kind not in SPLITS
            states[value] = Dependence.FROZEN if aside else state


def _state_of(node: Node, states: dict[Value, Dependence]) -> Dependence:
    """How what an operation makes of varying values depends on the image; refuses what is not linear for a given one."""
    operation = known(node)
    if operation.reading == "locally constant" or _is_integer(node.kwargs.get("dtype")):
        return Dependence.FROZEN
    varying = [p for p, arg in enumerate(node.args) if any(states.get(v) is Dependence.VARIES for v in _values_in(arg))]
    if operation.refuses is not None and (reason := operation.refuses(node, varying)) is not None:
        raise PathxError(
            f"the model is not a ReLU network: {node.place} {reason}, so the network has no exact path", usage=True
        )
    if operation.transpose is None and operation.gate is None:
        if node.op.namespace == "quantized" or "quantize" in node.kind:
            raise PathxError(f"the model is quantised ({node.place}): explain the network it was made from", usage=True)
        raise PathxError(
            f"the model is not a ReLU network: {node.place} {_WHY}"
            if operation.reading == "nonlinear"
            else _no_rule(node),
            usage=True,
        )
    if node.kind in SAME_FOR_ALL_IMAGES and any(states.get(value) is Dependence.FROZEN for value in node.inputs):
        raise PathxError(
            f"the model computes an operand of {node.place} from the image: it must be the same for every image",
            usage=True,
        )
    if not set(varying) <= set(operation.linear_in) or any(_values_in(arg) for arg in node.kwargs.values()):
        raise PathxError(_no_rule(node, " with these arguments computed from the image"), usage=True)
    if len(varying) > 1 and not operation.jointly_linear:
        raise PathxError(
            f"the model multiplies or divides by what it computed from the image: {node.place} {_WHY}", usage=True
        )
    return Dependence.VARIES


def _no_rule(node: Node, how: str = "") -> str:
    return f"pathx has no rule for {node.place}{how}: replace it by operations that pathx knows"


def _is_integer(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)


_WHY = "is not linear for a given input, so the network has no exact path"


def _values_in(arg: Any) -> list[Value]:
    if isinstance(arg, Value):
        return [arg]
    return [v for item in arg for v in _values_in(item)] if isinstance(arg, (list, tuple)) else []


def shapes_of(graph: Graph, node: Node, states: dict[Value, Dependence]) -> Shapes:
    """A node with the shapes of its values."""
    values = [*node.inputs, *(value for value in node.outputs if value is not None)]
    varying = [value for value in node.inputs if states[value] is Dependence.VARIES]
    depending = [value for value in node.inputs if states[value] is not Dependence.FIXED]
    shapes = {value: graph.shapes[value.index] for value in values}
    return Shapes(node, shapes, varying, depending, {}, graph.shapes[graph.input.index][0])


def _makes_varying(node: Node, states: dict[Value, Dependence]) -> bool:
    return any(value is not None and states[value] is Dependence.VARIES for value in node.outputs)


def check_batch(graph: Graph, nodes: Iterable[Node], states: dict[Value, Dependence]) -> None:
    """Every varying value must keep the images apart in its first dimension."""
    batch = graph.shapes[graph.input.index][0]
    for node in nodes:
        call = shapes_of(graph, node, states)
        operation = known(node)
        if _makes_varying(node, states) and not operation.keeps_batch(call):
            remedy = f"; {BATCH_REMEDIES[node.kind]}" if node.kind in BATCH_REMEDIES else ""
            raise PathxError(
                f"{node.place} works along the batch, so images are not explained one by one{remedy}", usage=True
            )
        for value in node.outputs:
            if (
                value is not None
                and states.get(value) is Dependence.VARIES
                and graph.shapes[value.index][:1] != (batch,)
            ):
                shape = graph.shapes[value.index]
                remedy = BATCH_REMEDIES.get(
                    node.kind, "keep the images in the first dimension (flatten(1) rather than squeeze() or view(-1))"
                )
                raise PathxError(
                    f"{node.place} makes a tensor of shape {shape} without the batch of {batch} in front; {remedy}",
                    usage=True,
                )
