"""What rules of several families share: sums under windows, windows in other shapes, and autograd's VJP of one operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Value, map_leaves, values_in
from pathx.engine.rules.table import Call, Cotangents, has, precise, record, record_of
from pathx.engine.window import Corners, Origin, Window

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
    """The window in the coordinates of a map of another shape and as many elements."""
    if cotangent.shape == shape:
        return cotangent
    if cotangent.is_full:
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    if cotangent.is_one_hot:
        flat = cotangent.index().reshape(-1).expand(len(cotangent.data))
        one_hot = Window.one_hot(
            cotangent.clear_outside().data.reshape(-1), flat, shape, cotangent.row, cotangent.image
        )
        return replace(one_hot, ordered=cotangent.ordered)
    # Trailing dimensions that both shapes share, and those of size 1, keep their boxes.
    old = [d for d, size in enumerate(cotangent.shape) if size != 1]
    new = [d for d, size in enumerate(shape) if size != 1]
    shared = 0
    while shared < min(len(old), len(new)) and cotangent.shape[old[-1 - shared]] == shape[new[-1 - shared]]:
        shared += 1
    if not all(cotangent.covers(d) for d in old[: len(old) - shared]):
        cotangent = cotangent.dense()
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    if any(cotangent.overhang[d] for d, size in enumerate(cotangent.shape) if size == 1):
        cotangent = cotangent.clear_outside()  # a box beside the map would come to lie on it
    matched = dict(zip(new[len(new) - shared :], old[len(old) - shared :], strict=True))
    extent = [cotangent.extent[matched[d]] if d in matched else shape[d] for d in range(len(shape))]
    return replace(
        cotangent,
        data=cotangent.data.reshape(-1, *extent),
        origin=tuple(cotangent.origin[matched[d]] if d in matched else 0 for d in range(len(shape))),
        shape=shape,
    )


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
    cotangent, sources = cotangent.dense(), _varying(call)
    zeros = [cotangent.data.new_zeros(len(cotangent.data), *call.shapes[value]) for value in sources]
    pull = torch.func.vjp(lambda *given: _apply(call, output, sources, given, cotangent.image), *zeros)[1]
    return [(value, cotangent.whole(data)) for value, data in zip(sources, pull(cotangent.data), strict=True)]


def vjp_constant(call: Call, cotangent: Window) -> Tensor | None:
    """The constant part of such an operation: what it makes of zeros."""
    sources = _varying(call)
    images = max([len(tensor) for tensor in (*call.saved.values(), *_fixed_per_image(call))], default=1)
    zeros = [cotangent.data.new_zeros(images, *call.shapes[value]) for value in sources]
    image = torch.arange(images, device=cotangent.data.device)
    return total(cotangent, _apply(call, 0, sources, zeros, image))


def _varying(call: Call) -> list[Value]:
    """The arguments that vary, each once."""
    return list(dict.fromkeys(value for value in values_in(list(call.args)) if call.varies(value)))


def _apply(call: Call, output: int, sources: list[Value], given: Any, image: Tensor) -> Tensor:
    """The operation on rows of the given values; tensors with one entry per image are read at each row's image."""
    places = dict(zip(sources, given, strict=True))

    def at_rows(tensor: Tensor) -> Tensor:
        return tensor.index_select(0, image) if len(tensor) > 1 else tensor.expand(len(image), *tensor.shape[1:])

    if call.batch > 1:
        return _run(call, output, places, at_rows, _fixed_per_image(call))
    # With one image a first dimension of 1 is the batch or is broadcast. It is neither where the rows do not come out.
    try:
        made = _run(call, output, places, at_rows, _fixed_per_image(call))
    except RuntimeError as error:
        try:
            return _run(call, output, places, at_rows)
        except RuntimeError:
            raise error from None  # such as that memory is short, which the second attempt cannot say
    return made if len(made) == len(image) else _run(call, output, places, at_rows)


