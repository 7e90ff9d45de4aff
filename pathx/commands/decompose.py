"""`pathx decompose`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import (
    print_files,
    print_image,
    print_paragraph,
    print_table,
    print_target,
    terminal_width,
    unit_name,
)
from pathx.commands.running import run_images

if TYPE_CHECKING:
    from pathx.decomposition import Decomposition
    from pathx.results.store import Result
    from pathx.units.guide import Guide


@command("the decompositions that have a decomposition.json are whole")
def decompose(
    *,
    images: list[str] = options.IMAGES,
    target: list[str] = options.TARGETS,
    features: int | None = option(
        None, "Features to draw at most, the strongest. [default: all from 1% on]", "K", panel=options.PATH
    ),
    from_layer: int | None = option(
        None, "Layer whose units are grouped into features. [default: the top one]", "N", panel=options.PATH
    ),
    how: options.ExplainOptions,
) -> None:
    """Split a decision into features: groups of units at the same spot.

    Besides the files of explain, OUT/IMAGE/CLASS gets sheet.png, a folder for each feature that is drawn (feature-01, …), and
    decomposition.json, which lists all features and their units.
    """
    parts = {"features": features, "from_layer": from_layer}
    run_images(images, target, how, show=_print_decomposition, verb="decomposed", decompose=parts)


def _print_decomposition(known: Guide | None, done: Result, first: bool) -> None:
    """The features, how they add up, where the files are."""
    from pathx.drawing.figure import decomposition_remarks
    from pathx.results.documents import feature_folders

    made = done.made
    if first:
        print_image(done.file, done.predictions)
    print_target(done.document, made.whole)
    for remark in decomposition_remarks(made):
        print_paragraph(remark)
    if made.features:
        print_table(*_table(made), right={0, 1, 2})
    if known is not None:
        units = [(feature.number, made.units[feature.units[0]]) for feature in made.drawn]
        told = [(number, unit, words) for number, unit in units if (words := known.words(unit))][:_TOLD]
        for number, unit, words in told:
            print_paragraph(f"feature {number}: {unit_name(unit, terminal_width())} looks for {words}")
        if not told:
            print_paragraph(known.nothing)
    sheet = [name for key, name in done.document["files"].items() if key == "sheet"]
    print_files(done, [*sheet, *feature_folders(done.document), "decomposition.json"])


def _table(made: Decomposition) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row for each feature that is drawn; its box only on wide terminals."""
    from pathx.drawing.figure import channels_line
    from pathx.drawing.words import percent

    headings = ["feature", "share", "units", "box", "channels"]
    rows = []
    for feature in made.drawn:
        box = ",".join(map(str, feature.place.box)) if feature.place else "-"
        facts = [str(feature.number), percent(feature.share), str(len(feature.units))]
        rows.append([*facts, box, channels_line(made, feature)])
    if terminal_width() < _WIDE:
        for row in (headings, *rows):
            del row[3]
    return headings, rows


_TOLD = 3  # features whose units' words are told
_WIDE = 100  # columns of a terminal from which on the box has room
