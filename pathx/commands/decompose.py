"""`pathx decompose`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.output import print_image, print_table, print_target, terminal, unit_name
from pathx.commands.running import run_images

if TYPE_CHECKING:
    from pathx.decomposition import Decomposition
    from pathx.results.store import Result
    from pathx.units.guide import Guide


@command("the decompositions that have a decomposition.json are whole")
def decompose(
    images: options.Images,
    model: options.ModelOptions,
    path: options.PathOptions,
    drawing: options.DrawingOptions,
    results: options.ResultOptions,
    device: options.DeviceOptions,
    run: options.RunOptions,
    ray: options.RayOptions,
    target: options.Targets = None,
    features: Annotated[
        str | None,
        options.Option("Features to draw at most, the strongest. [default: all from 1% on]", "K", panel=options.PATH),
    ] = None,
    from_layer: Annotated[
        str | None,
        options.Option("Layer whose units are grouped into features. [default: the top one]", "N", panel=options.PATH),
    ] = None,
) -> None:
    """Split a decision into features: groups of units at the same spot.

    Besides the files of explain, OUT/IMAGE/CLASS gets sheet.png, a folder feature-01, … for each feature that is drawn, and
    decomposition.json, which lists all features and their units.
    """
    how: dict[str, Any] = {
        "features": options.parse_whole_number(features, "--features"),
        "from_layer": options.parse_whole_number(from_layer, "--from-layer"),
    }
    groups = (model, path, drawing, results, device, run, ray)
    run_images(images, target, *groups, show=_print_decomposition, verb="decomposed", decompose=how)


def _print_decomposition(known: Guide | None, done: Result, first: bool) -> None:
    """The features, how they add up, where the files are."""
    from rich.text import Text

    from pathx.drawing.figure import decomposition_remarks
    from pathx.results.decomposition import feature_folders

    console = terminal()
    made, whole = done.decomposition, done.decomposition.whole
    if first:
        print_image(console, done.file, done.predictions)
    print_target(console, done.document, whole)
    for remark in decomposition_remarks(made):
        console.print(Text(remark))
    if made.features:
        print_table(*_table(made, console.width), right={0, 1, 2})
    if known is not None:
        units = [(feature.number, made.units[feature.units[0]]) for feature in made.drawn]
        told = [(number, unit, words) for number, unit in units if (words := known.words(unit))][:_TOLD]
        for number, unit, words in told:
            console.print(Text(f"feature {number}: {unit_name(unit, console.width)} looks for {words}"))
        if not told:
            console.print(Text(known.nothing))
    sheet = [name for key, name in done.document["files"].items() if key == "sheet"]
    files = ", ".join([*sheet, *feature_folders(done.document), "decomposition.json"])
    console.print(Text(f"{done.folder}{os.sep}: {files}\n"), soft_wrap=True)


def _table(made: Decomposition, width: int) -> tuple[list[str], list[tuple[str, ...]]]:
    """Headings, and a row for each feature that is drawn."""
    from pathx.drawing.figure import channels_line
    from pathx.drawing.words import percent

    headings = ["feature", "share", "units", *(["box"] if width >= _WIDE else []), "channels"]
    rows = []
    for feature in made.drawn:
        cells = {
            "feature": str(feature.number),
            "share": percent(feature.share),
            "units": str(len(feature.units)),
            "box": ",".join(map(str, feature.place.box)) if feature.place else "-",
            "channels": channels_line(made, feature),
        }
        rows.append(tuple(cells[heading] for heading in headings))
    return headings, rows


_TOLD = 3  # features whose units' words are told
_WIDE = 100  # columns of a terminal from which on the box has room
