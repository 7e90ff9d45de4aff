"""Matrix products: of one factor that varies, with rows that are images or parts of one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

import pathx
from pathx import PathxError


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(6), dtype=torch.float64)


MATRIX, BIAS, SQUARE = numbers(4, 3), numbers(3), numbers(3, 4, 4)

ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "addmm with factors": lambda x: torch.addmm(BIAS, F.relu(x), MATRIX, beta=0.5, alpha=3),
    "addmm, twice": lambda x: torch.addmm(BIAS, F.relu(x), MATRIX, beta=2, alpha=2),
    "mm": lambda x: F.relu(x) @ MATRIX,
    "linear": lambda x: F.linear(F.relu(x), MATRIX.T, BIAS),
    "matmul, from the left": lambda x: (MATRIX.T @ F.relu(x).unsqueeze(2)).squeeze(2),
    "baddbmm": lambda x: torch.baddbmm(F.relu(x)[:, None, :3], F.relu(x)[:, None], MATRIX.expand(2, -1, -1)).squeeze(1),
}


@pytest.mark.parametrize("name", ALIKE)
def test_units_of_any_spelling_send_what_the_matrix_says(name: str) -> None:
    """Windows of one element and whole rows take different ways."""
    images = numbers(2, 4)
    model = Function(ALIKE[name])
    x = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, 2].sum(), x)
    for found, expected in zip(
        pathx.explain(model, images, target=2, depth=1, width="all", alpha=0.0), gradient, strict=True
    ):
        assert_close(found.weight, expected)
        assert found.attribution.sum().item() + found.bias == pytest.approx(found.score)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "bmm": (lambda x: torch.bmm(F.relu(x)[:, None], F.relu(x)[:, :, None])[:, 0], "multiplies or divides by what it"),
    "baddbmm": (
        lambda x: torch.baddbmm(x[:, :1, None], F.relu(x)[:, None], F.relu(x)[:, :, None])[:, 0],
        "multiplies what it computed from the image",
    ),
    "addcmul": (lambda x: torch.addcmul(x, F.relu(x), x), "multiplies what it computed from the image"),
    "images summed up": (lambda x: torch.ones(2, 2).double() @ F.relu(x), "pathx has no rule for mm"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_two_factors_that_vary_are_refused(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(PathxError, match=text):
        pathx.explain(Function(function), numbers(2, 4))
