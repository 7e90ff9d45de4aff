"""What explanations are drawn on: tiles of what the network saw, and inputs of any kind."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image
from support.small import images, network

import pathx
from pathx import Explanation
from pathx.drawing.figure import View, resize_to_tile, with_inset


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
