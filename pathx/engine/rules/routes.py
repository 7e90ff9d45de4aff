"""Elements picked by their values: maxima, medians, sorting. What was picked goes back to where it came from."""

from __future__ import annotations

from typing import Any

from pathx.engine.rules.fallback import plain
from pathx.engine.rules.geometry import along, any_shape, away_from
from pathx.engine.rules.table import Call, Cotangents, linear
from pathx.engine.window import Window

# Where each has its dimension, and which one that is if none is named.
_DIMENSIONS: dict[str, tuple[int, Any]] = {
    "max": (1, None),
    "min": (1, None),
    "median": (1, None),
    "nanmedian": (1, None),
    "mode": (1, -1),
    "cummax": (1, None),
    "cummin": (1, None),
    "sort": (1, -1),
    "topk": (2, -1),
    "kthvalue": (2, -1),
}


def picked(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Values along one dimension that come with the places they were found at."""
    source = call.args[0]
    shape = call.shapes[source]
    position, default = _DIMENSIONS[call.node.kind]
    dim = call.arg(position, "dim", default) % (len(shape) + 1)
    cotangent = cotangent.dense()
    place = call.saved[call.node.outputs[1]].index_select(0, cotangent.image)  # type: ignore[index]
    data = cotangent.data
    if data.dim() == len(shape):  # the dimension was dropped
        place, data = place.unsqueeze(dim), data.unsqueeze(dim)
    return [(source, cotangent.whole(data.new_zeros(len(data), *shape).scatter_add_(dim, place, data)))]


for _name, (_position, _default) in _DIMENSIONS.items():
    _rules = {"apart": along(_position, default=_default), "field": away_from(_position, default=_default)}
    linear(_name, saves=(1,), pools=True, **_rules)(picked)

plain("max_unpool2d", "max_unpool3d", takes_frozen=True, apart=any_shape)
