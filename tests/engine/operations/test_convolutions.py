"""A convolution's transpose is computed in whichever way is quickest, and all of them are autograd's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

from pathx.engine.operations.convolutions import _whole_map, pointwise_convolution, spread_by

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


@settings(max_examples=150)
@given(
    channels=st.sampled_from([(1, 2), (3, 4), (6, 4)]),  # below and above; few below is the way down to the colours
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)) | st.just((2, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.sampled_from([(1, 1), (1, 1), (2, 1)]),
    groups=st.sampled_from([1, 1, 2]),
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    rows=st.sampled_from([1, 7]),
)
def test_whole_maps_go_down_as_autograd_takes_them(
    channels: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    groups: int,
    size: tuple[int, int],
    rows: int,
) -> None:
    below, above = channels
    assume(below % groups == 0)
    reach = [gap * (length - 1) + 1 for gap, length in zip(dilation, kernel, strict=True)]
    assume(all(length + 2 * pad >= far for length, pad, far in zip(size, padding, reach, strict=True)))
    weight = numbers(above, below // groups, *kernel)
    x = numbers(rows, below, *size).requires_grad_()
    out = F.conv2d(x, weight, None, stride, padding, dilation, groups)
    cotangent = numbers(*out.shape, seed=1)
    (expected,) = torch.autograd.grad(out, x, cotangent)
    assert_close(_whole_map(cotangent, weight, (below, *size), (stride, padding, dilation, groups)), expected)


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


def test_a_dilated_kernel_has_zeros_between_its_elements() -> None:
    data = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert spread_by(data, (2, 3)).tolist() == [[[[1, 0, 0, 2], [0, 0, 0, 0], [3, 0, 0, 4]]]]
    assert spread_by(data[..., :1], (1, 3)).tolist() == [[[[1], [3]]]]
