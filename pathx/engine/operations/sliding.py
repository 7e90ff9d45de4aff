"""Windows below operations that slide over a map: convolutions and pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from pathx.engine.window import Window


def spatial(value: Any, dims: int) -> tuple[int, ...]:
    """A setting such as a stride, for each spatial dimension."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def grown(cotangent: Window, data: Tensor, channel: int | Tensor, shape: tuple[int, ...], geometry: Any) -> Window:
    """The window below a sliding-window operation: origins times stride minus padding, overhanging by the padding.

    Where the box is the same for all, it is cut to the map instead.
    """
    stride, padding = geometry
    origin: list[int | Tensor] = [channel]
    overhang = [False]
    for dim, (step, pad) in enumerate(zip(stride, padding, strict=True), start=1):
        start = cotangent.origin[dim]
        start = start if step == 1 else start * step
        start = start - pad if pad else start
        reach = data.shape[dim + 1] - (cotangent.extent[dim] - 1) * step  # of one element
        beyond = (cotangent.shape[dim] - 1) * step + reach > shape[dim]
        if isinstance(start, int):
            first, last = max(0, -start), min(data.shape[dim + 1], shape[dim] - start)
            if last <= first:  # padding alone
                first = last = start = 0
            data, start = data.narrow(dim + 1, first, last - first), start + first
            overhang.append(False)
        else:
            overhang.append(pad > 0 or beyond or cotangent.overhang[dim])
        origin.append(start)
    window = replace(
        cotangent, data=data, origin=tuple(origin), shape=shape, overhang=tuple(overhang), clean=not any(overhang)
    )
    too_large = any(extent > size for extent, size in zip(window.extent[1:], shape[1:], strict=True))
    return window.dense() if too_large else window
