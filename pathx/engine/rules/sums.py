"""What the rules of several families share: sums of cotangents, and cotangents of what was broadcast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from pathx.engine.rules.table import precise
from pathx.engine.window import Window


def total(cotangent: Window, values: Tensor, *, finite: bool = False) -> Tensor:
    """(P,) sums of the cotangents times the values (B or 1, *sizes) under them; nothing of what is infinite is nothing.

    Args:
        finite: nothing is.
    """
    cotangent = cotangent.cleaned()
    product = cotangent.scale(values.conj() if values.is_complex() else values).data
    product = product if finite else product.masked_fill(cotangent.data == 0, 0.0)
    product = product.real if product.is_complex() else product
    return product.reshape(len(product), -1).sum(1, dtype=precise(product))


def channel_total(cotangent: Window, values: Tensor) -> Tensor:
    """(P,) sums of the cotangents times one value per channel."""
    data = cotangent.cleaned().data
    sums = data.sum(tuple(range(2, data.dim()))) if data.dim() > 2 else data
    if cotangent.covers(0):
        return (sums * values).sum(1, dtype=precise(data))
    reduced = replace(cotangent, data=sums, origin=cotangent.origin[:1], shape=cotangent.shape[:1])
    return reduced.scale(values[None]).data.sum(1, dtype=precise(data))


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


def scaled_by(cotangent: Window, factor: Any) -> Window:
    return cotangent if factor == 1 else cotangent.holding(cotangent.data * factor)


def map_like(values: Tensor, cotangent: Window) -> Tensor:
    """Fixed values as (B or 1, *sizes) against the map of the cotangents."""
    values = values.to(cotangent.data)
    missing = len(cotangent.shape) + 1 - values.dim()
    return values.reshape(*(1,) * missing, *values.shape) if missing > 0 else values
