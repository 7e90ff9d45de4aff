"""Normalisation by statistics of the image itself: the mean is linear, and the scale is held as it is at the image."""

from __future__ import annotations

from torch import Tensor

from pathx.engine.rules.geometry import Field, Shapes, batch_in_front, keeps_place, mix
from pathx.engine.rules.shared import align, channel_total, total
from pathx.engine.rules.table import Call, Cotangents, constant, linear
from pathx.engine.window import Window


def _within_images(call: Shapes) -> bool:
    """The normalised dimensions, the last ones, leave out the batch."""
    return batch_in_front(call) and len(call.node.args[1]) < len(call.source)


def _field(call: Shapes) -> Field:
    """The mean is of the last dimensions, or of all where groups of channels are normalised; every element stays where it is."""
    rank = len(call.source)
    count = rank - 1 if call.node.kind == "native_group_norm" else len(call.node.args[1])
    return call.field.change(lambda table: mix(table, range(rank - count, rank), place=True))


@linear("native_layer_norm", saves="statistics", keeps_batch=_within_images, field=_field, traits={"last dimensions"})
def layer_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    """(x - mean) * scale * weight, over the last dimensions. Boxes in the other dimensions stay as they are."""
    dims = range(len(cotangent.shape) - len(call.args[1]), len(cotangent.shape))
    scaled = _times_weight(call, cotangent, dims, call.arg(2, "weight")).scale(_statistic(call, 2))
    data = scaled.data - scaled.data.mean([dim + 1 for dim in dims], keepdim=True)
    return [(call.args[0], scaled.with_data(data))]


@constant("native_layer_norm")
def layer_norm_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.arg(3, "bias")
    return None if bias is None else total(cotangent, align(call.values(bias), cotangent))


@linear(
    "_fused_rms_norm", saves="statistics", keeps_batch=_within_images, field=keeps_place, traits={"last dimensions"}
)
def rms_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    """x * scale * weight, over the last dimensions."""
    dims = range(len(cotangent.shape) - len(call.args[1]), len(cotangent.shape))
    return [(call.args[0], _times_weight(call, cotangent, dims, call.arg(2, "weight")).scale(_statistic(call, 1)))]


@linear("native_group_norm", saves="statistics", keeps_batch=batch_in_front, field=_field)
def group_norm(call: Call, output: int, cotangent: Window) -> Cotangents:
    """The same over groups of channels and all places."""
    source, weight, groups = call.args[0], call.arg(1, "weight"), call.args[6]
    cotangent = cotangent.dense()
    data = cotangent.data
    if weight is not None:
        data = data * call.values(weight).reshape(-1, *(1,) * (data.dim() - 2))
    data = data.reshape(len(data), groups, -1)
    data = data * _statistic(call, 2).index_select(0, cotangent.image)[:, :, None]
    data = data - data.mean(2, keepdim=True)
    return [(source, cotangent.whole(data.reshape(-1, *call.shapes[source])))]


@constant("native_group_norm")
def group_norm_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.arg(2, "bias")
    return None if bias is None else channel_total(cotangent, call.values(bias))


def _times_weight(call: Call, cotangent: Window, dims: range, weight: object) -> Window:
    """Cotangents that hold the normalised dimensions whole, times the weight."""
    cotangent = cotangent.clear_outside() if all(cotangent.covers(dim) for dim in dims) else cotangent.dense()
    return cotangent if weight is None else cotangent.scale(align(call.values(weight), cotangent))


def _statistic(call: Call, output: int) -> Tensor:
    """What a call returned beside its result: the scale that it normalised by."""
    value = call.node.outputs[output]
    assert value is not None
    return call.saved[value]
