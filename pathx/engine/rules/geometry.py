"""What operations do with the batch and with places, from shapes and settings alone.

A batch rule says whether a call leaves the images of a batch apart. A field rule gives the receptive fields of what it
makes; without one, they are the whole input.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pathx.engine.record.operations import Node, Value


@dataclass(frozen=True)
class Span:
    """Receptive fields along one axis: the element at p sees the pixels [step * p + low, step * p + high).

    Args:
        start, stop: no element of the map sees pixels outside of [start, stop).
    """

    step: int
    low: int
    high: int
    start: int
    stop: int

    @staticmethod
    def input(size: int) -> Span:
        """Every pixel sees itself."""
        return Span(1, 0, 1, 0, size)

    def under(self, stride: int, offset: int, reach: int, size: int) -> Span:
        """For a map of `size` elements, of which p reads the elements stride * p + offset + [0, reach) of this one."""
        ends = (self.step * offset, self.step * (offset + reach - 1))
        step, low, high = self.step * stride, self.low + min(ends), self.high + max(ends)
        last = step * (size - 1)
        start, stop = low + min(0, last), high + max(0, last)
        return Span(step, low, high, max(self.start, start), min(self.stop, stop))

    def __or__(self, other: Span) -> Span:
        return Span(
            self.step,
            min(self.low, other.low),
            max(self.high, other.high),
            min(self.start, other.start),
            max(self.stop, other.stop),
        )


Field = tuple[Span, Span] | None
"""Of a map whose last two dimensions are height and width: down and across. None sees everything."""


@dataclass(frozen=True, eq=False)
class Shapes:
    """A recorded call with the shapes of its values.

    Args:
        shapes: by value, the batch included.
        varying: the inputs that vary with the image.
        depending: the varying ones and those that are frozen at it.
        fields: of the varying inputs.
    """

    node: Node
    shapes: dict[Value, tuple[int, ...]]
    varying: list[Value]
    depending: list[Value]
    fields: dict[Value, Field]
    batch: int

    def arg(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.node.args):
            return self.node.args[position]
        return self.node.kwargs.get(name, default)

    @property
    def source(self) -> tuple[int, ...]:
        """Shape of the first input that varies."""
        return self.shapes[self.varying[0]]

    @property
    def made(self) -> tuple[int, ...]:
        """Shape of the first output."""
        output = self.node.outputs[0]
        return self.shapes[output] if output is not None else ()

    def dims(self, position: int, name: str, default: Any = None) -> list[int] | None:
        """The dimensions that an argument names, counted from the front; None where it names none."""
        found = self.arg(position, name, default)
        if found is None or found == []:
            return None
        rank = max(1, len(self.source))
        return [dim % rank for dim in (found if isinstance(found, (list, tuple)) else [found])]


BatchRule = Callable[[Shapes], bool]
FieldRule = Callable[[Shapes], Field]


# --- batch rules ----------------------------------------------------------------------------------------------------


def elementwise(call: Shapes) -> bool:
    """What depends on the images has the rank of the result, with the images in front: broadcasting cannot mix them.

    One image has nothing to be mixed with, however it is broadcast.
    """
    rank = len(call.made)
    return call.batch == 1 or all(
        len(shape) == rank and shape[0] == call.batch for shape in (call.shapes[value] for value in call.depending)
    )


def batch_in_front(call: Shapes) -> bool:
    """What depends on the images has them in front; for operations that keep the first dimension as it is."""
    return all(call.shapes[value][:1] == (call.batch,) for value in call.depending)


def along(position: int, name: str = "dim", default: Any = None) -> BatchRule:
    """Works along the dimensions that an argument names (all, where it names none): none may be the batch dimension."""

    def keeps_batch(call: Shapes) -> bool:
        dims = call.dims(position, name, default)
        return batch_in_front(call) and dims is not None and 0 not in dims

    return keeps_batch


# --- field rules ----------------------------------------------------------------------------------------------------


def union_of_fields(call: Shapes) -> Field:
    """What any of the varying inputs sees."""
    fields = [call.fields.get(value) for value in call.varying]
    result = fields[0]
    for other in fields[1:]:
        if result is None or other is None or any(a.step != b.step for a, b in zip(result, other, strict=True)):
            return None
        result = (result[0] | other[0], result[1] | other[1])
    return result


def keeps_place(call: Shapes) -> Field:
    """Every element sees what the inputs' elements at its own place see."""
    places = {call.shapes[value][-2:] for value in call.varying}
    return union_of_fields(call) if places == {call.made[-2:]} and len(call.made) >= 3 else None


def keeps_place_along(position: int, name: str = "dim", default: Any = None) -> FieldRule:
    """Keeps places where none of the dimensions that an argument names is height or width."""

    def field(call: Shapes) -> Field:
        dims = call.dims(position, name, default)
        if dims is None or any(dim >= len(call.source) - 2 for dim in dims) or len(call.made) < 3:
            return None
        return union_of_fields(call)

    return field


def sliding_field(call: Shapes, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Field:
    """What a sliding window over maps sees."""
    field = union_of_fields(call)
    if field is None or len(call.source) != 4:
        return None
    sizes = zip(field, pair(kernel), pair(stride), pair(padding), pair(dilation), call.made[-2:], strict=True)
    down, across = (span.under(step, -pad, gap * (reach - 1) + 1, size) for span, reach, step, pad, gap, size in sizes)
    return (down, across)


def shifted_field(call: Shapes, offsets: tuple[int, int], steps: tuple[int, int] = (1, 1)) -> Field:
    """What a map sees whose element p is the element step * p + offset of its input."""
    field = union_of_fields(call)
    if field is None or len(call.made) < 3:
        return None
    parts = zip(field, steps, offsets, call.made[-2:], strict=True)
    down, across = (span.under(step, offset, 1, size) for span, step, offset, size in parts)
    return (down, across)


def pair(value: Any) -> tuple[Any, Any]:
    """A setting such as a stride, for height and width."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return (values[0], values[-1])
