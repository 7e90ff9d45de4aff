"""Operations that only move elements, in networks where a route really passes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.pulled import Above, assert_as_autograd, pictures
from torch import Tensor, nn
from torch.testing import assert_close

import pathx


class Shortcut(nn.Module):
    """A residual block whose shortcut drops every other pixel and pads channels, as ResNets for CIFAR-10 do."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.first = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        inner = self.second(F.relu(self.first(x)))
        x = F.relu(inner + F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2)))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("load", ["eager", "traced", "scripted"])
def test_sliced_and_padded_shortcuts_carry_routes_that_jump(load: str) -> None:
    torch.manual_seed(0)
    model: nn.Module = Shortcut().double().eval()
    images = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    loads = {"traced": lambda: torch.jit.trace(model, images), "scripted": lambda: torch.jit.script(model)}
    loaded = loads[load]() if load in loads else model
    with_grad = images.clone().requires_grad_()
    model(with_grad)[:, 1].sum().backward()
    found = pathx.explain(loaded, images, target=1, depth="all", width="all", alpha=0.0, skips="all")
    for explanation, gradient in zip(found, with_grad.grad, strict=True):  # type: ignore[arg-type]
        assert_close(explanation.weight, gradient)
        total = explanation.attribution.sum().item() + explanation.bias
        assert total == pytest.approx(explanation.score, rel=1e-10)
    narrow = pathx.explain(loaded, images, target=1, depth=1, width=2, skips="all")
    for explanation in narrow:
        total = explanation.attribution.sum().item() + explanation.bias
        assert total == pytest.approx(explanation.score, rel=1e-10)


def test_a_real_network_with_such_shortcuts(shared_data) -> None:  # type: ignore[no-untyped-def]
    model = torch.jit.load(str(shared_data / "models" / "cifar10-resnet20.pt")).double()
    image = torch.randn(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (found,) = pathx.explain(model, image, depth="all", width=20, skips="all")
    assert found.hidden_layers == 19
    assert any(unit.contribution for unit in found.path[-1].units)
    assert found.attribution.sum().item() + found.bias == pytest.approx(found.score, rel=1e-9)


@pytest.mark.parametrize("dims", [(1,), (2,), (-1, 1)])
def test_sequences_are_turned_round_and_see_everything(dims: tuple[int, ...]) -> None:
    network = assert_as_autograd(Above(lambda x: (2 * x).flip(dims)), pictures(2, 3, 4)).network
    assert not any(network.fields.values())
