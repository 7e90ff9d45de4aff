"""The figure is whole: any class and photo, words that say what the path carries, and what stands in is said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from PIL import Image, ImageChops
from support.pages import paper_around
from support.small import images, network
from torch import nn

import pathx
from pathx import Drawing, Explanation
from pathx.drawing.colours import HEATS
from pathx.drawing.figure import View, caption, comparison_sheet, explanation_figure, words
from pathx.drawing.words import removal_line
from pathx.maps import smooth


def test_the_words_say_what_removal_does_and_how_the_path_was_found() -> None:
    (made,) = pathx.explain(network(), images(), depth=2, width=4, removal=True)
    first, maps, second = words(made, View.of(made))
    assert "path map" in maps and "pixel map" in maps
    assert made.removal is not None
    assert first == removal_line(made.removal, View.of(made).label)
    alone, *_ = words(replace(made, removal=None), View.of(made))
    assert alone == f"{sum(len(layer.units) for layer in made.path)} units in the 2 layers nearest the output."
    assert second.startswith("depth 2 of 3, width 4, skips all")


def test_what_has_no_place_is_said_below_the_map() -> None:
    (made,) = pathx.explain(network(), images(), depth=2)
    name, details = caption(made, Drawing())
    assert name == "path map" and details[-1] == "layer 3 left out of the path map: no place in the image"
    flat = nn.Sequential(nn.Flatten(), nn.Linear(300, 8), nn.ReLU(), nn.Linear(8, 3))
    (placeless,) = pathx.explain(flat, images(), depth=1)
    name, details = caption(placeless, Drawing())
    assert name == "pixel map on the photo" and "stands in" in details[0]
    assert caption(made, Drawing(heat="pixels"))[0] == "pixel map on the photo"


def test_a_probability_that_the_explanation_cannot_know_is_given() -> None:
    (made,) = pathx.explain(network(), images(), depth=1)
    classes, at = made.logits.numel(), torch.tensor([made.target])
    unknown = replace(made, logits=torch.full((classes,), torch.nan).index_fill(0, at, 1.5))
    view = replace(View.of(unknown, label="cat"), probability=0.5)
    known = replace(made, logits=torch.zeros(classes).index_fill(0, at, math.log(classes - 1)))
    shown = View.of(known, label="cat")
    assert known.probability == pytest.approx(0.5)
    title = (0, 0, 400, 60)
    one, other = explanation_figure(unknown, view, Drawing()), explanation_figure(known, shown, Drawing())
    assert ImageChops.difference(one.crop(title), other.crop(title)).getbbox() is None


def explained(**options: object) -> Explanation:
    (made,) = pathx.explain(network(), images(), **{"depth": 2, **options})  # type: ignore[arg-type]
    return made


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


def test_compared_pictures_share_one_scale() -> None:
    view = View(Image.new("RGB", (340, 340), "grey"), (0, 0, 340, 340))
    values = smooth(torch.randn(3, 10, 10, generator=torch.Generator().manual_seed(0)), 0.15)
    weak, strong = (view.overlay(factor * values, Drawing(), scale=1.0) for factor in (0.1, 1.0))
    alone = view.overlay(0.1 * values, Drawing())
    plain = view.overlay(0 * values, Drawing())

    def change(image: Image.Image) -> float:
        return sum(ImageChops.difference(image, plain).convert("L").histogram()[20:])

    assert change(weak) < change(strong) / 4 < change(alone)
