"""Path maps lay contributions where units look; a place says where the magnitude is, and moves with it."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import CLOSE, Case, cases
from torch import nn
from torch.testing import assert_close

import pathx
from pathx.maps import WITHIN, contribution_grids, enlarge, place, plane, smooth


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


# The path map


@settings(max_examples=12)
@given(cases(), st.sampled_from([0.0, 0.025, 0.3]))
def test_a_map_is_the_same_blurred_first_or_last_and_from_units_that_were_written_out(case: Case, sigma: float) -> None:
    for found in case.explain():
        if found.attribution.dim() == 3:
            assert_close(found.path_map(smoothing=sigma), smooth(found.path_map(), sigma), **CLOSE)
            assert_close(pickle.loads(pickle.dumps(found)).path_map(), found.path_map(), **CLOSE)


def strided() -> nn.Module:
    """Six hidden layers, three of them maps, of which the second has a padding that is not even."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.ZeroPad2d((2, 0, 0, 1)), nn.Conv2d(4, 4, 3), nn.ReLU()]
        body += [nn.MaxPool2d(2), nn.Conv2d(4, 6, 1), nn.ReLU()]
        body += [nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 6, 1), nn.ReLU(), nn.Flatten(), nn.Linear(6, 5), nn.ReLU()]
        return nn.Sequential(*body, nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)).eval().double()


def test_a_unit_counts_at_the_centre_of_its_field() -> None:
    """The centre of mass of each layer's part is that of the centres of the fields, where none is cut off."""
    image = torch.randn(1, 1, 33, 33, generator=torch.Generator().manual_seed(1)).double()
    (found,) = pathx.explain(strided(), image, depth="all", width="all", alpha=0)
    across = torch.arange(33, dtype=torch.float64) + 0.5
    assert found.mapped == (3, 2, 1)
    for number, layer in zip((3, 2, 1), found.path[-3:], strict=True):
        for unit in layer.units:
            left, top, right, bottom = unit.receptive_field
            if min(left + right, top + bottom) < 18 or max(left + right, top + bottom) > 48:
                continue  # cut off at the edge of the image
            alone = pathx.PathLayer(number, False, layer.tensors, (unit,))
            part = enlarge(contribution_grids(alone), (33, 33)) / unit.contribution
            assert float(part.sum()) == pytest.approx(1)
            assert float(part.sum(0) @ across) == pytest.approx((left + right) / 2)
            assert float(part.sum(1) @ across) == pytest.approx((top + bottom) / 2)


def test_what_has_no_place_is_left_out_and_said() -> None:
    image = torch.randn(1, 1, 33, 33, generator=torch.Generator().manual_seed(1)).double()
    (deep,) = pathx.explain(strided(), image, depth="all", width=4)
    assert deep.map_note == "layers 6, 5, 4 left out of the path map: no place in the image"
    (top,) = pathx.explain(strided(), image, depth=2, width=4)
    assert top.mapped == ()
    assert_close(top.path_map(), plane(top.attribution))
    assert top.map_note == "no unit of the path has a place in the image: the pixel map stands in for the path map"
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 31 * 31, 2)).eval().double()
    assert pathx.explain(plain, image, depth=1)[0].map_note is None
