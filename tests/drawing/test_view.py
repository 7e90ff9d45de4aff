"""What explanations are drawn on: tiles of what the network saw, and inputs of any kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.small import images, network

import pathx
from pathx import Drawing, Explanation
from pathx.drawing.figure import View, map_tile, resize_to_tile, used_ends, with_inset
from pathx.drawing.render import pixel_map


def explained(**options: object) -> Explanation:
    (made,) = pathx.explain(network(), images(), **{"depth": 2, **options})  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ((340, 340), (340, 340)),
        ((1360, 340), (620, 155)),
        ((100, 10000), (6, 620)),
        ((32, 32), (320, 320)),
        ((3, 5000), (1, 620)),
        ((1, 1), (340, 340)),
    ],
)
def test_tiles_have_the_shape_of_the_photo(size: tuple[int, int], tile: tuple[int, int]) -> None:
    assert resize_to_tile(Image.new("RGB", size)).size == tile


@pytest.mark.parametrize(("side", "shown"), [(271, 340), (272, 272), (377, 377), (378, 340)])
def test_a_photo_of_about_the_size_of_a_tile_keeps_its_pixels(side: int, shown: int) -> None:
    photo = Image.merge("RGB", [Image.effect_noise((side, side), 60) for _ in range(3)])
    view = View(photo, (0.0, 0.0, side, side))
    assert view.tile().photo.size == (shown, shown)
    assert (view.tile().photo.tobytes() == photo.tobytes()) == (shown == side)


def test_a_pixel_map_is_as_large_as_the_photo_beside_it_unless_its_pixels_stay_squares() -> None:
    beside = Image.new("RGB", (330, 328))
    assert map_tile(pixel_map(torch.randn(3, 200, 200), Drawing()), beside).size == (330, 328)
    crisp = map_tile(pixel_map(torch.randn(3, 20, 20), Drawing()), beside)
    assert (crisp.mode, crisp.size) == ("RGB", (340, 340))


@given(st.floats(-40, 90), st.floats(-40, 60), st.floats(1, 130), st.floats(1, 130))
def test_a_tile_is_what_the_network_saw(left: float, top: float, width: float, height: float) -> None:
    photo = Image.new("RGB", (100, 70), "black")
    region = (min(left, 98.0), min(top, 68.0), max(left + width, 2.0), max(top + height, 2.0))
    seen = View(photo, region).tile()
    assert seen.photo.width >= 1 and seen.photo.height >= 1
    drawn = seen.overlay(torch.ones(4, 4), Drawing())
    assert drawn.size == seen.photo.size or max(seen.photo.size) < 171  # overlays enlarge what is very small


def test_an_input_of_any_kind_can_be_shown() -> None:
    explanation = explained()
    assert explanation.origin is not None
    shown = View.of(explanation).photo
    assert (shown.mode, shown.size) == ("RGB", (10, 10)) and len(shown.getcolors() or []) > 90
    for image in (torch.zeros(3, 10, 10), torch.rand(1, 10, 10), torch.rand(5, 10, 10)):
        other = replace(explanation, origin=replace(explanation.origin, image=image))
        assert View.of(other).photo.size == (10, 10)
    assert View.of(replace(explanation, origin=None)).photo.getcolors() == [(100, (187, 187, 187))]


def test_an_inset_shows_the_strongest_place_far_from_it() -> None:
    """The photo is black but for a white square where the heat is strongest."""
    photo = Image.new("RGB", (200, 200), "black")
    photo.paste("white", (10, 10, 30, 30))
    values = torch.zeros(10, 10)
    values[1, 1] = 1
    shown = with_inset(photo.copy(), View(photo, (0, 0, 200, 200)), values)
    inset = shown.crop((128, 128, 196, 196))  # in the corner that is farthest from there
    bright = sum(inset.convert("L").histogram()[200:])
    assert bright > 20 * 20  # the white square, enlarged
    tiny = Image.new("RGB", (100, 100))
    assert with_inset(tiny, View(tiny, (0, 0, 100, 100)), values) is tiny  # no room for one


def test_a_colour_bar_shows_the_signs_that_are_there() -> None:
    values = torch.tensor([[0.0, 0.5], [1.0, -0.01]])
    assert used_ends([values]) == (0.0, 1.0)
    assert used_ends([-values]) == (-1.0, 0.0)
    assert used_ends([values, -values]) == used_ends([values - 0.4]) == (-1.0, 1.0)
    assert used_ends([0 * values]) == used_ends([]) == (0.0, 1.0)
