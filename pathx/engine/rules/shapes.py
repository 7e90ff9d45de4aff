"""Operations that give elements another place: reshapes, permutations, repeats, resizing."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from pathx.engine.record.operations import Node
from pathx.engine.rules.geometry import (
    Field,
    Shapes,
    align_table,
    along,
    batch_in_front,
    keeps_place,
    mixes_along,
    moves,
    moves_along,
)
from pathx.engine.rules.shared import order_of_dims, plain, reshape_window, unbroadcast
from pathx.engine.rules.table import VIEWS, Call, Cotangents, linear
from pathx.engine.window import Window


def _refuse_bits(node: Node, varying: list[int]) -> str | None:
    bits = len(node.args) > 1 and isinstance(node.args[1], torch.dtype)
    return "reads numbers as others (their bits)" if bits else None


def _view_field(call: Shapes) -> Field:
    """Dimensions that make no difference stay apart from the others, so that tables stay small."""
    parts = _matching_dims(call.source, call.result)

    def change(table: Tensor) -> Tensor:
        whole = list(table.shape[1:])
        shape: list[int] = []
        for old, new in parts:
            matters = any(whole[dim] > 1 for dim in old)
            whole[old.start : old.stop] = [call.source[dim] if matters else 1 for dim in old]
            shape += [call.result[dim] if matters else 1 for dim in new]
        return table.expand(4, *whole).reshape(4, *shape)

    return call.field.change(change)


def _matching_dims(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[range, range]]:
    """Runs of dimensions of two shapes that hold the same elements, as short as can be."""
    parts, first, second = [], 0, 0
    while first < len(old) or second < len(new):
        ends = [first + 1, second + 1] if first < len(old) and second < len(new) else [len(old), len(new)]
        while (below := prod(old[first : ends[0]])) != (above := prod(new[second : ends[1]])):
            ends[0 if below < above else 1] += 1
        parts.append((range(first, ends[0]), range(second, ends[1])))
        first, second = ends
    return parts


@linear(*VIEWS, refuses=_refuse_bits, keeps_batch=batch_in_front, field=_view_field)
def view(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    return [(source, reshape_window(cotangent, call.shapes[source]))]


def _order_of(call: Shapes) -> list[int]:
    return order_of_dims(call.node.kind, call.node.args, len(call.source))


def _permute_field(call: Shapes) -> Field:
    order = [0, *(dim + 1 for dim in _order_of(call))]
    return call.field.change(lambda table: table.permute(order))


@linear("permute", "transpose", "t", keeps_batch=lambda call: _order_of(call)[:1] == [0], field=_permute_field)
def permute(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    dims = len(cotangent.shape) + 1
    order = order_of_dims(call.node.kind, call.args, dims)
    back = [order.index(d) for d in range(dims)]
    origin = tuple(cotangent.origin[d - 1] for d in back[1:])
    window = replace(cotangent, data=cotangent.data.permute(back), origin=origin, shape=call.shapes[source])
    return [(source, window)]


def _expand_field(call: Shapes) -> Field:
    return call.field.change(lambda table: align_table(table, len(call.result)))


@linear("expand", field=_expand_field)
def expand(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], unbroadcast(cotangent, call.shapes[call.args[0]]))]


# --- by autograd ----------------------------------------------------------------------------------------------------


def _flip_field(call: Shapes) -> Field:
    return call.field.change(moves_along(call.dims(1, "dims") or [], lambda table, dim: table.flip(dim)))


def _roll_field(call: Shapes) -> Field | None:
    dims = call.dims(2, "dims") or []
    by = dict(zip((dim + 1 for dim in dims), call.node.args[1], strict=False))
    return call.field.change(moves_along(dims, lambda table, dim: table.roll(by[dim], dim))) if dims else None


def _repeat_field(call: Shapes) -> Field:
    times = call.node.args[1]

    def change(table: Tensor) -> Tensor:
        table = align_table(table, len(times))
        return table.repeat(1, *(count if size > 1 else 1 for count, size in zip(times, table.shape[1:], strict=True)))

    return call.field.change(change)


def _repeats_within_images(call: Shapes) -> bool:
    return batch_in_front(call) and len(call.node.args[1]) == len(call.source) and call.node.args[1][0] == 1


def _inside_images(call: Shapes) -> bool:
    """Works on the last two or three dimensions, of which none is the batch."""
    return batch_in_front(call) and len(call.source) > 2


plain("flip", keeps_batch=along(1, "dims"), field=_flip_field)
plain("roll", keeps_batch=along(2, "dims"), field=_roll_field)
plain("rot90", keeps_batch=along(2, "dims", [0, 1]))
plain("cumsum", keeps_batch=along(1), field=mixes_along(1))
plain("unfold", keeps_batch=along(1, "dimension"))
plain("diagonal", keeps_batch=lambda call: along(2, "dim1", 0)(call) and along(3, "dim2", 1)(call))
plain("tril", "triu", keeps_batch=_inside_images, field=keeps_place)
plain("repeat", keeps_batch=_repeats_within_images, field=_repeat_field)
plain(
    *("pixel_shuffle", "pixel_unshuffle"),
    keeps_batch=_inside_images,
    field=moves,
)
plain("im2col", "col2im", keeps_batch=_inside_images)
plain(
    *("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
    *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    keeps_batch=batch_in_front,
    field=moves,
)
plain(
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa", "grid_sampler_2d", "grid_sampler_3d"),
    keeps_batch=batch_in_front,
)
