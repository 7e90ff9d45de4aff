"""Windows below operations that slide over a map: convolutions and pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathx.engine.window import Corners, Origin, Window


def spatial(value: Any, dims: int) -> tuple[int, ...]:
    """A setting such as a stride, for each spatial dimension."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    return values * dims if len(values) == 1 else values


def grown(cotangent: Window, data: Tensor, channel: Origin, shape: tuple[int, ...], geometry: Any) -> Window:
    """The window below a sliding-window operation: origins times stride minus padding, overhanging by the padding.

    Where the box is the same for all, it is cut to the map instead.
    """
    stride, padding = geometry
    origin: list[Origin] = [channel]
    for dim, (step, pad) in enumerate(zip(stride, padding, strict=True), start=1):
        above = cotangent.origin[dim]
        if isinstance(above, Corners):
            origin.append(above.moved(step, -pad))
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
