"""Paths of many depths and widths over the same images: which are the better explanations, and what do they look like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pathx.drawing.render import heatmap
from pathx.engine.network import Network
from pathx.evaluation.measure import Contender, Evaluation, contender, subject_of
from pathx.evaluation.records import DIFFERENCE
from pathx.images.find import ImageFile
from pathx.pipeline import Prepared

if TYPE_CHECKING:
    from PIL import Image

SCHEMA = "pathx/grid@1"
WIDTHS: tuple[int | str, ...] = (1, 4, 16, 64, 256, 1024)

Grid = dict[str, list[Contender]]
"""Depth -> a contender for every width."""


def spread(network: Network) -> list[int | str]:
    """A few depths from one layer to all of them."""
    layers = network.depth
    return [*sorted({depth for depth in (1, 3, layers // 3, 2 * layers // 3) if 0 < depth < layers}), "all"]


def make_grid(
    method: str, depths: Sequence[int | str], widths: Sequence[int | str], protocol: str, **settings: Any
) -> Grid:
    """A contender for every depth and width.

    Args:
        method: a member of PATHS.
        settings: of every path, beside these.
    """
    return {
        str(depth): [
            contender(method, protocol, f"depth {depth}, width {width}", depth=depth, width=width, **settings)
            for width in dict.fromkeys(widths)
        ]
        for depth in dict.fromkeys(depths)
    }


def grid_document(result: Evaluation, cells: Grid) -> dict[str, Any]:
    """grid.json: what an evaluation says, with a list of cells in the place of the one path."""
    evaluated = result.document
    inside = {one.title for row in cells.values() for one in row}
    ran = [one for one in result.ran if one.title in inside]
    found = [
        {key: one.settings[key] for key in ("depth", "width", "alpha", "skips", "importance")} | result.figures(one)
        for one in ran
    ]
    best = {
        measure: {key: pick(found, key=lambda cell: cell[measure]["mean"])[key] for key in ("depth", "width")}
        for measure, pick in (("insertion", max), ("deletion", min), (DIFFERENCE, max))
        if found
    }
    others = {one.name: result.figures(one) for one in result.ran if one.title not in inside}
    kept = ("protocol", "parameters", "images", "accuracy", "not_run", "unread", "notes", "model", "created_by")
    return {"schema": SCHEMA, "grid": found, "best": best, "methods": others} | {key: evaluated[key] for key in kept}


def panels(result: Evaluation, cells: Grid, measure: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """A measure for every depth (a list over widths) and for every other method, as plots take it."""
    ran = {one.title: one for one in result.ran}

    def mean(one: Contender) -> float:
        areas = result.areas(one, measure)
        return sum(areas.values()) / len(areas) if one.title in ran else float("nan")

    inside = {one.title for row in cells.values() for one in row}
    others = {title: mean(one) for title, one in ran.items() if title not in inside}
    return {depth: [mean(one) for one in row] for depth, row in cells.items()}, others


def sheet(
    prepared: Prepared, image: ImageFile, cells: Grid, others: Sequence[Contender]
) -> dict[str, dict[str, Image.Image]]:
    """Heatmaps of one image: a row for every depth, and one for the image itself and other methods.

    The network is run once for all paths. Raises what is wrong with the image.
    """
    seen = prepared.see_one(image)
    subject = subject_of(prepared, [seen])

    def draw(one: Contender) -> Image.Image:
        return heatmap(one.attribution(subject)[0])

    region = prepared.model.preprocessing.region(seen.image.width, seen.image.height)
    left, top, right, bottom = map(round, seen.image.on_pixels(region))
    photo = seen.image.pixels.crop((left, top, right, bottom))
    rows = {"others": {prepared.labels[seen.target]: photo} | {one.title: draw(one) for one in others}}
    for depth, row in cells.items():
        rows[f"depth {depth}"] = {f"width {one.settings['width']}": draw(one) for one in row}
    return rows
