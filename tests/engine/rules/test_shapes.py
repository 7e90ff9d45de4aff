"""Operations that only move elements, in networks where a route really passes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.pulled import Above, assert_as_autograd, jacobian, pictures, pulled
from support.windows import corners
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.rules.shapes import _order, inserted, reshaped
from pathx.engine.window import Origin, Window


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


# --- boxes in other coordinates ----------------------------------------------------------------------------------------


def box(shape: tuple[int, ...], starts: tuple[int | list[int], ...], extent: tuple[int, ...]) -> Window:
    """Three cotangents."""
    data = torch.randn(3, *extent, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    origin: tuple[Origin, ...] = tuple(one if isinstance(one, int) else corners(one) for one in starts)
    row = torch.arange(3)
    window = Window(data, origin, shape, row, row % 2)
    return replace(window, clean=not any(window.overhang))


EACH, BESIDE = [0, 2, 1], [-1, 3, 1]
# Windows, shapes that hold as many elements, and whether the box is known there, too.
RESHAPED: dict[str, tuple[Window, tuple[int, ...], bool]] = {
    "the same": (box((2, 3, 4), (0, EACH, 0), (2, 1, 4)), (2, 3, 4), True),
    "a dimension of 1 more, in front": (box((2, 3, 4), (0, EACH, 1), (2, 1, 2)), (1, 2, 3, 4), True),
    "inside": (box((2, 3, 4), (1, EACH, 1), (1, 1, 2)), (2, 1, 3, 4), True),
    "at the end": (box((2, 3, 4), (1, EACH, 1), (1, 1, 2)), (2, 3, 4, 1), True),
    "one less": (box((2, 1, 3, 1), (1, 0, EACH, 0), (1, 1, 1, 1)), (2, 3), True),
    "two less": (box((1, 2, 1, 3), (0, 1, 0, BESIDE), (1, 1, 1, 2)), (2, 3), True),
    "channels in groups": (box((6, 3, 4), (0, EACH, 2), (6, 1, 2)), (2, 3, 3, 4), True),
    "groups together": (box((2, 3, 3, 4), (0, 0, EACH, BESIDE), (2, 3, 1, 3)), (6, 3, 4), True),
    "channels in groups, of some": (box((6, 3, 4), (2, EACH, 2), (2, 1, 2)), (2, 3, 3, 4), False),
    "places in one row": (box((2, 3, 4), (0, EACH, 0), (2, 1, 4)), (2, 12), False),
    "places in one row, of a channel": (box((3, 1, 4), (EACH, 0, 0), (1, 1, 4)), (3, 4), True),
    "all in one row": (box((2, 3, 4), (1, EACH, 1), (1, 1, 2)), (24,), False),
    "one row apart": (box((24,), (3,), (5,)), (2, 3, 4), False),
    "single elements": (box((2, 3, 4), (1, EACH, [0, 3, 1]), (1, 1, 1)), (4, 6), True),
    "single elements, beside": (box((2, 3, 4), (1, EACH, [0, 4, 2]), (1, 1, 1)), (4, 6), True),
    "single elements, of one place": (box((2, 3, 4), (1, 0, 3), (1, 1, 1)), (24,), True),
    "whole maps": (box((2, 3, 4), (0, 0, 0), (2, 3, 4)), (4, 6), True),
    "of one element": (box((1, 1), (0, 0), (1, 1)), (1,), True),
    "other sizes at the end": (box((3, 2, 4), (0, 1, 1), (3, 1, 2)), (3, 4, 2), False),
    "only the last alike": (box((2, 6, 4), (0, 0, EACH), (2, 6, 2)), (3, 4, 4), True),
}


@pytest.mark.parametrize("name", RESHAPED)
def test_a_box_in_another_shape(name: str) -> None:
    window, shape, stays = RESHAPED[name]
    found = reshaped(window, shape)
    assert found.shape == shape and torch.equal(found.dense().data, window.dense().data.reshape(3, *shape))
    assert torch.equal(found.row, window.row) and torch.equal(found.image, window.image)
    whole = window.is_full or not stays
    assert found.is_full == (whole or found.extent == shape)
    if stays:
        assert found.data.numel() == window.data.numel()
    assert not reshaped(replace(window, ordered=False), shape).ordered and found.ordered


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 3), (2, 3), (0, 1, 2)])
def test_dimensions_of_one_are_put_in(axes: tuple[int, ...]) -> None:
    window = box((3, 4), (EACH, BESIDE), (1, 2))
    found, expected = inserted(window, axes), window.dense().data
    for axis in axes:
        expected = expected.unsqueeze(axis + 1)
    assert torch.equal(found.dense().data, expected) and found.overhang.count(True) == 1


def test_the_order_of_dimensions() -> None:
    x = torch.zeros(2, 3, 4, 5)
    for kind, args in (
        ("permute", ([0, 2, 3, 1],)), ("permute", ([0, -1, -3, 2],)), ("transpose", (1, -1)), ("transpose", (-2, 1)),
    ):  # fmt: skip
        order = _order(kind, (x, *args), 4)
        assert tuple(x.shape[dim] for dim in order) == tuple(getattr(x, kind)(*args).shape)
    assert _order("t", (x,), 2) == [1, 0] and _order("t", (x,), 1) == [0]


# --- places in memory ----------------------------------------------------------------------------------------------------

READ: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, bool]] = {
    # sizes, strides and beginning, in images of 24 elements, and whether every image is read from its own
    "all": ((2, 24), (24, 1), 0, True),
    "the last element": ((2, 1), (24, 5), 23, True),
    "the first of the next": ((2, 1), (24, 5), 24, False),
    "up to the end": ((2, 3, 4), (24, 8, 1), 4, True),
    "beyond the end by one": ((2, 3, 4), (24, 8, 1), 5, False),
    "in other steps": ((2, 12), (12, 1), 0, False),
    "again and again": ((2, 5, 20), (24, 0, 1), 4, True),
}


@pytest.mark.parametrize("name", READ)
def test_every_image_is_read_from_its_own_memory(name: str) -> None:
    sizes, strides, first, apart = READ[name]
    images = pictures(2, 2, 3, 4)
    plain = Above(lambda x: x.contiguous().as_strided(sizes, strides, first))
    if not apart:
        with pytest.raises(PathxError, match=r"works along the batch|cannot run"):
            freeze(plain, images)
        return
    weight, _ = pulled(freeze(plain, images), windows=True)
    assert_close(weight, jacobian(plain, images))


def test_one_image_is_read_in_any_steps() -> None:
    images = pictures(1, 2, 3, 4)
    for step in (24, 3):
        model = Above(lambda x, step=step: x.contiguous().as_strided((1, 24), (step, 1), 0))
        assert_close(pulled(freeze(model, images), windows=True)[0], jacobian(model, images))


@pytest.mark.parametrize("dims", [(1,), (2,), (-1, 1)])
def test_sequences_are_turned_round_and_see_everything(dims: tuple[int, ...]) -> None:
    network = assert_as_autograd(Above(lambda x: (2 * x).flip(dims)), pictures(2, 3, 4)).network
    assert not any(network.fields.values())