def _run(
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


# --- going up: what operations make of tangents -----------------------------------------------------------------------


def push(call: Call, output: int, tangents: Mapping[Value, Tensor], image: Tensor) -> Tensor:
    """(P, …) what a linear operation makes of tangents (P, …) of its varying arguments, which are about images (P,)."""
    made = call.node.outputs[output]
    assert made is not None
    shape, like = call.shapes[made], next(iter(tangents.values()))
    if has(call.node, "view"):
        return like.reshape(-1, *shape)
    factor = next((call.saved[value] for value in call.node.inputs if value in call.saved), None)
    if has(call.node, "matrix") and call.batch == 1 and factor is not None and factor.dim() > 2:
        return _times_frozen(like, factor[0], call.varies(call.args[0]))
    if has(call.node, "sum", "repeat") and call.arg(2, "alpha", 1) == 1:
        terms = [value for value in call.args[:2] if isinstance(value, Value) and value in tangents]
        aligned = [align_rows(tangents[value], len(shape)) for value in terms]
        return sum(aligned[1:], aligned[0]).expand(-1, *shape)
    if call.node.kind == "native_layer_norm":
        dims, weight, scale = range(-len(call.args[1]), 0), call.arg(2, "weight"), call.saved[call.node.outputs[2]]  # type: ignore[index]
        result = (like - like.mean(tuple(dims), keepdim=True)).mul_(scale if call.batch == 1 else scale[image])
        return result if weight is None else result.mul_(call.values(weight))
    if record_of(call.node).saves is not None:
        return _transpose_of_transpose(call, output, tangents, image)
    sources = _varying(call)
    given = [tangents.get(value, like.new_zeros(())).expand(len(image), *call.shapes[value]) for value in sources]
    result = _apply(call, output, sources, given, image)
    if record_of(call.node).constant is None:
        return result
    zeros = [like.new_zeros(call.batch, *call.shapes[value]) for value in sources]
    shift = _apply(call, output, sources, zeros, torch.arange(call.batch, device=image.device))
    return result - (shift if call.batch == 1 else shift.index_select(0, image))


def _transpose_of_transpose(call: Call, output: int, tangents: Mapping[Value, Tensor], image: Tensor) -> Tensor:
    """The same of an operation that is linear only with what it saved: maxima, norms."""
    rule, row = record_of(call.node).transpose, torch.arange(len(image), device=image.device)
    assert rule is not None  # the network was read

    def pull(cotangent: Tensor) -> list[Tensor]:
        below = {value: torch.zeros_like(tangent) for value, tangent in tangents.items()}
        for value, window in rule(call, output, Window.full(cotangent, row, image)):
            if value in below:  # it may be read twice, or not at all
                below[value] = below[value] + window.dense().data
        return list(below.values())

    zeros = next(iter(tangents.values())).new_zeros(len(image), *call.shapes[call.node.outputs[output]])  # type: ignore[index]
    pushed: Tensor = torch.func.vjp(pull, zeros)[1](list(tangents.values()))[0]
    return pushed


def align_rows(rows: Tensor, rank: int) -> Tensor:
    """(P, …) with so many dimensions behind the rows: torch puts new ones in front of the others."""
    missing = rank + 1 - rows.dim()
    return rows.reshape(len(rows), *(1,) * missing, *rows.shape[1:]) if missing else rows


def _times_frozen(x: Tensor, factor: Tensor, from_left: bool) -> Tensor:
    """x (P, …, n, k) @ factor (…, k, m), or factor (…, n, k) @ x (P, …, k, m), without a copy of the factor for every row."""
    if from_left:
        rows, count = x.movedim(0, -3), x.shape[-2]
        product = rows.flatten(-3, -2) @ factor
        return product.reshape(*product.shape[:-2], len(x), count, -1).movedim(-3, 0)
    columns, count = x.movedim(0, -2), x.shape[-1]
    product = factor @ columns.flatten(-2)
    return product.reshape(*product.shape[:-1], len(x), count).movedim(-2, 0)


# --- the same with the tensors of one image whole -------------------------------------------------------------------


def vjp_of_one(call: Call, output: int, cotangent: Window, shapes: Mapping[Value, tuple[int, ...]]) -> Cotangents:
    """Autograd's transpose of an operation on the tensors of one image, wherever the batch is in them.

    Args:
        shapes: of its values, as they were recorded.
    """
    cotangent, sources = cotangent.dense(), _varying(call)
    rows = cotangent.data.reshape(-1, *shapes[call.node.outputs[output]])  # type: ignore[index]
    below: Sequence[Tensor]
    if has(call.node, "view"):
        below = [rows]
    elif call.node.kind in ("permute", "transpose", "t"):
        order = order_of_dims(call.node.kind, call.args, rows.dim() - 1)
        below = [rows.permute(0, *(order.index(dim) + 1 for dim in range(len(order))))]
    else:
        zeros = [cotangent.data.new_zeros(shapes[value]) for value in sources]
        run = torch.func.vjp(lambda *given: _run(call, output, dict(zip(sources, given, strict=True))), *zeros)
        below = torch.vmap(run[1])(rows)
    return [
        (value, cotangent.whole(data.reshape(-1, *call.shapes[value])))
        for value, data in zip(sources, below, strict=True)
    ]


def constant_of_one(call: Call, cotangent: Window, shapes: Mapping[Value, tuple[int, ...]]) -> Tensor | None:
    """The constant part of such an operation: what it makes of zeros."""
    made = _run(call, 0, {value: cotangent.data.new_zeros(shapes[value]) for value in _varying(call)})
    return total(cotangent, made.reshape(1, *cotangent.shape)) if made.any() else None


def push_of_one(
    call: Call, output: int, tangents: Mapping[Value, Tensor], shapes: Mapping[Value, tuple[int, ...]]
) -> Tensor:
    """What such an operation makes of tangents (P, …) of its varying arguments."""
    like, shape = next(iter(tangents.values())), call.shapes[call.node.outputs[output]]  # type: ignore[index]
    if has(call.node, "view"):
        return like.reshape(-1, *shape)
    zeros = {value: like.new_zeros(shapes[value]) for value in _varying(call)}
    given = {value: tangent.reshape(-1, *shapes[value]) for value, tangent in tangents.items()}
    made = torch.vmap(lambda rows: _run(call, output, {**zeros, **rows}))(given) - _run(call, output, zeros)
    return made.reshape(len(like), *shape)
