"""Receptive fields: which pixels of the input a unit can see, from the geometry of the operations alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.dependence import Dependence, shapes_of
from pathx.engine.record.operations import Graph, Node, Value
from pathx.engine.rules.geometry import Field, Span
from pathx.engine.rules.table import known


def boxes(field: Field, index: tuple[Tensor, ...], size: tuple[int, ...]) -> Tensor:
    """(…, 4) left, top, right, bottom of units by their coordinates, clipped to an input of shape `size`.

    Empty, (…, 0), where the input is no image.
    """
    if len(size) != 3:
        return index[0].new_zeros(*index[0].shape, 0)
    _, height, width = size
    if field is None or len(index) < 2:
        return index[0].new_tensor([0, 0, width, height]).expand(*index[0].shape, 4)
    (down, across), top, left = field, field[0].step * index[-2], field[1].step * index[-1]
    sides = [
        (left + across.low).clamp(across.start, across.stop),
        (top + down.low).clamp(down.start, down.stop),
        (left + across.high).clamp(across.start, across.stop),
        (top + down.high).clamp(down.start, down.stop),
    ]
    return torch.stack(sides, -1)


def places(
    field: Field, shape: tuple[int, ...], size: tuple[int, ...]
) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Down and across, the centre of what the first unit of a map sees, unclipped, and the step to the next one.

    None where units have no place in an input of shape `size`: a vector, a map of one element, an input that is no image.
    """
    if field is None or len(size) != 3 or len(shape) != 3 or shape[1] * shape[2] == 1:
        return None
    down, across = (((span.low + span.high) / 2, float(span.step)) for span in field)
    return down, across


def extent(field: Field, size: tuple[int, ...]) -> tuple[int, ...]:
    """(width, height) that any unit sees at most of an input of shape `size`; empty where that is no image."""
    if len(size) != 3:
        return ()
    spans = ((size[2], 1), (size[1], 0))
    return tuple(limit if field is None else min(field[axis].high - field[axis].low, limit) for limit, axis in spans)


def receptive_fields(graph: Graph, nodes: Iterable[Node], states: dict[Value, Dependence]) -> dict[Value, Field]:
    """What the elements of every value that varies with the input see of it."""
    return fields_above(graph, nodes, states, graph.input)


def fields_above(
    graph: Graph, nodes: Iterable[Node], states: dict[Value, Dependence], source: Value
) -> dict[Value, Field]:
    """What the elements of every value that is computed from `source` see of that."""
    size = graph.shapes[source.index]
    whole = (Span.input(size[-2]), Span.input(size[-1])) if len(size) == 4 else None
    fields: dict[Value, Field] = {source: whole}
    for node in nodes:
        if any(value in fields for value in node.inputs):
            call = shapes_of(graph, node, states)
            call = replace(call, varying=[value for value in call.varying if value in fields], fields=fields)
            rule = known(node).field
            field = rule(call) if rule is not None and call.varying else None
            fields.update({value: field for value in node.outputs if value is not None})
    return fields
