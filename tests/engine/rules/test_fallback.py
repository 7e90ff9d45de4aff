"""Operations that autograd transposes: what belongs to an image stays with it, for one image and for several."""

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
from pathx.engine.rules.fallback import vjp
from pathx.engine.rules.table import OPERATIONS

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(3), dtype=torch.float64)


ONE, HEAD, MATRIX = numbers(1, 3, 4), numbers(12, 2), numbers(4, 4)
PLACES = torch.arange(36).reshape(3, 3, 4) % 3

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    # Where a first dimension of 1 is no batch, and where what is frozen has one image's numbers in each row.
    "a fixed tensor with one in front": lambda x: torch.lerp(F.relu(x), ONE, 0.25),
    "fixed places, others for every image": lambda x: F.relu(x).gather(1, PLACES[: len(x)]),
    "places of each image's own": lambda x: F.relu(x).gather(1, x.argsort(1)),
    "written where each image's own places are": lambda x: F.relu(x).scatter_add(1, x.argsort(1), F.relu(-x)),
    "a matrix of each image's own": lambda x: torch.bmm((x > 0).double(), F.relu(x).mT).repeat(1, 1, 2)[:, :, :4],
    "the same matrix for all": lambda x: torch.bmm(F.relu(x), MATRIX.expand(len(x), 4, 4)),
    "a constant part": lambda x: torch.lerp(F.relu(x), torch.full((3, 4), 5.0).double(), 0.5),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 3])
def test_everything_kept_is_the_gradient_and_what_is_left_the_bias(name: str, count: int) -> None:
    model = Function(lambda x: F.relu(CASES[name](x)).flatten(1) @ HEAD)
    images = numbers(count, 3, 4)
    found = pathx.explain(model, images, target=1, depth=1, width="all", alpha=0.0)
    x = images.clone().requires_grad_()
    logits = model(x)
    (gradient,) = torch.autograd.grad(logits[:, 1].sum(), x)
    for one, expected, image, row in zip(found, gradient, images, logits.detach(), strict=True):
        assert_close(one.weight, expected)
        assert_close(one.bias, float(row[1] - (expected * image).sum()))


def test_the_records_without_a_rule_of_their_own_go_this_way() -> None:
    used = {name for name, operation in OPERATIONS.items() if operation.transpose is vjp}
    assert {"bmm", "gather", "lerp", "avg_pool3d", "upsample_bilinear2d"} <= used
    assert not used & {"convolution", "addmm", "max_pool2d_with_indices", "add", "cat", "view"}
    assert all(OPERATIONS[name].constant is not None for name in used)
