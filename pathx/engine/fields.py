"""Receptive fields and places: which pixels a unit can see, and where it is, from the geometry of the operations alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from pathx.engine.dependence import Reading, shapes_of
from pathx.engine.record.operations import Graph, Node, Value
from pathx.engine.rules.geometry import Field
from pathx.engine.rules.table import record_of
from pathx.explanation import Grid, Places


def boxes(field: Field | None, index: tuple[Tensor, ...], size: tuple[int, ...]) -> Tensor:
    """(…, 4) left, top, right, bottom of units by their coordinates; all zero for a unit that sees nothing.

    Empty, (…, 0), where the input, of shape `size`, is no image.
    """
    if len(size) != 3 or field is None:
        return index[0].new_zeros(*index[0].shape, 0)
    sides = []
    for table in field.tables:
        table = table[:2].to(index[0].device)
        extra = table.dim() - 1 - len(index)  # the batch, where it is in front
        table = table.reshape(2, *table.shape[1 + extra :])
        places = [one.clamp(max=length - 1) for one, length in zip(index, table.shape[1:], strict=True)]
        seen = torch.stack([side[tuple(places)] for side in table])
        sides.append(seen.where(seen.isfinite(), torch.zeros_like(seen)).long())
    (top, bottom), (left, right) = sides
    return torch.stack([left, top, -right, -bottom], -1)


def find_places(
    field: Field | None, shape: tuple[int, ...], size: tuple[int, ...]
) -> tuple[Places, Grid | None] | None:
    """Where the units of a tensor of this shape are in an input of shape `size`; None where they have no place.

    They lie on a grid: rows and columns at equal distances, as a feature map has them, or patches.

    Returns: the centre of the first place and the step to the next one, down and across, and where each unit is on the grid; None
        for a map (channels, height, width) whose units are in order.
    """
    if field is None or len(size) != 3:
        return None
    tables = [table[2:].reshape(2, *table.shape[table.dim() - len(shape) :]) for table in field.tables]
    varies = [dim for dim in range(len(shape)) if any(table.shape[dim + 1] > 1 for table in tables)]
    if not varies:
        return None
    first, last = varies[0], varies[-1] + 1
    lines, numbers = [], []
    for table, length in zip(tables, size[1:], strict=True):
        cells = table.expand(2, *(shape[d] if first <= d < last else 1 for d in range(len(shape)))).flatten(1)
        line = _line((cells[0] - cells[1]) / 2, length)
        if line is None:
            return None
        lines.append(line[0])
        numbers.append(line[1])
    rows, columns = numbers
    height, width = int(rows.max()) + 1, int(columns.max()) + 1
    if height * width == 1:
        return None
    cells = torch.where((rows < 0) | (columns < 0), -1, rows * width + columns)
    in_order = torch.equal(cells, torch.arange(height * width))
    is_map = in_order and len(shape) == 3 and last == 3 and shape[1:] == (height, width)
    grid = None if is_map else Grid(height, width, prod(shape[last:]), None if in_order else tuple(cells.tolist()))
    return (lines[0], lines[1]), grid


def _line(centres: Tensor, length: int) -> tuple[tuple[float, float], Tensor] | None:
    """The first of some places along an axis, the step to the next one, and the number of each; -1 for those that are none.

    None where they are not at equal distances, but for half a step that a border may move them.
    """
    known = centres.isfinite()
    places = centres[known].unique()
    if not len(places):
        return None
    steps = places.diff()
    step = float(steps.median()) if len(steps) else float(length)
    middle = len(places) // 2
    start = float(places[middle]) - step * middle
    numbers = ((centres - start) / step).where(known, torch.full_like(centres, -1)).round().long()
    expected = start + step * torch.arange(len(places))
    if ((places - expected).abs() > step / 2).any():
        return None
    return (start, step), numbers


def extent(field: Field | None, size: tuple[int, ...]) -> tuple[int, ...]:
    """(width, height) that any unit sees at most of an input of shape `size`; empty where that is no image."""
    if field is None or len(size) != 3:
        return ()
    lengths = [(-table[1] - table[0]).where(table[0].isfinite(), torch.zeros(())).max() for table in field.tables]
    return int(lengths[1]), int(lengths[0])


def fields_above(graph: Graph, nodes: Iterable[Node], reading: Reading, source: Value) -> dict[Value, Field]:
    """What the elements of every value that is computed from `source` see of that; empty where it is no feature map."""
    size = graph.shapes[source.index]
    if len(size) != 4:
        return {}
    fields = {source: Field.of_input(size)}
    for node in nodes:
        if any(value in fields for value in reading.linear.get(node.index, ())):
            call = shapes_of(graph, node, reading)
            call = replace(call, varying=[value for value in call.varying if value in fields], fields=fields)
            rule = record_of(node).field
            seen = rule(call) if rule is not None and call.varying else None
            for output, value in enumerate(node.outputs):
                if value is not None:
                    field = seen[output] if isinstance(seen, list) else seen
                    fields[value] = field or Field.everything(size, len(graph.shapes[value.index]))
    return fields
