"""Receptive fields: which pixels of the input a unit can see, from the geometry of the operations alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathx.operations import PLAIN_LINEAR
from pathx.trace import Graph, Node, Value


@dataclass(frozen=True)
class Span:
    """Along one axis, the element at p sees the pixels step * p + low up to, not including, step * p + high."""

    step: int
    low: int
    high: int

    def under(self, stride: int, offset: int, reach: int) -> Span:
        """The span of an operation whose element p reads the elements stride * p + offset + [0, reach) of this one."""
        return Span(self.step * stride, self.low + self.step * offset, self.high + self.step * (offset + reach - 1))

    def __or__(self, other: Span) -> Span:
        return Span(self.step, min(self.low, other.low), max(self.high, other.high))


Field = tuple[Span, Span] | None  # vertical and horizontal; None sees everything


def boxes(field: Field, index: tuple[Tensor, ...], size: tuple[int, ...]) -> Tensor:
    """(…, 4) left, top, right, bottom of units by their coordinates, clipped to an input of shape `size`.

    Empty, (…, 0), where the input is no picture.
    """
    if len(size) != 3:
        return index[0].new_zeros(*index[0].shape, 0)
    _, height, width = size
    if field is None or len(index) < 2:
        return index[0].new_tensor([0, 0, width, height]).expand(*index[0].shape, 4)
    (down, across), top, left = field, field[0].step * index[-2], field[1].step * index[-1]
    sides = [
        (left + across.low).clamp(0, width),
        (top + down.low).clamp(0, height),
        (left + across.high).clamp(0, width),
        (top + down.high).clamp(0, height),
    ]
    return torch.stack(sides, -1)


def extent(field: Field, size: tuple[int, ...]) -> tuple[int, ...]:
    """(width, height) that any unit sees at most of an input of shape `size`; empty where that is no picture."""
    if len(size) != 3:
        return ()
    spans = ((size[2], 1), (size[1], 0))
    return tuple(limit if field is None else min(field[axis].high - field[axis].low, limit) for limit, axis in spans)


def receptive_fields(graph: Graph, varying: frozenset[Value]) -> dict[Value, Field]:
    """The field of every value that varies with the input."""
    fields: dict[Value, Field] = {graph.input: (Span(1, 0, 1), Span(1, 0, 1))}
    for node in graph.nodes:
        sources = [value for value in node.inputs if value in varying and value in fields]
        if sources:
            field = _field(graph, node, sources, fields)
            fields.update({value: field for value in node.outputs if value is not None})
    return fields


def _pair(value: Any) -> tuple[int, int]:
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return (values[0], values[-1])


def _field(graph: Graph, node: Node, sources: list[Value], fields: dict[Value, Field]) -> Field:
    field = fields[sources[0]]
    output = node.outputs[0]
    shape = graph.shapes[output.index] if output is not None else ()
    for other in sources[1:]:
        field = _join(field, fields[other])
    if field is None or len(shape) < 3:
        return None
    name, args = node.kind, node.args
    if name == "convolution" and len(shape) == 4 and not args[6]:
        kernel = graph.shapes[args[1].index][2:]
        return _slide(field, kernel, _pair(args[3]), _pair(args[4]), _pair(args[5]))
    if name in ("max_pool2d_with_indices", "avg_pool2d"):
        kernel = _pair(args[1])
        stride = _pair(args[2]) if len(args) > 2 and args[2] else kernel
        padding = _pair(args[3]) if len(args) > 3 else (0, 0)
        dilation = _pair(args[4]) if name.startswith("max") and len(args) > 4 else (1, 1)
        return _slide(field, kernel, stride, padding, dilation)
    if name == "constant_pad_nd":
        left, top = args[1][0], args[1][2] if len(args[1]) > 2 else 0
        return (field[0].under(1, -top, 1), field[1].under(1, -left, 1))
    axis = (args[1] if len(args) > 1 and isinstance(args[1], int) else 0) % len(shape) - len(shape)
    if name == "slice" and axis in (-1, -2):
        start = args[2] or 0
        start += graph.shapes[sources[0].index][axis] if start < 0 else 0
        step = args[4] if len(args) > 4 else 1
        spans = [span.under(step, start, 1) if a == axis else span for a, span in zip((-2, -1), field, strict=True)]
        return (spans[0], spans[1])
    keeps_place = graph.shapes[sources[0].index][-2:] == shape[-2:] and name not in PLAIN_LINEAR and name != "t"
    if name == "permute":
        keeps_place = [d % len(shape) for d in args[1]][-2:] == [len(shape) - 2, len(shape) - 1]
    if name == "transpose":
        keeps_place = max(d % len(shape) for d in args[1:3]) < len(shape) - 2
    if name == "cat":
        keeps_place = axis not in (-1, -2)
    return field if keeps_place else None


def _slide(field: tuple[Span, Span], kernel: Any, stride: Any, padding: Any, dilation: Any) -> Field:
    spans = [
        span.under(step, -pad, spacing * (size - 1) + 1)
        for span, size, step, pad, spacing in zip(field, kernel, stride, padding, dilation, strict=True)
    ]
    return (spans[0], spans[1])


def _join(first: Field, second: Field) -> Field:
    if first is None or second is None or any(a.step != b.step for a, b in zip(first, second, strict=True)):
        return None
    return (first[0] | second[0], first[1] | second[1])
