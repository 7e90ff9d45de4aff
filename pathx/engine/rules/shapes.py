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
    mixes_along,
    moves,
    turns,
)
from pathx.engine.rules.shared import order_of_dims, plain, reshape_window, unbroadcast
from pathx.engine.rules.table import Call, Cotangents, linear
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


@linear(
    *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
    refuses=_refuse_bits,
    keeps_batch=batch_in_front,
    field=_view_field,
    traits={"view"},
)
def view(call: Call, output: int, cotangent: Window) -> Cotangents:
    source = call.args[0]
    return [(source, reshape_window(cotangent, call.shapes[source]))]


def _keeps_first(call: Shapes) -> bool:
    return order_of_dims(call.node.kind, call.node.args, len(call.source))[:1] == [0]


@linear("permute", "transpose", "t", keeps_batch=_keeps_first, field=turns, traits={"part"})
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


@linear("expand", field=_expand_field, traits={"move", "repeat"})
def expand(call: Call, output: int, cotangent: Window) -> Cotangents:
    return [(call.args[0], unbroadcast(cotangent, call.shapes[call.args[0]]))]


# --- by autograd ----------------------------------------------------------------------------------------------------


def _repeats_within_images(call: Shapes) -> bool:
    return batch_in_front(call) and len(call.node.args[1]) == len(call.source) and call.node.args[1][0] == 1


def _inside_images(call: Shapes) -> bool:
    """Works on the last two or three dimensions, of which none is the batch."""
    return batch_in_front(call) and len(call.source) > 2


plain("flip", keeps_batch=along(1, "dims"), field=turns, traits={"move"})
plain(
    "roll",
    keeps_batch=along(2, "dims"),
    field=lambda call: turns(call) if call.dims(2, "dims") else None,
    traits={"move"},
)
plain("cumsum", keeps_batch=along(1), field=mixes_along(1))
plain("unfold", keeps_batch=along(1, "dimension"))
plain("repeat", keeps_batch=_repeats_within_images, field=moves, traits={"move"})
plain(
    *("pixel_shuffle", "pixel_unshuffle"),
    keeps_batch=_inside_images,
    field=moves,
    traits={"move"},
)
plain("im2col", "col2im", keeps_batch=_inside_images)
plain(
    *("reflection_pad1d", "reflection_pad2d", "replication_pad1d", "replication_pad2d"),
    *("upsample_nearest1d", "upsample_nearest2d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d"),
    keeps_batch=batch_in_front,
    field=moves,
)
plain(
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "grid_sampler_2d"),
    *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
    keeps_batch=batch_in_front,
)
