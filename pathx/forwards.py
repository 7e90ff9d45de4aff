"""Operations that a CPU computes faster in another way, with the same result up to rounding.

`FORWARDS` holds them by operation. Each takes the operation's own arguments and returns what it returns, or None where
the usual way is better.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Forward = Callable[..., Any]

FORWARDS: dict[Any, Forward] = {}
"""Filled by @forward."""


def forward(operation: Any) -> Callable[[Forward], Forward]:
    """Register another way to compute an operation."""

    def register(function: Forward) -> Forward:
        FORWARDS[operation] = function
        return function

    return register


@forward(torch.ops.aten.convolution.default)
def pointwise_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Tensor | None:
    """A kernel of one element is a matrix product, with none of a convolution's reordering of memory."""
    if weight[0, 0].numel() != 1 or groups > 1 or transposed or any(padding) or not x.is_contiguous():
        return None
    for dim, step in enumerate(stride * (x.dim() - 2) if len(stride) == 1 else stride, start=2):
        if step > 1:
            x = x[(slice(None),) * dim + (slice(None, None, step),)]
    flat, matrix = x.reshape(*x.shape[:2], -1), weight.reshape(weight.shape[:2])
    if len(flat) > 1:
        out = matrix @ flat
        out = out if bias is None else out.add_(bias[:, None])
    else:
        out = matrix @ flat[0] if bias is None else torch.addmm(bias[:, None], matrix, flat[0])
    return out.reshape(len(x), len(weight), *x.shape[2:])


@forward(torch.ops.aten.max_pool2d_with_indices.default)
def max_pool(x: Tensor, *settings: Any, **options: Any) -> tuple[Tensor, Tensor] | None:
    """With channels last, where one instruction compares many of them."""
    if x.dim() != 4 or x.shape[1] < 8 or not x.is_contiguous():
        return None
    channels_last = x.contiguous(memory_format=torch.channels_last)
    out, winners = torch.ops.aten.max_pool2d_with_indices.default(channels_last, *settings, **options)
    # Not .contiguous(): a map of one element would keep its strides, and later operations take the hint.
    return out.clone(memory_format=torch.contiguous_format), winners.clone(memory_format=torch.contiguous_format)
