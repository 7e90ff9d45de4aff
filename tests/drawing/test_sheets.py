"""Sheets: one scale for what is compared, nothing cut off, and any photo looks right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops
from support.small import images, network

import pathx
from pathx import Drawing, Explanation
from pathx.drawing.colours import HEATS
from pathx.drawing.page import Bar, Panel, sheet
from pathx.drawing.sheets import comparison_sheet, decomposition_scale
from pathx.drawing.view import View, heat_of, magnified, tile_sized, unit_boxes
from pathx.maps import smooth

pytestmark = pytest.mark.usefixtures("one_thread")


def explained(**options: object) -> Explanation:
    (made,) = pathx.explain(network(), images(), **{"depth": 2, **options})  # type: ignore[arg-type]
    return made


def paper_around(page: Image.Image, border: int = 8) -> bool:
    """Whether the outermost pixels are blank."""
    blank = page.copy()
    blank.paste("white", (border, border, page.width - border, page.height - border))
    return ImageChops.difference(blank, Image.new("RGB", page.size, "white")).getbbox() is None


captions = st.text("abc XYZ019,-", max_size=150)


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.integers(1, 620), st.integers(1, 400), captions), min_size=1, max_size=7),
    captions,
    st.one_of(st.none(), captions),
)
def test_nothing_is_cut_off(tiles: list[tuple[int, int, str]], title: str, end: str | None) -> None:
    small = Bar("red-blue", "against", "for")
    panels = [Panel(Image.new("RGB", (w, h), "black"), text, (text, "details"), small) for w, h, text in tiles]
    bar = None if end is None else Bar("red-blue", end, end, 0.5)
    page = sheet(panels, title=title, notes=[title], words=[title, title], bar=bar)
    assert paper_around(page)
    black = sum(count for count, colour in page.getcolors(1 << 24) or [] if colour == (0, 0, 0))
    assert black >= sum(w * h for w, h, _ in tiles)  # every picture is there, whole
    assert page.width <= 1700


def test_rows_are_even_and_columns_can_be_given() -> None:
    panels = [Panel(Image.new("RGB", (340, 340)), str(number)) for number in range(6)]
    assert sheet(panels, title="").width == sheet(panels[:3], title="").width
    assert sheet(panels, title="", columns=2).width < sheet(panels, title="").width


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
    assert tile_sized(Image.new("RGB", size)).size == tile


def test_tiny_pictures_stay_crisp_in_sheets() -> None:
    dots = Image.effect_noise((32, 32), 90).convert("RGB")
    large = tile_sized(dots)
    assert ImageChops.difference(large.resize((32, 32), Image.Resampling.BOX), dots).getbbox() is None
    assert len(large.getcolors(1 << 20) or []) == len(dots.getcolors(1 << 20) or [])


@given(st.floats(-40, 90), st.floats(-40, 60), st.floats(1, 130), st.floats(1, 130))
def test_a_tile_is_what_the_network_saw(left: float, top: float, width: float, height: float) -> None:
    photo = Image.new("RGB", (100, 70), "black")
    region = (min(left, 98.0), min(top, 68.0), max(left + width, 2.0), max(top + height, 2.0))
    seen = View(photo, region).tile()
    assert seen.photo.width >= 1 and seen.photo.height >= 1
    drawn = seen.overlay(torch.ones(4, 4), Drawing())
    assert drawn.size == seen.photo.size or max(seen.photo.size) < 171  # overlays enlarge what is very small


def test_compared_pictures_share_one_scale() -> None:
    view = View(Image.new("RGB", (340, 340), "grey"), (0, 0, 340, 340))
    values = smooth(torch.randn(3, 10, 10, generator=torch.Generator().manual_seed(0)), 0.15)
    weak, strong = (view.overlay(factor * values, Drawing(), scale=1.0) for factor in (0.1, 1.0))
    alone = view.overlay(0.1 * values, Drawing())
    plain = view.overlay(0 * values, Drawing())

    def change(image: Image.Image) -> float:
        return sum(ImageChops.difference(image, plain).convert("L").histogram()[20:])

    assert change(weak) < change(strong) / 4 < change(alone)
    again = view.overlay(0.1 * values, Drawing(), scale=0.1)  # magnified ten times
    assert ImageChops.difference(again, strong).convert("L").getextrema()[1] <= 3


def test_weak_parts_are_magnified_by_a_round_factor_unless_asked_not_to() -> None:
    made = explained().decompose(group=False)
    scale = decomposition_scale(made, Drawing())
    values = heat_of(made.whole, Drawing())
    factor = magnified(values / 3e4, scale, Drawing())
    assert factor in {step * 10**power for power in range(4, 7) for step in (1, 2, 5)}
    assert magnified(values / 3e4, scale, Drawing(magnify=False)) == 1
    assert magnified(0 * values, scale, Drawing()) == 1


def test_units_are_drawn_on_demand() -> None:
    explanation = explained(depth="all")
    view = View.of(explanation)
    plain, boxes = (view.overlay(explanation, Drawing(show_units=show)) for show in (False, True))
    changed = ImageChops.difference(plain, boxes).getbbox()
    fields = unit_boxes(explanation)
    assert changed == (
        min(field[0] for field in fields) * 52,
        min(field[1] for field in fields) * 52,
        max(field[2] for field in fields) * 52,
        max(field[3] for field in fields) * 52,
    )
    assert len(fields) == len(set(fields)) <= 8


def test_an_input_of_any_kind_can_be_shown() -> None:
    explanation = explained()
    assert explanation.origin is not None
    shown = View.of(explanation).photo
    assert (shown.mode, shown.size) == ("RGB", (10, 10)) and len(shown.getcolors() or []) > 90
    for image in (torch.zeros(3, 10, 10), torch.rand(1, 10, 10), torch.rand(5, 10, 10)):
        other = replace(explanation, origin=replace(explanation.origin, image=image))
        assert View.of(other).photo.size == (10, 10)
    assert View.of(replace(explanation, origin=None)).photo.getcolors() == [(100, (187, 187, 187))]


@pytest.mark.parametrize("size", [(600, 400), (120, 900), (2000, 90), (32, 32), (1, 1)])
@pytest.mark.parametrize("label", ["cat", "", "a very long label, " * 12, "кошка 猫 🐈"])
def test_figures_of_any_photo_and_label(size: tuple[int, int], label: str) -> None:
    explanation = explained()
    page = explanation.figure(Image.new("RGB", size, "black"), label=label)
    assert paper_around(page)
    assert page.width <= 1700


@pytest.mark.parametrize("heat", HEATS)
def test_an_explanation_of_zeros_has_a_plain_figure(heat: str) -> None:
    made = explained()
    empty = tuple(replace(layer, units=()) for layer in made.path)
    nothing = replace(made, attribution=torch.zeros(3, 10, 10), path=empty)
    view, drawing = View.of(nothing), Drawing(heat=heat)
    assert paper_around(nothing.figure(drawing=drawing))
    plain = view.overlay(torch.zeros(10, 10), drawing)
    assert ImageChops.difference(view.overlay(nothing, drawing), plain).getbbox() is None


def test_depths_and_widths_are_a_grid() -> None:
    runs = [explained(depth=depth, width=width) for width in (5, 1) for depth in (3, 1, 2)]
    grid = comparison_sheet(runs, View.of(runs[0]), Drawing())
    row = comparison_sheet(runs[:3], View.of(runs[0]), Drawing())
    assert grid.width < row.width and grid.height > 2 * row.height
    mixed = [explained(width=width) for width in ("all", "10%", 3)]
    assert paper_around(comparison_sheet(mixed, View.of(mixed[0]), Drawing()))
