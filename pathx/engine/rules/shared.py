"""What rules of several families share: sums under windows, windows in other shapes, and autograd's VJP of one operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Node, Value, map_leaves, values_in
from pathx.engine.rules.table import Call, Cotangents, has, precise, record, record_of
from pathx.engine.window import Corners, Origin, Window, unravel

# --- sums -----------------------------------------------------------------------------------------------------------


def total(cotangent: Window, values: Tensor, *, finite: bool = False) -> Tensor:
    """(P,) sums of the cotangents times the values (B or 1, *sizes) under them. Zero times infinity counts as zero.

    Args:
        finite: the values are, so there is nothing to mask.
    """
    cotangent = cotangent.clear_outside()
    product = cotangent.scale(values).data
    product = product if finite else product.masked_fill(cotangent.data == 0, 0.0)
    return product.reshape(len(product), -1).sum(1, dtype=precise(product))


def channel_total(cotangent: Window, values: Tensor) -> Tensor:
    """(P,) sums of the cotangents times one value per channel."""
    data = cotangent.clear_outside().data
    sums = data.sum(tuple(range(2, data.dim()))) if data.dim() > 2 else data
    if cotangent.covers(0):
        return (sums * values).sum(1, dtype=precise(data))
    reduced = replace(cotangent, data=sums, origin=cotangent.origin[:1], shape=cotangent.shape[:1])
    return reduced.scale(values[None]).data.sum(1, dtype=precise(data))


def totals(terms: list[tuple[Window, Tensor]]) -> Tensor | None:
    """(P,) sums over windows of the same rows, each with values of its own; None where there are no windows."""
    sums = [total(window, align(values, window)) for window, values in terms]
    return sum(sums[1:], sums[0]) if sums else None


def unbroadcast(cotangent: Window, shape: tuple[int, ...]) -> Window:
    """Cotangents of an input that was broadcast to the output's shape: sums over the repeats."""
    if cotangent.shape == shape:
        return cotangent
    data = cotangent.dense().data
    extra = data.dim() - 1 - len(shape)
    if extra:
        data = data.flatten(1, extra).sum(1) if extra > 1 else data.sum(1)
    for dim, size in enumerate(shape, start=1):
        if size == 1 and data.shape[dim] != 1:
            data = data.sum(dim, keepdim=True)
    return cotangent.whole(data)


def align(values: Tensor, cotangent: Window) -> Tensor:
    """Frozen or fixed values as (B or 1, *sizes) against the map of the cotangents, in their type."""
    values = values.to(cotangent.data)
    missing = len(cotangent.shape) + 1 - values.dim()
    return values.reshape(*(1,) * missing, *values.shape) if missing > 0 else values


# --- windows in other shapes ----------------------------------------------------------------------------------------


def insert_axes(cotangent: Window, axes: tuple[int, ...]) -> Window:
    """The window with dimensions of size 1 put in at `axes`."""
    for axis in axes:
        cotangent = replace(
            cotangent,
            data=cotangent.data.unsqueeze(axis + 1),
            origin=(*cotangent.origin[:axis], 0, *cotangent.origin[axis:]),
            shape=(*cotangent.shape[:axis], 1, *cotangent.shape[axis:]),
        )
    return cotangent


def reshape_window(cotangent: Window, shape: tuple[int, ...]) -> Window:
    """The window in the coordinates of a map of another shape and as many elements.

    Boxes are kept where dimensions are the same, are covered, hold one element each, or are merged behind a box.
    """
    if cotangent.shape == shape:
        return cotangent
    if cotangent.is_full:
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    if any(cotangent.overhang) and not cotangent.clean:
        cotangent = cotangent.clear_outside()  # a box beside the map may come to lie on it
    origin: list[Origin] = [0] * len(shape)
    extent = [1] * len(shape)
    for old, new in matching_dims(cotangent.shape, shape):
        sizes = tuple(shape[d] for d in new)
        first = old[0] if old else 0
        if all(cotangent.covers(d) for d in old):
            below: Sequence[Origin] = [0] * len(new)
            lengths: Sequence[int] = sizes
        elif len(old) == len(new) == 1:
            below, lengths = [cotangent.origin[first]], [cotangent.extent[first]]
        elif all(cotangent.extent[d] == 1 for d in old):
            below, lengths = _single_places(cotangent, old, sizes), [1] * len(new)
        elif len(new) == 1 and all(cotangent.covers(d) for d in old[1:]):
            start, rest = cotangent.origin[first], prod(cotangent.shape[d] for d in old[1:])
            below = [start * rest if isinstance(start, int) else start.move(rest, 0)]
            lengths = [cotangent.extent[first] * rest]
        else:
            return cotangent.whole(cotangent.dense().data.reshape(-1, *shape))
        for d, start, length in zip(new, below, lengths, strict=True):
            origin[d], extent[d] = start, length
    data = cotangent.data.reshape(-1, *extent)
    return replace(cotangent, data=data, origin=tuple(origin), shape=shape)


