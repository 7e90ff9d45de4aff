"""Operations that give elements another place: reshapes, permutations, repeats."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import torch

from pathx.engine.record.operations import Node
from pathx.engine.rules.fallback import plain
from pathx.engine.rules.geometry import (
    Field,
    Shapes,
    along,
    any_shape,
    away_from,
    elementwise,
    joined,
    keeps_place,
    moved,
)
from pathx.engine.rules.sums import unbroadcast
from pathx.engine.rules.table import Call, Cotangents, linear, record
from pathx.engine.window import Window


def inserted(cotangent: Window, axes: tuple[int, ...]) -> Window:
    """The window with dimensions of size 1 put in at `axes`."""
    for axis in axes:
        cotangent = replace(
            cotangent,
            data=cotangent.data.unsqueeze(axis + 1),
            origin=(*cotangent.origin[:axis], 0, *cotangent.origin[axis:]),
            shape=(*cotangent.shape[:axis], 1, *cotangent.shape[axis:]),
        )
    return cotangent


@linear(
    "view",
    "_unsafe_view",
    "reshape",
    "flatten",
    "squeeze",
    "unsqueeze",
    after_final=True,
    pools=True,
    apart=any_shape,
    field=keeps_place,
)
@linear("unflatten", pools=True, apart=any_shape, field=keeps_place)
def view(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    return [(source, reshaped(cotangent, call.shapes[source]))]


def _same_numbers(node: Node, varying: list[int]) -> str | None:
    return "reads numbers as others (their bits)" if isinstance(node.args[1], torch.dtype) else None


record("view", refuses=_same_numbers)


def reshaped(cotangent: Window, shape: tuple[int, ...]) -> Window:
    """The window in the coordinates of a map of another shape and as many elements."""
    if cotangent.shape == shape:
        return cotangent
    if cotangent.is_full:
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    if cotangent.is_one_hot:
        flat = cotangent.index().reshape(-1).expand(len(cotangent.data))
        one_hot = Window.one_hot(cotangent.cleaned().data.reshape(-1), flat, shape, cotangent.row, cotangent.image)
        return replace(one_hot, ordered=cotangent.ordered)
    # Dimensions at the end that both shapes share, and those of size 1, keep their boxes.
    old = [d for d, size in enumerate(cotangent.shape) if size != 1]
    new = [d for d, size in enumerate(shape) if size != 1]
    shared = 0
    while shared < min(len(old), len(new)) and cotangent.shape[old[-1 - shared]] == shape[new[-1 - shared]]:
        shared += 1
    if not all(cotangent.covers(d) for d in old[: len(old) - shared]):
        cotangent = cotangent.dense()
        return cotangent.whole(cotangent.data.reshape(-1, *shape))
    if any(cotangent.overhang[d] for d, size in enumerate(cotangent.shape) if size == 1):
        cotangent = cotangent.cleaned()  # a box beside the map would come to lie on it
    matched = dict(zip(new[len(new) - shared :], old[len(old) - shared :], strict=True))
    extent = [cotangent.extent[matched[d]] if d in matched else shape[d] for d in range(len(shape))]
    return replace(
        cotangent,
        data=cotangent.data.reshape(-1, *extent),
        origin=tuple(cotangent.origin[matched[d]] if d in matched else 0 for d in range(len(shape))),
        shape=shape,
    )


def _order(kind: str, args: tuple[Any, ...], rank: int) -> list[int]:
    """Which dimension of the input each dimension of the output is."""
    if kind == "permute":
        return [d % rank for d in args[1]]
    first, second = (args[1] % rank, args[2] % rank) if len(args) > 2 else (0, 1)
    order = list(range(rank))
    if rank > 1:
        order[first], order[second] = second, first
    return order


def _order_of(call: Shapes) -> list[int]:
    return _order(call.node.kind, call.node.args, len(call.source))


def _permuted_field(call: Shapes) -> Field:
    rank = len(call.source)
    return joined(call) if rank > 3 and _order_of(call)[-2:] == [rank - 2, rank - 1] else None


@linear("permute", "transpose", "t", pools=True, apart=lambda call: _order_of(call)[:1] == [0], field=_permuted_field)
def permute(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dims = len(cotangent.shape) + 1
    order = _order(call.node.kind, call.args, dims)
    back = [order.index(d) for d in range(dims)]
    pick = [d - 1 for d in back[1:]]
    return [
        (
            source,
            replace(
                cotangent,
                data=cotangent.data.permute(back),
                origin=tuple(cotangent.origin[d] for d in pick),
                shape=call.shapes[source],
            ),
        )
    ]


@linear("expand", apart=elementwise, field=keeps_place)
def expand(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], unbroadcast(cotangent, call.shapes[call.args[0]]))]


# --- places in memory -----------------------------------------------------------------------------------------------


def _in_order(node: Node, varying: list[int]) -> str | None:
    """Of a tensor that does not lie in memory in order, nobody knows what is read."""
    return None if len(node.args) > 3 else "reads memory that its input may share with others"


def _within(call: Shapes) -> bool:
    """Every image is read from its own part of memory, and they follow one another as the images do."""
    (count, *sizes), (step, *steps), first = call.node.args[1], call.node.args[2], call.node.args[3]
    size = prod(call.source[1:])
    last = first + sum((length - 1) * stride for length, stride in zip(sizes, steps, strict=True))
    return bool(count == call.batch and (step == size or count == 1) and last < size)


@linear("as_strided", refuses=_in_order, apart=_within)
def as_strided(call: Call, output: int, cotangent: Window) -> Cotangents:
    source, data = call.args[0], cotangent.dense().data
    place = torch.zeros((), dtype=torch.long, device=data.device) + call.args[3]
    for length, stride in zip(call.args[1][1:], call.args[2][1:], strict=True):
        place = place[..., None] + torch.arange(length, device=data.device) * stride
    below = data.new_zeros(len(data), prod(call.shapes[source]))
    below.index_add_(1, place.flatten(), data.flatten(1))
    return [(source, cotangent.whole(below.reshape(-1, *call.shapes[source])))]


# --- without a rule of their own ------------------------------------------------------------------------------------


def _flipped(call: Shapes) -> Field:
    rank = len(call.source)
    dims = call.dims(1, "dims") or []
    flips = [axis in dims for axis in (rank - 2, rank - 1)]
    offsets = [size - 1 if flip else 0 for size, flip in zip(call.source[-2:], flips, strict=True)] if rank > 2 else []
    steps = [-1 if flip else 1 for flip in flips]
    return moved(call, (offsets[0], offsets[1]), (steps[0], steps[1])) if rank > 2 else None


def _embedded(call: Shapes) -> list[int]:
    """The dimensions that a diagonal is laid along."""
    rank = len(call.made)
    return [call.arg(2, "dim1", -2) % rank, call.arg(3, "dim2", -1) % rank]


def _repeats(call: Shapes) -> bool:
    """Every image is repeated within itself, not after the others."""
    return any_shape(call) and len(call.node.args[1]) == len(call.source) and call.node.args[1][0] == 1


def _last_two(call: Shapes) -> bool:
    """Works on matrices, the last two dimensions."""
    return any_shape(call) and len(call.source) > 2


plain("flip", apart=along(1, "dims"), field=_flipped)
plain("roll", apart=along(2, "dims"), field=away_from(2, "dims"))
plain("rot90", apart=along(2, "dims", [0, 1]))
plain("cumsum", apart=along(1), field=away_from(1))
plain("unfold", apart=along(1, "dimension"))
plain("diagonal", apart=along(2, "dim1", 0, also=3))
plain("diag_embed", apart=lambda call: any_shape(call) and 0 not in _embedded(call))
plain("tril", "triu", apart=_last_two, field=keeps_place)
plain("repeat", apart=_repeats)
plain("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", apart=_last_two)
plain("im2col", "col2im", apart=_last_two)
plain("view_as_real", "view_as_complex", "_conj", "_conj_physical", "conj_physical", "resolve_conj", apart=any_shape)
plain("_neg_view", "resolve_neg", apart=any_shape)
plain("complex", varies=(0, 1), together=True)
plain("_fft_r2c", "_fft_c2c", "_fft_c2r", apart=along(1))
plain("reflection_pad1d", "replication_pad1d", apart=any_shape)
plain("reflection_pad2d", "replication_pad2d", apart=any_shape)
plain("reflection_pad3d", "replication_pad3d", apart=any_shape)
plain(
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "upsample_bicubic2d",
    "upsample_trilinear3d",
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    apart=any_shape,
)
plain("grid_sampler_2d", "grid_sampler_3d", takes_frozen=True, apart=any_shape)
