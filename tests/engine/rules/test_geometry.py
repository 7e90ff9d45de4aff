"""Convolutions, pools, slices, pads and joins in every geometry: autograd's, in boxes and whole maps, and what they see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pulled import Above, Seen, assert_as_autograd, assert_boxes_go_down, assert_field, fixed, pictures
from torch import Tensor

from pathx import PathxError
from pathx.engine.fields import boxes
from pathx.engine.freeze import freeze
from pathx.engine.rules.pooling import FORMS
from pathx.engine.window import unravel

aten = torch.ops.aten
MAPS = (2, 3, 7, 6)
Geometry = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]  # of the images and of the kernel, and its settings


def assert_linear(function: Callable[[Tensor], Tensor], *shape: int) -> None:
    assert_boxes_go_down(assert_as_autograd(Above(lambda x: function(2 * x)), pictures(*shape)))


CONVOLUTIONS: dict[str, Geometry] = {
    "strides of its own": ((2, 3, 7, 8), (4, 3, 3, 2), {"stride": (2, 3)}),
    "a stride that leaves a rest": ((2, 3, 8, 7), (2, 3, 3, 3), {"stride": 2}),
    "padded": ((2, 3, 5, 4), (4, 3, 2, 3), {"padding": (1, 2)}),
    "padded beyond the kernel": ((2, 3, 4, 4), (2, 3, 2, 1), {"padding": (3, 2)}),
    "dilated": ((2, 3, 6, 7), (4, 3, 3, 2), {"dilation": (1, 3), "padding": (0, 2)}),
    "everything": ((2, 4, 9, 8), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    "depthwise": ((2, 4, 5, 5), (8, 1, 2, 2), {"groups": 4}),
    "groups of several": ((2, 6, 4, 5), (4, 3, 2, 2), {"groups": 2, "stride": 2}),
    "many channels": ((2, 6, 6, 5), (3, 6, 3, 3), {"stride": 2, "padding": 1}),
    "many channels, dilated": ((2, 6, 6, 5), (3, 6, 2, 2), {"dilation": 2, "padding": 1}),
    "one element, strided": ((2, 6, 5, 6), (4, 6, 1, 1), {"stride": (2, 1)}),
    "one element, padded": ((2, 6, 3, 4), (4, 6, 1, 1), {"padding": (1, 0)}),
    "one element, grouped": ((2, 4, 3, 4), (4, 2, 1, 1), {"groups": 2}),
    "one element": ((2, 6, 3, 4), (4, 6, 1, 1), {}),
    "of an image": ((2, 3, 9, 8), (6, 3, 5, 3), {"stride": 2, "padding": (2, 1)}),
    "of an image, a kernel smaller than its stride": ((2, 1, 8, 10), (4, 1, 1, 2), {"stride": 3}),
    "of an image, that leaves a rest": ((2, 2, 11, 9), (5, 2, 4, 2), {"stride": 4, "padding": (0, 1)}),
    "the whole map": ((2, 3, 4, 5), (6, 3, 4, 5), {}),
    "lines": ((2, 4, 9), (4, 2, 2), {"dilation": 3, "padding": 2, "groups": 2}),
    "lines, one element": ((2, 3, 9), (4, 3, 1), {"stride": 2}),
    "volumes": ((2, 2, 4, 3, 5), (3, 2, 2, 1, 3), {"stride": (2, 1, 2), "padding": (1, 0, 1)}),
}
TRANSPOSED: dict[str, Geometry] = {
    "plain": ((2, 3, 4, 5), (3, 2, 3, 2), {}),
    "padded": ((2, 3, 5, 5), (3, 2, 2, 3), {"padding": (1, 2)}),
    "dilated": ((2, 3, 4, 3), (3, 2, 2, 3), {"dilation": (3, 1), "padding": (1, 1)}),
    "strided": ((2, 3, 4, 3), (3, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}),
    "grouped": ((2, 4, 4, 3), (4, 2, 2, 2), {"groups": 2}),
    "longer by output padding": ((2, 3, 4, 5), (3, 2, 2, 2), {"dilation": 2, "output_padding": (1, 0)}),
    "lines": ((2, 3, 5), (3, 2, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "volumes": ((2, 2, 3, 2, 3), (2, 2, 2, 2, 1), {"stride": (1, 2, 1)}),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str, biased: bool) -> None:
    shape, kernel, settings = CONVOLUTIONS[name]
    weight, bias = fixed(*kernel) - 0.6, fixed(kernel[0]) if biased else None
    convolve: Any = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel) - 2]
    assert_linear(lambda x: convolve(x, weight, bias, **settings), *shape)
    if len(shape) == 4 and biased:
        assert_field(
            lambda x: F.conv2d(x[:, :1].expand(-1, shape[1], -1, -1), fixed(*kernel), **settings),
            fixed(2, 1, 27, 13),
            exact="dilated" not in name and name != "everything",
        )


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_convolutions(name: str) -> None:
    """Their fields are known without a stride."""
    shape, kernel, settings = TRANSPOSED[name]
    weight, bias = fixed(*kernel) - 0.6, fixed(kernel[1] * settings.get("groups", 1))
    convolve: Any = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(kernel) - 2]
    assert_linear(lambda x: convolve(x, weight, bias, **settings), *shape)
    if len(shape) == 4:
        assert_field(
            lambda x: F.conv_transpose2d(x[:, :1].expand(-1, kernel[0], -1, -1), fixed(*kernel), **settings),
            fixed(2, 1, 11, 7),
            exact=name in ("plain", "padded", "grouped"),
        )


MAXIMA: list[tuple[Any, ...]] = [
    ((3, 2),), (3, (2, 1), 1), ((2, 3), (1, 2), (1, 0)), (2, 1, 0, (2, 1)), (2, 3, 1, 1, True), ((1, 2), None, (0, 1)),
    (3, (1, 3), 1, (1, 2), True), (2, 1, 1, 2),
]  # fmt: skip
MEANS: list[tuple[Any, ...]] = [
    ((3, 2),), (3, 2, 1, True), (3, 2, 1, True, False), ((3, 2), (2, 1), (1, 0), False, False), (3, 2, 1, False, True, 5),
    (2, 3, 1, True, True), ((2, 3), (1, 2), (1, 1), True, False), ((1, 3), None, (0, 1)), (3, 3, 1, True, True, 2),
]  # fmt: skip


@pytest.mark.parametrize("settings", MAXIMA)
def test_maxima(settings: tuple[Any, ...]) -> None:
    """Their fields are those of an average of the same places: only one element of each is really seen."""
    assert_linear(lambda x: F.max_pool2d(x, *settings), *MAPS)
    assert_field(lambda x: F.max_pool2d(x, *settings), fixed(2, 1, 15, 7), exact=False)
    kernel, stride, padding, dilation = [*settings, *(None, 0, 1)[len(settings) - 1 :]][:4]

    def average(x: Tensor) -> Tensor:
        sizes = kernel if isinstance(kernel, (tuple, list)) else (kernel, kernel)
        ones = torch.ones(x.shape[1], 1, *sizes, dtype=x.dtype)
        return F.conv2d(x, ones, None, stride or kernel, padding, dilation, x.shape[1])

    found = []
    for function in (lambda x: F.max_pool2d(x, *settings), average):
        network = freeze(Seen(function), fixed(2, 1, 15, 7)).network
        gate = network.layers[-1][0]
        index = unravel(torch.arange(gate.units), gate.shape)
        found.append(boxes(network.fields[gate.source], index, (1, 15, 7)).reshape(*gate.shape, 4))
    height, width = found[1].shape[1:3]  # rounded up, a maximum has a row or a column more
    assert torch.equal(found[0][:, :height, :width], found[1])


@pytest.mark.parametrize("settings", MEANS)
def test_means(settings: tuple[Any, ...]) -> None:
    assert_linear(lambda x: F.avg_pool2d(x, *settings), *MAPS)
    assert_field(lambda x: F.avg_pool2d(x, *settings), fixed(2, 1, 15, 7), exact=True)


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (1, 4), (7, 6), (9, 8), 2])
def test_means_of_any_number_of_places(size: Any) -> None:
    assert_linear(lambda x: F.adaptive_avg_pool2d(x, size), *MAPS)


@pytest.mark.parametrize("settings", [([2],), ([3], [2], [1]), ([2], [], [1])])
def test_settings_that_are_said_once_are_for_both_axes(settings: tuple[Any, ...]) -> None:
    """As TorchScript and other code may call them."""
    dilated = (*settings, [2]) if len(settings) == 3 else settings
    assert_linear(lambda x: aten.avg_pool2d(x, *settings), *MAPS)
    assert_linear(lambda x: aten.max_pool2d_with_indices(x, *dilated)[0], *MAPS)


def test_a_kernel_far_larger_than_the_map_costs_no_more_than_the_map() -> None:
    pool = Above(lambda x: F.avg_pool2d(2 * x, 40_000, ceil_mode=True))  # its transpose would take 36 GiB
    assert_as_autograd(pool, pictures(1, 3, 7, 6))


@pytest.mark.parametrize("settings", [([3, 3], [2, 2], [1, 1]), ([2, 2],), ([2, 3], [1, 2], [1, 1], [2, 1], True)])
def test_with_channels_last_it_is_the_same_pool(settings: tuple[list[int], ...]) -> None:
    operation = aten.max_pool2d_with_indices.default
    x = pictures(2, 9, 7, 8).round()  # with ties, of which the first wins
    found = FORMS[operation](x, *settings)
    assert found is not None
    for mine, theirs in zip(found, operation(x, *settings), strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()
    assert FORMS[operation](x[:, :7], *settings) is None  # few channels


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pools_know_channels_by_their_dimensions(dims: int) -> None:
    """With a dimension less, images are taken for channels: they are then explained one by one, or not at all."""
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        pool = getattr(F, f"{name}{dims}d")
        model, wrong = Above(lambda x, pool=pool: pool(2 * x, 2)), pictures(2, *(4,) * dims)
        if "max" in name:
            with pytest.raises(PathxError, match=r"works along the batch|without the batch"):
                freeze(model, wrong)
        else:
            assert len(assert_as_autograd(model, wrong).parts) == 2


@pytest.mark.parametrize("value", [None, 0.5])
@pytest.mark.parametrize(
    "pads", [(1, 0), (-1, 1), (2, -3), (1, 2, 3, 0), (-2, 0, 1, -1), (1, 0, 0, 2, 1, 1), (0, 0, 0, 0, -1, 0)]
)
def test_pads(pads: tuple[int, ...], value: float | None) -> None:
    more = () if value is None else ("constant", value)
    assert_linear(lambda x: F.pad(x, pads, *more), *MAPS)
    assert_field(lambda x: F.pad(x, pads, *more), fixed(2, 1, 15, 7), exact=True)


@pytest.mark.parametrize("dim", [1, 3, -2])
def test_parts_put_together(dim: int) -> None:
    """Of what varies, what is frozen and what is fixed, in sizes of their own."""

    def function(x: Tensor) -> Tensor:
        x = 2 * x
        some, more = x.narrow(dim, 0, 2), x.narrow(dim, 1, 1)
        return torch.cat([some, fixed(*some.shape), x, (more > 0.5).double(), more, fixed(*more.shape, seed=3)], dim)

    frozen = assert_as_autograd(Above(function), pictures(2, 3, 4, 5))
    assert_boxes_go_down(frozen, lambda node: node.kind == "cat")