def _single_places(cotangent: Window, dims: Sequence[int], sizes: tuple[int, ...]) -> Sequence[Origin]:
    """Where boxes of one element along some dimensions lie in as many elements of other sizes."""
    flat: Tensor | int = 0
    for d in dims:
        start, size = cotangent.origin[d], cotangent.shape[d]
        numbers = start if isinstance(start, int) else start.numbers.clamp(0, size - 1)
        flat = flat * size + numbers
    if isinstance(flat, int):
        return unravel(flat, sizes)
    return [Corners(numbers, size) for numbers, size in zip(unravel(flat, sizes), sizes, strict=True)]


def matching_dims(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of dimensions of two shapes that hold the same elements, as short as can be, but for those of size 1."""
    olds, news = ([d for d, size in enumerate(shape) if size != 1] for shape in (old, new))
    runs = []
    while olds or news:
        ends = [1, 1]
        while (below := prod(old[d] for d in olds[: ends[0]])) != (above := prod(new[d] for d in news[: ends[1]])):
            ends[0 if below < above else 1] += 1
        runs.append((olds[: ends[0]], news[: ends[1]]))
        olds, news = olds[ends[0] :], news[ends[1] :]
    return runs


def window_below(cotangent: Window, data: Tensor, channel: Origin, shape: tuple[int, ...], geometry: Any) -> Window:
    """The window below a sliding-window operation: origins times stride minus padding, overhanging by the padding.

    A box that is the same for all rows is cut to the map instead.

    Args:
        data: (P, channels, …) what the boxes of the cotangents send down, each from its first to its last element.
        channel: where the boxes start along the channels.
        geometry: stride and padding of every spatial dimension.
    """
    stride, padding = geometry
    origin: list[Origin] = [channel]
    for dim, (step, pad) in enumerate(zip(stride, padding, strict=True), start=1):
        above = cotangent.origin[dim]
        if isinstance(above, Corners):
            origin.append(above.move(step, -pad))
            continue
        start = above * step - pad
        first, last = max(0, -start), min(data.shape[dim + 1], shape[dim] - start)
        if first < last:
            data, start = data.narrow(dim + 1, first, last - first), start + first
        else:  # it saw nothing but padding
            data, start = torch.zeros_like(data.narrow(dim + 1, 0, 1)), 0
        origin.append(start)
    below = tuple(zip(origin[1:], data.shape[2:], shape[1:], strict=True))
    clean = not any(isinstance(start, Corners) and start.sticks_out(extent, size) for start, extent, size in below)
    window = replace(cotangent, data=data, origin=tuple(origin), shape=shape, clean=clean)
    return window.dense() if any(extent > size for _, extent, size in below) else window


def order_of_dims(kind: str, args: tuple[Any, ...], rank: int) -> list[int]:
    """Which dimension of the input each dimension of the output is."""
    if kind == "permute":
        return [d % rank for d in args[1]]
    first, second = (args[1] % rank, args[2] % rank) if len(args) > 2 else (0, 1)
    order = list(range(rank))
    if rank > 1:
        order[first], order[second] = second, first
    return order


# --- autograd's VJP of one operation, on whole maps -----------------------------------------------------------------


def plain(*names: str, **fields: Any) -> None:
    """Register operations that are linear, plus a constant, in their varying arguments, and have no rule of their own."""
    record(*names, **{"transpose": vjp, "constant": vjp_constant, **fields})


def vjp(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Autograd's transpose of one linear operation."""
    cotangent, sources = cotangent.dense(), varying_inputs(call)
    zeros = [cotangent.data.new_zeros(len(cotangent.data), *call.shapes[value]) for value in sources]
    pull = torch.func.vjp(lambda *given: run_on_rows(call, output, sources, given, cotangent.image), *zeros)[1]
    return [(value, cotangent.whole(data)) for value, data in zip(sources, pull(cotangent.data), strict=True)]


def vjp_constant(call: Call, cotangent: Window) -> Tensor | None:
    """The constant part of such an operation: what it makes of zeros."""
    sources = varying_inputs(call)
    images = max([len(tensor) for tensor in (*call.saved.values(), *_fixed_per_image(call))], default=1)
    zeros = [cotangent.data.new_zeros(images, *call.shapes[value]) for value in sources]
    image = torch.arange(images, device=cotangent.data.device)
    return total(cotangent, run_on_rows(call, 0, sources, zeros, image))


def varying_inputs(call: Call) -> list[Value]:
    """The arguments that vary, each once."""
    return list(dict.fromkeys(value for value in values_in(list(call.args)) if call.varies(value)))


def run_on_rows(call: Call, output: int, sources: list[Value], given: Any, image: Tensor) -> Tensor:
    """The operation on rows of the given values; tensors with one entry per image are read at each row's image."""
    places = dict(zip(sources, given, strict=True))

    def at_rows(tensor: Tensor) -> Tensor:
        return tensor.index_select(0, image) if len(tensor) > 1 else tensor.expand(len(image), *tensor.shape[1:])

    if call.batch > 1:
        return run_call(call, output, places, at_rows, _fixed_per_image(call))
    # With one image a first dimension of 1 is the batch or is broadcast. It is neither where the rows do not come out.
    try:
        made = run_call(call, output, places, at_rows, _fixed_per_image(call))
    except RuntimeError as error:
        try:
            return run_call(call, output, places, at_rows)
        except RuntimeError:
            raise error from None  # such as that memory is short, which the second attempt cannot say
    return made if len(made) == len(image) else run_call(call, output, places, at_rows)


def run_call(
    call: Call,
    output: int,
    places: Mapping[Value, Tensor],
    read: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    fixed: Sequence[Tensor] = (),
) -> Tensor:
    """One output of the operation, with tensors in the places of its varying arguments.

    Args:
        read: what to take of frozen tensors, and of those that are fixed and named.
    """
    numbers = {id(tensor) for tensor in fixed}

    def actual(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return places[leaf] if leaf in places else read(call.saved[leaf])
        return read(leaf) if id(leaf) in numbers else leaf

    kwargs = {name: map_leaves(arg, actual) for name, arg in call.kwargs.items()}
    out = call.node.op(*map_leaves(call.args, actual), **kwargs)
    return out[output] if isinstance(out, (tuple, list)) else out  # type: ignore[no-any-return]


_SHARED_WEIGHTS = {"mm": (0, 1), "addmm": (1, 2), "linear": (1, 2), "convolution": (1, 2)}
"""Positions of tensors that are the same for every image, however long their first dimension is."""


def _fixed_per_image(call: Call) -> list[Tensor]:
    """Fixed tensors among the arguments that have the images of the batch in front."""
    rank = 1 + len(call.shapes[call.node.outputs[0]])  # type: ignore[index]
    ranks = {rank, rank - 1} if call.node.kind in ("stack", "select_scatter") else {rank}
    if call.node.kind == "index_put":  # the rank of the part that is written
        places: list[int] = [index.dim() for index in call.args[1] if index is not None]
        ranks.add(rank - len(places) + max(places))
    found: list[Tensor] = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, Tensor) and leaf.dim() in ranks and len(leaf) == call.batch:
            found.append(leaf)

    weights = _SHARED_WEIGHTS.get(call.node.kind, ())
    args = [arg for position, arg in enumerate(call.args) if position not in weights]
    map_leaves([*args, *call.kwargs.values()], look)
    return found


# --- the same with the tensors of one image whole -------------------------------------------------------------------


def vjp_of_one(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Autograd's transpose of an operation on the tensors of one image, wherever the batch is in them."""
    cotangent, sources = cotangent.dense(), varying_inputs(call)
    zeros = [cotangent.data.new_zeros(call.shapes[value]) for value in sources]
    run = torch.func.vjp(lambda *given: run_call(call, output, dict(zip(sources, given, strict=True))), *zeros)
    return [
        (value, cotangent.whole(data)) for value, data in zip(sources, torch.vmap(run[1])(cotangent.data), strict=True)
    ]


def constant_of_one(call: Call, cotangent: Window) -> Tensor | None:
    """The constant part of such an operation: what it makes of zeros."""
    made = run_call(call, 0, {value: cotangent.data.new_zeros(call.shapes[value]) for value in varying_inputs(call)})
    return total(cotangent, made[None]) if made.any() else None


_ANYWHERE = ("add", "sub", "rsub", "neg", "mul", "div", "where", "masked_fill", "expand", "addmm", "mm", "linear")
"""Operations whose rules ask for no batch."""


def lift(node: Node, ranks: Mapping[Value, int]) -> tuple[Any, ...] | None:
    """The arguments of a call as they are with one more dimension in front of its tensors; None where that is not known.

    Args:
        ranks: of its values.
    """
    args, kind = list(node.args), node.kind
    if kind in ("matmul", "bmm"):
        return node.args if all(ranks[value] > 1 for value in node.inputs) else None
    if kind in _ANYWHERE or has(node, "view", "copy", "last dimensions"):
        return node.args
    position = record_of(node).dims
    if position is None or len(node.inputs) > 1:
        return None
    if len(args) == position and has(node, "part"):
        args.append(0)
    named = args[position:] if kind == "transpose" else args[position] if len(args) > position else None
    dims = [named] if isinstance(named, int) else named
    if not dims:
        return None
    dims = [dim + (dim >= 0) for dim in dims]
    if kind == "transpose":
        return (args[0], *dims)
    if kind == "permute":
        dims = [0, *(dim % (ranks[args[0]] + 1) for dim in dims)]
    args[position] = dims[0] if isinstance(named, int) else dims
    return tuple(args)
