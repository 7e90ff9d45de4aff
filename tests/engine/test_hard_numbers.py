"""Numbers at which multipliers are hard to compute: nothing becomes NaN, and attribution and bias are still the score."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pathx


class Between(nn.Module):
    """A part between two linear layers."""

    def __init__(self, part: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.part, self.first, self.last = part, nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.part(self.first(x)))


def far_below(x: Tensor) -> Tensor:
    """Where the gate of an activation all but closes: -50, -8 and -10000, beside ordinary numbers."""
    return x * 1e-3 + torch.tensor([-50, -8, -1e4, 1, -1, 0.5]).to(x)


MASK = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
ONE_ROW_LEFT = torch.cat([torch.zeros(1, 6), torch.ones(5, 6)]).bool()
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": lambda x: F.gelu(far_below(x)),
    "gelu by tanh": lambda x: F.gelu(far_below(x), approximate="tanh"),
    "silu": lambda x: F.silu(far_below(x)),
    "mish": lambda x: F.mish(far_below(x)),
    "hardswish": lambda x: F.hardswish(far_below(x)),
    "softplus": lambda x: F.softplus(far_below(x)),
    "elu": lambda x: F.elu(far_below(x)),
    "softmax with a mask": lambda x: (
        F.gelu(x) + (torch.softmax(x[:, :, None] * x[:, None] + MASK.to(x), -1) @ F.gelu(x)[:, :, None])[:, :, 0]
    ),
    "attention that may look nowhere": lambda x: (
        F.gelu(x) + F.scaled_dot_product_attention(*[x[:, :, None]] * 2, F.gelu(x)[:, :, None], ONE_ROW_LEFT)[:, :, 0]
    ),
    "layer norm of a constant": lambda x: F.gelu(F.layer_norm(x * 0 + F.relu(x[:, :1]), (6,)) + F.relu(x)),
    "group norm of a constant": lambda x: F.gelu(F.group_norm(x * 0 + 1, 2)) + F.gelu(x),
    "rms norm of zeros": lambda x: F.gelu(F.rms_norm(x * 0, (6,))) + F.gelu(x),
    "l2 norm of zeros": lambda x: F.gelu(F.normalize(x * 0, dim=1)) + F.gelu(x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("part", PARTS)
def test_nothing_becomes_nan_and_numbers_add_up(part: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, image = Between(PARTS[part]).to(dtype).eval(), torch.randn(1, 6, dtype=dtype)
    if not model(image).isfinite().all():
        pytest.skip("this release of torch gives NaN for attention that may look nowhere")
    (found,) = pathx.explain(model, image, depth="all", width="all", alpha=0.0)
    assert found.attribution.isfinite().all() and math.isfinite(found.bias)
    allowed = 1e-5 if dtype == torch.float32 else 1e-10
    total = float(found.attribution.double().sum()) + found.bias
    assert total == pytest.approx(found.score, rel=allowed, abs=allowed)
