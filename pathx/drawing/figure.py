"""figure.png, what one opens first: the photo, where the path looks, what each pixel adds, and the rest in words."""

from __future__ import annotations

from PIL import Image, ImageDraw
from torch import Tensor

from pathx.drawing.page import Bar, Panel, sheet
from pathx.drawing.render import Drawing, Overlay
from pathx.drawing.view import View, heat_of, map_tile, pixel_map, unit_boxes, used_ends
from pathx.drawing.words import LINE, path_line, percent, settings_line
from pathx.explanation import Explanation
from pathx.maps import plane

MAPS = (
    "The path map shows where the units of the path look; the pixel map shows what each pixel adds through them, so the two can be "
    "strongest at different places."
)


def explanation_figure(
    explanation: Explanation,
    view: View,
    drawing: Drawing,
    *,
    heat: Tensor | None = None,
    overlay: Overlay | None = None,
    pixels: Image.Image | None = None,
) -> Image.Image:
    """One explanation on a page that needs nothing beside it.

    Args:
        heat, pixels: what `heat_of` and `pixel_map` give of the explanation, where that is known.
        overlay: the heat on the view's photo, where that is drawn already.
    """
    tile = view.tile()
    exact = map_tile(pixels or pixel_map(explanation.attribution, drawing), tile.photo)
    ImageDraw.Draw(exact).rectangle((0, 0, exact.width - 1, exact.height - 1), outline="#cccccc")
    against, towards = ("against", "for") if not view.other else (f"for {view.other}", f"for {view.label}")
    heat = heat_of(explanation, drawing) if heat is None else heat
    panels = [
        Panel(tile.photo, "photo", ("what the network saw of it",)),
        Panel(
            _on_tile(explanation, view, tile, drawing, heat, overlay),
            *caption(explanation, drawing),
            bar=Bar(drawing.colours, against, towards, ends=used_ends([heat])),
        ),
        Panel(
            exact,
            "pixel map",
            ("exact values",),
            bar=Bar(drawing.colours, against, towards, exact=True, ends=used_ends([plane(explanation.attribution)])),
        ),
    ]
    probability = explanation.probability if view.probability is None else view.probability
    title = f"{view.label}, {percent(probability)}" if not view.other else f"why {view.label} and not {view.other}"
    return sheet(panels, title=title, more=view.more, words=words(explanation, view))


def _on_tile(
    explanation: Explanation, view: View, tile: View, drawing: Drawing, heat: Tensor, overlay: Overlay | None
) -> Image.Image:
    """The heat on what the network saw: where the tile has the photo's own pixels, the very part of the overlay."""
    boxes = unit_boxes(explanation) if drawing.show_units else ()
    if tile.photo.size == view.seen_size:
        overlay = overlay or view.draw(heat, drawing, boxes=boxes)
        if overlay.crop.size == tile.photo.size:  # unless the photo is so large that it is not shown as it is
            return overlay.crop
    return tile.overlay(heat, drawing, boxes=boxes)


def words(explanation: Explanation, view: View) -> list[str]:
    """What becomes of the class without the path, what the two maps are, and how it was found."""
    return [
        path_line(explanation, view.label, view.other),
        *([MAPS] if explanation.mapped else []),
        f"{settings_line(explanation)}{f'; {view.source}' if view.source else ''}",
    ]


def caption(explanation: Explanation, drawing: Drawing) -> tuple[str, tuple[str, ...]]:
    """The name of what the overlay shows, and how to read it."""
    if drawing.heat == "pixels":
        blur = f"smoothed by {drawing.smoothing:.1%} of the shorter side" if drawing.smoothing else "not smoothed"
        return "pixel map on the photo", (blur,)
    if drawing.heat == "layers":
        return "map of all layers", ("every unit of the upper half of the layers, on the path or not",)
    note = explanation.map_note
    if note is not None and not explanation.mapped:
        return "pixel map on the photo", (f"{note}.",)
    return "path map", (LINE,) if note is None else (LINE, note)
