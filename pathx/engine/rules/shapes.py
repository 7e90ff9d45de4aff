"""Operations that give elements another place: reshapes, permutations, repeats, resizing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pathx.engine.record.operations import Node
from pathx.engine.rules.geometry import (
    Field,
    Shapes,
    along,
    batch_in_front,
    keeps_place,
    keeps_place_along,
    shifted_field,
    union_of_fields,
)
from pathx.engine.rules.shared import plain, reshape_window, unbroadcast
from pathx.engine.rules.table import VIEWS, Call, Cotangents, linear
from pathx.engine.window import Window


def _refuse_bits(node: Node, varying: list[int]) -> str | None:
    bits = len(node.args) > 1 and isinstance(node.args[1], torch.dtype)
    return "reads numbers as others (their bits)" if bits else None


@linear(*VIEWS, refuses=_refuse_bits, keeps_batch=batch_in_front, field=keeps_place)
def view(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    return [(source, reshape_window(cotangent, call.shapes[source]))]


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


def _permute_field(call: Shapes) -> Field:
    rank = len(call.source)
    return union_of_fields(call) if rank > 3 and _order_of(call)[-2:] == [rank - 2, rank - 1] else None


@linear("permute", "transpose", "t", keeps_batch=lambda call: _order_of(call)[:1] == [0], field=_permute_field)
def permute(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dims = len(cotangent.shape) + 1
    order = _order(call.node.kind, call.args, dims)
    back = [order.index(d) for d in range(dims)]
    origin = tuple(cotangent.origin[d - 1] for d in back[1:])
    window = replace(cotangent, data=cotangent.data.permute(back), origin=origin, shape=call.shapes[source])
    return [(source, window)]


@linear("expand", field=keeps_place)
def expand(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], unbroadcast(cotangent, call.shapes[call.args[0]]))]


# --- by autograd ----------------------------------------------------------------------------------------------------


def _flip_field(call: Shapes) -> Field:
    rank, dims = len(call.source), call.dims(1, "dims") or []
    if rank < 3:
        return None
    down, across = ((size - 1, -1) if axis in dims else (0, 1) for axis, size in list(enumerate(call.source))[-2:])
    return shifted_field(call, (down[0], across[0]), (down[1], across[1]))


def _repeats_within_images(call: Shapes) -> bool:
    return batch_in_front(call) and len(call.node.args[1]) == len(call.source) and call.node.args[1][0] == 1


def _inside_images(call: Shapes) -> bool:
    """Works on the last two or three dimensions, of which none is the batch."""
    return batch_in_front(call) and len(call.source) > 2


plain("flip", keeps_batch=along(1, "dims"), field=_flip_field)
plain("roll", keeps_batch=along(2, "dims"), field=keeps_place_along(2, "dims"))
plain("rot90", keeps_batch=along(2, "dims", [0, 1]))
plain("cumsum", keeps_batch=along(1), field=keeps_place_along(1))
plain("unfold", keeps_batch=along(1, "dimension"))
plain("diagonal", keeps_batch=lambda call: along(2, "dim1", 0)(call) and along(3, "dim2", 1)(call))
plain("tril", "triu", keeps_batch=_inside_images, field=keeps_place)
plain("repeat", keeps_batch=_repeats_within_images)
plain("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", keeps_batch=_inside_images)
plain("im2col", "col2im", keeps_batch=_inside_images)
plain(
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "grid_sampler_2d", "grid_sampler_3d"),
    keeps_batch=batch_in_front,
)
