"""A convolution's transpose is computed in whichever way is quickest, and all of them are autograd's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pulled import Above, assert_as_autograd, assert_boxes_go_down, assert_field, fixed
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.rules.convolutions import pointwise_convolution

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@pytest.mark.parametrize("stride", [[1, 1], [2, 1], [2]])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_kernel_of_one_element_is_a_product(stride: list[int], biased: bool, batch: int) -> None:
    x, weight, bias = numbers(batch, 4, 5, 6), numbers(3, 4, 1, 1), numbers(3) if biased else None
    found = pointwise_convolution(x, weight, bias, stride, [0, 0], [1, 1], False, [0, 0], 1)
    assert found is not None
    assert_close(found, F.conv2d(x, weight, bias, stride))


def test_any_other_kernel_is_left_to_torch() -> None:
    x, one = numbers(1, 4, 5, 6), numbers(4, 4, 1, 1)
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    assert pointwise_convolution(x, numbers(3, 4, 2, 1), None, *plain) is None  # type: ignore[arg-type]
    assert pointwise_convolution(x.transpose(2, 3), one, None, *plain) is None  # type: ignore[arg-type]
    assert pointwise_convolution(x, one, None, [1, 1], [1, 0], [1, 1], False, [0, 0], 1) is None
    assert pointwise_convolution(x, one[:, :2], None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2) is None
    assert pointwise_convolution(x, one, None, [1, 1], [0, 0], [1, 1], True, [0, 0], 1) is None


GEOMETRIES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # the shape of the images, that of the kernel, and its settings
    "plain": ((2, 3, 5, 6), (4, 3, 3, 2), {}),
    "strides of its own": ((2, 3, 7, 8), (4, 3, 3, 2), {"stride": (2, 3)}),
    "a stride that leaves a rest": ((2, 3, 8, 7), (2, 3, 3, 3), {"stride": 2}),
    "padded": ((2, 3, 5, 4), (4, 3, 2, 3), {"padding": (1, 2)}),
    "padded beyond the kernel": ((2, 3, 4, 4), (2, 3, 2, 1), {"padding": (3, 2)}),
    "dilated": ((2, 3, 6, 7), (4, 3, 2, 3), {"dilation": (2, 1)}),
    "dilated the other way": ((2, 3, 6, 7), (4, 3, 3, 2), {"dilation": (1, 3), "padding": (0, 2)}),
    "everything": ((2, 4, 9, 8), (6, 2, 3, 2), {"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2), "groups": 2}),
    "groups": ((2, 4, 5, 5), (8, 1, 2, 2), {"groups": 4}),
    "groups of several": ((2, 6, 4, 5), (4, 3, 2, 2), {"groups": 2, "stride": 2}),
    "many channels": ((2, 6, 6, 5), (3, 6, 3, 3), {"stride": 2, "padding": 1}),
    "many channels, dilated": ((2, 6, 6, 5), (3, 6, 2, 2), {"dilation": 2, "padding": 1}),
    "phases": ((2, 3, 9, 8), (4, 3, 5, 5), {"stride": 2, "padding": 2}),
    "phases, unlike": ((2, 3, 11, 10), (4, 3, 6, 5), {"stride": 2, "padding": (0, 1)}),
    "phases of three": ((2, 2, 13, 9), (3, 2, 7, 8), {"stride": 3, "padding": (3, 1)}),
    "a kernel just too small for phases": ((2, 3, 9, 8), (4, 3, 4, 5), {"stride": 2, "padding": 1}),
    "one element": ((2, 3, 5, 6), (4, 3, 1, 1), {}),
    "one element, strided": ((2, 6, 5, 6), (4, 6, 1, 1), {"stride": (2, 1)}),
    "one element, strided alike": ((2, 6, 5, 6), (4, 6, 1, 1), {"stride": 2}),
    "one element, padded": ((2, 6, 3, 4), (4, 6, 1, 1), {"padding": (1, 0)}),
    "one element, grouped": ((2, 4, 3, 4), (4, 2, 1, 1), {"groups": 2}),
    "the whole map": ((2, 3, 4, 5), (6, 3, 4, 5), {}),
    "lines": ((2, 3, 9), (4, 3, 3), {"stride": 2, "padding": 1}),
    "lines, dilated and grouped": ((2, 4, 9), (4, 2, 2), {"dilation": 3, "padding": 2, "groups": 2}),
    "lines, one element": ((2, 3, 9), (4, 3, 1), {"stride": 2}),
    "volumes": ((2, 2, 4, 3, 5), (3, 2, 2, 1, 3), {"stride": (2, 1, 2), "padding": (1, 0, 1)}),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_boxes_and_maps_are_autograds(name: str, biased: bool) -> None:
    shape, kernel, settings = GEOMETRIES[name]
    weight, bias = numbers(*kernel), numbers(kernel[0]) if biased else None
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel) - 2]
    model = Above(lambda x: convolve(x * 2, weight, bias, **settings))
    assert_boxes_go_down(assert_as_autograd(model, numbers(*shape, seed=1)))


@pytest.mark.parametrize("name", [name for name, (shape, _, _) in GEOMETRIES.items() if len(shape) == 4])
def test_fields_are_what_a_kernel_reaches(name: str) -> None:
    _, (above, below, *sizes), settings = GEOMETRIES[name]
    groups = settings.get("groups", 1)
    channels = below * groups
    weight = fixed(above, below, *sizes)
    assert_field(
        lambda x: F.conv2d(x[:, :1].expand(-1, channels, -1, -1), weight, **settings),
        fixed(2, 1, 27, 13),
        exact="dilated" not in name and name != "everything",
    )


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 4, 5), (3, 2, 3, 2), {}),
    "padded": ((2, 3, 4, 5), (3, 2, 3, 2), {"padding": (1, 0)}),
    "padded much": ((2, 3, 5, 5), (3, 2, 2, 3), {"padding": (1, 2)}),
    "dilated": ((2, 3, 4, 3), (3, 2, 2, 3), {"dilation": (3, 1), "padding": (1, 1)}),
    "strided": ((2, 3, 4, 3), (3, 2, 3, 2), {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2)}),
    "grouped": ((2, 4, 4, 3), (4, 2, 2, 2), {"groups": 2}),
    "longer by output padding": ((2, 3, 4, 5), (3, 2, 2, 2), {"dilation": 2, "output_padding": (1, 0)}),
    "lines": ((2, 3, 5), (3, 2, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "lines without a stride": ((2, 3, 5), (3, 2, 3), {"padding": 1}),
    "volumes": ((2, 2, 3, 2, 3), (2, 2, 2, 2, 1), {"stride": (1, 2, 1)}),
}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_ones_are_autograds(name: str, biased: bool) -> None:
    shape, kernel, settings = TRANSPOSED[name]
    weight, bias = numbers(*kernel), numbers(kernel[1] * settings.get("groups", 1)) if biased else None
    convolve = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[len(kernel) - 2]
    model = Above(lambda x: convolve(x * 2, weight, bias, **settings))
    assert_boxes_go_down(assert_as_autograd(model, numbers(*shape, seed=1)))


@pytest.mark.parametrize("name", [name for name, (shape, _, _) in TRANSPOSED.items() if len(shape) == 4])
def test_fields_of_transposed_ones_are_known_without_a_stride(name: str) -> None:
    _, (below, above, *sizes), settings = TRANSPOSED[name]
    weight = fixed(below, above, *sizes)
    assert_field(
        lambda x: F.conv_transpose2d(x[:, :1].expand(-1, below, -1, -1), weight, **settings),
        fixed(2, 1, 11, 7),
        exact=name in ("plain", "padded", "padded much", "grouped"),
    )
