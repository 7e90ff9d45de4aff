"""Pools: another way to compute them is the same pool, and what has no channels is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.pulled import Above, Seen, assert_as_autograd, assert_boxes_go_down, assert_field, fixed, pictures
from support.small import seeded
from torch import Tensor

import pathx
from pathx import PathxError
from pathx.engine.fields import boxes
from pathx.engine.freeze import freeze
from pathx.engine.rules.pooling import max_pool_forward
from pathx.engine.window import unravel

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(5), dtype=torch.float64)


@pytest.mark.parametrize("settings", [([3, 3], [2, 2], [1, 1]), ([2, 2],), ([2, 3], [1, 2], [1, 1], [2, 1], True)])
def test_with_channels_last_it_is_the_same_pool(settings: tuple[list[int], ...]) -> None:
    x = numbers(2, 9, 7, 8).round()  # with ties, of which the first wins
    found = max_pool_forward(x, *settings)
    assert found is not None
    for mine, theirs in zip(found, aten.max_pool2d_with_indices(x, *settings), strict=True):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()


def test_where_it_gains_nothing_it_is_left_to_torch() -> None:
    assert max_pool_forward(numbers(2, 7, 4, 4), [2, 2]) is None  # few channels
    assert max_pool_forward(numbers(9, 4, 4), [2, 2]) is None
    assert max_pool_forward(numbers(2, 9, 4, 4).transpose(2, 3), [2, 2]) is None


@pytest.mark.parametrize("pool", [F.max_pool2d, F.avg_pool2d, lambda x, _: F.adaptive_avg_pool2d(x, 2)])
def test_images_without_channels_are_taken_for_channels_and_explained_one_by_one(pool: object) -> None:
    """Of a maximum pathx knows the places only where channels have a dimension."""
    model = Function(lambda x: pool(F.relu(x), 2).flatten(1) + 1)  # type: ignore[operator]
    if pool is F.max_pool2d:
        with pytest.raises(PathxError, match=r"pool2d.* works along the batch"):
            pathx.explain(model, numbers(2, 4, 4), depth=1)
    else:
        assert len(assert_as_autograd(model, numbers(2, 4, 4).double()).parts) == 2


def test_of_equals_the_one_that_torch_names_is_taken() -> None:
    image = torch.tensor([[4.0, 4.0, 1.0]])
    (found,) = pathx.explain(
        Function(lambda x: F.relu(x).max(1, keepdim=True)[0] * torch.ones(2)), image, target=0, depth=1
    )
    assert found.weight.tolist() == torch.eye(3)[image.max(1).indices[0]].tolist()


def test_a_maximum_goes_to_the_element_that_won() -> None:
    image = torch.tensor([[[[1.0, 5.0, 2.0, 2.0], [3.0, 4.0, 2.0, 1.0]]]])  # a tie: the first of the two
    model = Function(lambda x: F.max_pool2d(F.relu(x), 2).flatten(1) @ torch.tensor([[1.0, 0.0], [10.0, 0.0]]))
    (found,) = pathx.explain(model, image, target=0, depth=1)
    assert found.weight.tolist() == [[[0.0, 1.0, 10.0, 0.0], [0.0, 0.0, 0.0, 0.0]]]


MAXIMA: list[tuple[Any, ...]] = [
    (2,), ((3, 2),), (3, 2), (3, (2, 1), 1), ((2, 3), (1, 2), (1, 0)), (2, 1, 0, (2, 1)), (2, 3, 1, 1, True), (3, 2, 0, 1, True),
    ((1, 2), None, (0, 1)), (3, (1, 3), 1, (1, 2), True), (2, 1, 1, 2),
]  # fmt: skip
MEANS: list[tuple[Any, ...]] = [
    (2,), ((3, 2),), (3, 2, 1), (3, 2, 1, True), (3, 2, 1, True, False), ((3, 2), (2, 1), (1, 0), False, False),
    (3, 2, 1, False, True, 5), (2, 3, 1, True, True),
    ((2, 3), (1, 2), (1, 1), True, False), (3, 2, 0, True), ((1, 3), None, (0, 1)), (3, 3, 1, True, True, 2),
]  # fmt: skip
SIZES = [(2, 3, 7, 6), (2, 2, 5, 8)]


@pytest.mark.parametrize("settings", [([2],), ([3], [2]), ([3], [2], [1]), ([2], [], [1])])
def test_settings_that_are_said_once_are_for_both_axes(settings: tuple[Any, ...]) -> None:
    """As TorchScript and other code may call them."""
    dilated = (*settings, [2]) if len(settings) == 3 else settings
    for function in (
        lambda x: aten.avg_pool2d(2 * x, *settings),
        lambda x: aten.max_pool2d_with_indices(2 * x, *settings)[0],
        lambda x: aten.max_pool2d_with_indices(2 * x, *dilated)[0],
    ):
        assert_boxes_go_down(assert_as_autograd(Above(function), pictures(2, 2, 7, 6)))
        assert_field(function, fixed(2, 1, 15, 7), exact=False)


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("settings", MAXIMA)
def test_maxima_are_autograds_in_boxes_and_whole_maps(settings: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    assert_boxes_go_down(assert_as_autograd(Above(lambda x: F.max_pool2d(2 * x, *settings)), pictures(*shape)))


@pytest.mark.parametrize("shape", SIZES)
@pytest.mark.parametrize("settings", MEANS)
def test_means_are_autograds_in_boxes_and_whole_maps(settings: tuple[Any, ...], shape: tuple[int, ...]) -> None:
    assert_boxes_go_down(assert_as_autograd(Above(lambda x: F.avg_pool2d(2 * x, *settings)), pictures(*shape)))


@pytest.mark.parametrize("settings", MEANS)
def test_fields_of_means(settings: tuple[Any, ...]) -> None:
    assert_field(lambda x: F.avg_pool2d(x, *settings), fixed(2, 1, 15, 7), exact=True)


@pytest.mark.parametrize("settings", MAXIMA)
def test_fields_of_maxima(settings: tuple[Any, ...]) -> None:
    """Those of an average of the same places: only one element of each is really seen."""
    kernel, stride, padding, dilation = [*settings, *(None, 0, 1)[len(settings) - 1 :]][:4]
    assert_field(lambda x: F.max_pool2d(x, *settings), fixed(2, 1, 15, 7), exact=False)

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


@pytest.mark.parametrize("axis", [2, 3])
def test_maxima_of_padding_alone_along_one_axis(axis: int) -> None:
    """Of which torch names any place."""

    def along(value: int, other: int) -> tuple[int, int]:
        return (value, other) if axis == 2 else (other, value)

    def function(x: Tensor) -> Tensor:
        one = 2 * x.narrow(axis, 0, 1)
        return F.relu(F.max_pool2d(one, along(2, 1), 1, along(1, 0), along(2, 1))) + one

    assert_as_autograd(Above(function), pictures(2, 2, 3, 4))


ADAPTED = [(1, 1), (3, 4), (1, 4), (3, 1), (7, 6), (7, 1), (9, 8), 2]


@pytest.mark.parametrize("size", ADAPTED)
def test_means_of_any_number_of_places(size: Any) -> None:
    assert_boxes_go_down(assert_as_autograd(Above(lambda x: F.adaptive_avg_pool2d(2 * x, size)), pictures(2, 3, 7, 6)))


@pytest.mark.parametrize("kind", ["mean", "sum"])
@pytest.mark.parametrize("dims", [1, -1, (2,), (2, 3), (3, 1), (-1, -2), (1, 2, 3), (-3,), (3, 2, 1)])
@pytest.mark.parametrize("keep", [None, True, False])
def test_means_and_sums_over_any_dimensions(kind: str, dims: Any, keep: bool | None) -> None:
    more = {} if keep is None else {"keepdim": keep}
    assert_boxes_go_down(
        assert_as_autograd(Above(lambda x: getattr(2 * x, kind)(dims, **more)[:, None]), pictures(2, 3, 4, 5))
    )


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_pools_know_channels_by_their_dimensions(dims: int) -> None:
    """With a dimension less, images are taken for channels: they are then explained one by one, or not at all."""
    for name in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        pool = getattr(F, f"{name}{dims}d")
        right, wrong = pictures(2, 2, *(4,) * dims), pictures(2, *(4,) * dims)
        model = Above(lambda x, pool=pool: pool(2 * x, 2))
        if dims > 1 or name == "avg_pool":
            assert not freeze(model, right).parts
        if "max" in name:
            with pytest.raises(PathxError, match=r"works along the batch|without the batch"):
                freeze(model, wrong)
        else:
            assert len(assert_as_autograd(model, wrong).parts) == 2


def test_a_kernel_far_larger_than_the_map_costs_no_more_than_the_map() -> None:
    pool = Above(lambda x: F.avg_pool2d(2 * x, 40_000, ceil_mode=True))  # its transpose would take 36 GiB
    assert_as_autograd(pool, pictures(1, 3, 7, 6))
