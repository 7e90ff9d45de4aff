"""Elements picked by their values go back to where they were, by whichever dimension they were picked along."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.rules.routes import _DIMENSIONS

MORE = {"topk": (2,), "kthvalue": (2,)}
"""What comes before the dimension."""


def picked(name: str, x: Tensor, dim: int) -> Tensor:
    return getattr(torch, name)(x, *MORE.get(name, ()), dim)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("dim", [1, -1])
@pytest.mark.parametrize("name", sorted(_DIMENSIONS))
def test_a_pick_is_a_route(name: str, dim: int) -> None:
    images = torch.rand(2, 3, 4, generator=seeded(7), dtype=torch.float64) + 0.1
    model = Function(lambda x: 2 * picked(name, F.relu(x), dim).flatten(1) + 1)
    x = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x)[:, 1].sum(), x)
    found = pathx.explain(model, images, target=1, depth=1, width="all", alpha=0.0)
    for one, expected in zip(found, gradient, strict=True):
        assert_close(one.weight, expected)


@pytest.mark.parametrize("name", sorted(_DIMENSIONS))
def test_images_are_not_compared_with_each_other(name: str) -> None:
    with pytest.raises(PathxError, match=r"works along the batch|without the batch"):
        pathx.explain(Function(lambda x: picked(name, F.relu(x), 0).expand(2, 3)), torch.rand(2, 3) + 0.1)


def test_of_equals_the_one_that_torch_names_is_taken() -> None:
    image = torch.tensor([[4.0, 4.0, 1.0]])
    (found,) = pathx.explain(
        Function(lambda x: F.relu(x).max(1, keepdim=True)[0] * torch.ones(2)), image, target=0, depth=1
    )
    assert found.weight.tolist() == torch.eye(3)[image.max(1).indices[0]].tolist()
