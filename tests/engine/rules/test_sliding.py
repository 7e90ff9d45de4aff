"""The window below a kernel that slides is where the kernel reached."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.modules import Function
from torch.testing import assert_close

import pathx
from pathx.engine.rules.sliding import grown, spatial
from pathx.engine.window import Corners, Origin, Window

pytestmark = pytest.mark.usefixtures("one_thread")


@given(
    kernel=st.integers(1, 4), stride=st.integers(1, 3), padding=st.integers(0, 3), size=st.integers(4, 9), each=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_unit_reaches_what_the_transpose_says(
    kernel: int, stride: int, padding: int, size: int, each: bool, seed: int
) -> None:
    """Of rows with a box each, and of rows that all have the same, which is cut to the map."""
    length = (size + 2 * padding - kernel) // stride + 1
    place = torch.tensor([seed % length, seed // 7 % length])
    place = place if each else place[:1].expand(2)
    row = torch.arange(2)
    ones = torch.ones(2, 1, 1, dtype=torch.float64)
    origin: tuple[Origin, ...] = (0, Corners(place, length) if each else int(place[0]))
    unit = Window(ones, origin, (1, length), row, row)
    weight = torch.arange(1.0, kernel + 1, dtype=torch.float64)
    found = grown(unit, weight.expand(2, 1, kernel), 0, (1, size), ((stride,), (padding,)))
    maps = torch.zeros(2, 1, length, dtype=torch.float64)
    maps[row, 0, place] = 1
    rest = size + 2 * padding - kernel - (length - 1) * stride  # of the map, which no kernel reached
    whole = F.conv_transpose1d(maps, weight[None, None], stride=stride)
    expected = F.pad(whole, (0, rest))[:, :, padding : padding + size]
    assert_close(found.dense().data, expected)
    assert not found.overhang[0]
    if not each:
        assert not any(found.overhang)


def test_a_setting_is_for_every_dimension() -> None:
    assert (spatial(2, 3), spatial([2], 2), spatial([1, 2], 2)) == ((2, 2, 2), (2, 2), (1, 2))


def test_a_network_whose_head_sees_nothing_but_padding() -> None:
    """Every row of the classes has the same box there, beside the map below."""
    convolution, head = torch.ones(2, 1, 1, 1), torch.ones(8, 2)
    model = Function(lambda x: F.conv2d(F.relu(x), convolution, padding=2)[:, :, :1].flatten(1)[:, :8] @ head)
    (found,) = pathx.explain(model, torch.rand(1, 1, 3, 3), depth=1)
    assert found.path[0].below_alpha or not found.path[0].units
    assert found.score == 0 and not found.attribution.any()
