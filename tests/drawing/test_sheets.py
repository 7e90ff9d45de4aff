"""Sheets: one scale for what is compared, nothing cut off, and any photo looks right."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageChops
from support.pages import paper_around
from support.small import images, network

import pathx
from pathx import Drawing, Explanation
from pathx.drawing.colours import HEATS
from pathx.drawing.figure import comparison_sheet
from pathx.drawing.view import View
from pathx.maps import smooth

pytestmark = pytest.mark.usefixtures("one_thread")


def explained(**options: object) -> Explanation:
    (made,) = pathx.explain(network(), images(), **{"depth": 2, **options})  # type: ignore[arg-type]
    return made


def test_compared_pictures_share_one_scale() -> None:
    view = View(Image.new("RGB", (340, 340), "grey"), (0, 0, 340, 340))
    values = smooth(torch.randn(3, 10, 10, generator=torch.Generator().manual_seed(0)), 0.15)
    weak, strong = (view.overlay(factor * values, Drawing(), scale=1.0) for factor in (0.1, 1.0))
    alone = view.overlay(0.1 * values, Drawing())
    plain = view.overlay(0 * values, Drawing())

    def change(image: Image.Image) -> float:
        return sum(ImageChops.difference(image, plain).convert("L").histogram()[20:])

    assert change(weak) < change(strong) / 4 < change(alone)


@pytest.mark.parametrize(
    ("size", "label"),
    [((600, 400), "cat"), ((120, 900), "a very long label, " * 12), ((2000, 90), "кошка 猫 🐈"), ((1, 1), "")],
)
def test_figures_of_any_photo_and_label(size: tuple[int, int], label: str) -> None:
    explanation = explained()
    page = explanation.figure(Image.new("RGB", size, "black"), label=label)
    assert paper_around(page)
    assert page.width <= 1700


@pytest.mark.parametrize("heat", HEATS)
def test_an_explanation_of_zeros_has_a_plain_figure(heat: str) -> None:
    made = explained()
    empty = tuple(replace(layer, units=()) for layer in made.path)
    zeros = torch.zeros(3, 10, 10)
    nothing = replace(made, attribution=zeros, path=empty, layer_map=zeros[0])
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
