"""Operations recorded as others that do the same and that the tables know.

Each rewrite takes a call's arguments and returns what to run instead, or None where the call stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Factor = Callable[[Tensor, Tensor], Any]  # k where the first was computed as k times the second, else None
Run = Callable[[], Tensor]
Rewrite = Callable[..., Run | None]

aten = torch.ops.aten


def _extreme(reduce: Any) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, dim: Any = (), keepdim: bool = False) -> Run:
        """A maximum over several dimensions as one over a single dimension, which says who won."""
        dims = sorted(d % x.dim() for d in ([dim] if isinstance(dim, int) else dim or range(x.dim())))

        def run() -> Tensor:
            rest = [d for d in range(x.dim()) if d not in dims]
            best: Tensor = reduce(x.permute(*rest, *dims).flatten(len(rest)), len(rest))[0]
            for d in dims if keepdim else []:
                best = best.unsqueeze(d)
            return best

        return run

    return rewrite


def _restrided(factor: Factor, x: Tensor, size: Any, stride: Any, offset: Any = None) -> Run | None:
    """`as_strided_` where it moves nothing: strides of dimensions of size 1, as pooling sets them in channels_last."""
    moved = any(n > 1 and old != new for n, old, new in zip(x.shape, x.stride(), stride, strict=False))
    if tuple(size) != tuple(x.shape) or moved or offset not in (None, x.storage_offset()):
        return None
    return lambda: x


def _filled(in_place: bool) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
        """`x[x < 0] = 0`."""
        mask = indices[0] if len(indices) == 1 else None
        if mask is None or mask.dtype != torch.bool or mask.shape != x.shape or accumulate or values.dim():
            return None
        return lambda: x.masked_fill_(mask, values) if in_place else x.masked_fill(mask, values)

    return rewrite


def _choice(takes_first: Callable[[Tensor, Tensor], Tensor]) -> Rewrite:
    def rewrite(factor: Factor, first: Tensor, second: Tensor) -> Run | None:
        """A leaky ReLU spelled out, `maximum(x, 0.1 * x)`: x times one of two slopes."""
        return _two_slopes(factor, lambda: takes_first(first, second), first, second)

    return rewrite


def _where(factor: Factor, condition: Tensor, first: Tensor, second: Tensor) -> Run | None:
    """`where(x > 0, x, 0.1 * x)`."""
    return _two_slopes(factor, lambda: condition, first, second)


def _two_slopes(factor: Factor, condition: Run, first: Tensor, second: Tensor) -> Run | None:
    above, below = factor(first, second), factor(second, first)
    if above is None and below is None:
        return None
    x, slopes = (first, (1.0, below)) if above is None else (second, (above, 1.0))

    def run() -> Tensor:
        slope: Tensor = torch.where(condition(), *slopes)  # type: ignore[assignment]
        return x * slope.to(x.dtype)

    return run


def _mean_slope(leaky_relu: Callable[[Tensor, float], Tensor]) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, noise: Tensor, *settings: Any) -> Run:
        """RReLU: at rest its slope is the mean of its bounds, in training it is drawn."""
        lower, upper, training = [*settings, *_RRELU_DEFAULTS[len(settings) :]][:3]
        return lambda: leaky_relu(x, torch.rand(()).item() if training else (lower + upper) / 2)

    return rewrite


_RRELU_DEFAULTS = (1 / 8, 1 / 3, False)  # which calls leave out

REWRITES: dict[Any, Rewrite] = {
    aten.amax.default: _extreme(torch.max),
    aten.amin.default: _extreme(torch.min),
    aten.as_strided_.default: _restrided,
    aten.index_put.default: _filled(in_place=False),
    aten.index_put_.default: _filled(in_place=True),
    aten.maximum.default: _choice(torch.gt),
    aten.minimum.default: _choice(torch.lt),
    aten.rrelu_with_noise.default: _mean_slope(aten.leaky_relu),
    aten.rrelu_with_noise_.default: _mean_slope(aten.leaky_relu_),
    aten.where.self: _where,
}
