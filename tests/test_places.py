"""A place says where the magnitude is, whatever its unit, and moves with it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pathx.places import WITHIN, place


def random_map(seed: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(3, height, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 99), st.integers(1, 20), st.integers(1, 20))
def test_a_box_holds_its_share_along_each_axis_and_the_centre_is_the_mean(seed: int, height: int, width: int) -> None:
    values = random_map(seed, height, width)
    found = place(values)
    assert found is not None
    (x, y), (left, top, right, bottom) = found.centre, found.box
    mass = values.sum(0).abs()
    assert 0 <= left < right <= width and 0 <= top < bottom <= height
    assert mass[:, left:right].sum() >= WITHIN * mass.sum() * (1 - 1e-9)
    assert mass[top:bottom].sum() >= WITHIN * mass.sum() * (1 - 1e-9)
    columns = torch.arange(width) + 0.5
    assert x == pytest.approx(float((mass.sum(0) * columns).sum() / mass.sum()))
    assert 0 < y < height


@given(st.integers(0, 99), st.integers(0, 5), st.integers(0, 5))
def test_a_place_moves_with_the_attribution_and_does_not_depend_on_its_unit_or_sign(seed: int, x: int, y: int) -> None:
    values = random_map(seed, 6, 9)
    moved = torch.zeros(3, 12, 15, dtype=values.dtype)
    moved[:, y : y + 6, x : x + 9] = -1e-200 * values
    one, other = place(values), place(moved)
    assert one is not None and other is not None
    assert other.box == (one.box[0] + x, one.box[1] + y, one.box[2] + x, one.box[3] + y)
    assert other.centre == pytest.approx((one.centre[0] + x, one.centre[1] + y))


def test_one_pixel_is_its_own_box() -> None:
    values = torch.zeros(8, 8)
    values[2, 5] = -3
    found = place(values)
    assert found is not None
    assert (found.centre, found.box) == ((5.5, 2.5), (5, 2, 6, 3))
    assert found.document() == {"centre": [5.5, 2.5], "box": [5, 2, 6, 3]}


def test_nothing_is_nowhere() -> None:
    assert place(torch.zeros(3, 4, 4)) is None
    assert place(torch.ones(7)) is None  # no picture
