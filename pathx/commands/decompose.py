"""`pathx decompose`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pathx.commands import options, parsing
from pathx.commands.command import command
from pathx.commands.output import print_image, print_table, print_target, relative, terminal, unit_name
from pathx.commands.running import run_images

if TYPE_CHECKING:
    from pathx.decomposition import Decomposition
    from pathx.results.result import Result
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
        options.Option("Features to show at most, the strongest. [default: all]", "K", panel=options.PATH),
    ] = None,
    from_layer: Annotated[
        str | None,
        options.Option("Layer whose units are the features. [default: the top one]", "N", panel=options.PATH),
    ] = None,
    no_group: Annotated[
        bool, options.Option("Do not put units that look at the same spot together.", panel=options.PATH)
    ] = False,
) -> None:
    """Split a decision into features: one path for each unit.

    Besides the files of explain, OUT/IMAGE/CLASS gets sheet.png and decomposition.json, and a folder feature-01, … with
    the explanation of each unit.
    """
    how: dict[str, Any] = {
        "features": parsing.whole_number(features, "--features"),
        "from_layer": parsing.whole_number(from_layer, "--from-layer"),
        "group": not no_group,
    }
    groups = (model, path, drawing, results, device, run, ray)
    run_images(images, target, *groups, show=_print_decomposition, verb="taken apart", decompose=how)


def _print_decomposition(known: Guide | None, done: Result, first: bool) -> None:
    """The features, how they add up, where the files are."""
    from rich.text import Text

    from pathx.drawing.sheets import decomposition_remarks, group_letter
    from pathx.results.decomposition import feature_folders

    console = terminal()
    made, whole = done.decomposition, done.decomposition.whole
    if first:
        print_image(console, done.file, done.predictions)
    print_target(console, done.document, whole)
    console.print(Text(f"taken apart at layer {made.layer}: {made.reason}"))
    if made.groups:
        headings = _HEADINGS if console.width >= _WIDE else _NARROW_HEADINGS
        classes = None if whole.importance == "effect" else done.document["model"]["classes"]
        rows = _feature_rows(made, classes, console.width, headings)
        print_table(headings, rows, right={1, 2, 3})
    if known is not None:
        units = [(group_letter(at), made.features[group.features[0]].unit) for at, group in enumerate(made.groups)]
        told = [(letter, unit, words) for letter, unit in units if (words := known.words(unit))][:_TOLD]
        for letter, unit, words in told:
            console.print(Text(f"{letter}: {unit_name(unit, console.width)} looks for {words}"))
        if not told:
            console.print(Text(known.nothing))
    for remark in decomposition_remarks(made):
        console.print(Text(remark))
    sheet = [name for key, name in done.document["files"].items() if key == "sheet"]
    files = ", ".join([*sheet, *feature_folders(done.document), "decomposition.json"])
    console.print(Text(f"{done.folder}{os.sep}: {files}\n"), soft_wrap=True)


def _feature_rows(
    made: Decomposition, classes: int | None, width: int, headings: Sequence[str]
) -> list[tuple[str, ...]]:
    """A row for every group of features, which belong together."""
    from pathx.drawing.sheets import group_letter
    from pathx.drawing.words import percent, ranges

    taken = sum({"features": 9, "box": 15, "strongest unit": -2}.get(heading, len(heading)) + 2 for heading in headings)
    rows = []
    for number, group in enumerate(made.groups):
        unit = made.features[group.features[0]].unit
        cells = {
            "": group_letter(number),
            "units": str(len(group.features)),
            "share": percent(group.share),
            "importance": relative(unit.importance, classes),
            "box": ",".join(map(str, group.place.box)) if group.place else "nowhere",
            "features": ranges(position + 1 for position in group.features),
            "strongest unit": unit_name(unit, width - taken),
        }
        rows.append(tuple(cells[heading] for heading in headings))
    return rows


_HEADINGS = ("", "units", "share", "importance", "box", "features", "strongest unit")
_NARROW_HEADINGS = ("", "units", "share", "importance", "strongest unit")
_TOLD = 3  # groups whose units' words are told
_WIDE = 100  # columns of a terminal from which on the others have room
