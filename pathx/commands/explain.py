"""`pathx explain`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import (
    place_name,
    print_files,
    print_image,
    print_paragraph,
    print_table,
    print_target,
    terminal_width,
    unit_name,
)
from pathx.commands.running import run_images
from pathx.drawing.words import count_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pathx.explanation import Explanation, PathLayer
    from pathx.results.store import Result
    from pathx.units.guide import Guide


@command("the explanations that have a path.json are whole")
def explain(
    *,
    images: list[str] = options.IMAGES,
    target: list[str] = options.TARGETS,
    against: str | None = option(
        None, "Explain why the target and not this class, by one path for the difference.", "CLASS", panel=options.PATH
    ),
    how: options.ExplainOptions,
) -> None:
    """Find the path of units behind a class, and draw what they saw.

    Each explanation gets a folder OUT/IMAGE/CLASS with figure.png (open this first), overlay.png, heatmap.png and
    path.json. Several classes of an image are also compared, in contrast.png and contrast.json. With several images,
    OUT/index.jsonl lists all of them, and a second run skips those that are done.
    """
    run_images(images, target, how, show=_print_explanation, against=against)


def _print_explanation(known: Guide | None, done: Result, first: bool) -> None:
    """What a person wants to see: the predictions (once per image), the path, where the files are."""
    from pathx.results.schema import read_names

    explanation, document = done.made, done.document
    if first:
        print_image(done.file, done.predictions)
    print_target(document, explanation)
    classes = document["model"]["classes"] if explanation.against is None else 2
    by_effect = explanation.importance == "effect"
    here = [done.folder, *done.folder.resolve().parents] if isinstance(done.folder, Path) else []  # not in a store
    names = read_names(here, document["model"]["sha256"])
    print_table(_HEADINGS, _path_rows(explanation, None if by_effect else classes, names), right=range(4))
    if by_effect:
        print_paragraph("importance: first-order effect on the log-odds of the class")
    else:
        print_paragraph(f"importance: relative to 1/{classes}, the importance of a unit without effect")
    if any(layer.below_alpha and layer.units for layer in explanation.path):
        print_paragraph("* no unit was above alpha; the best one was kept")
    if not explanation.path[-1].units and explanation.skips == "adjacent":
        print_paragraph(
            "No route from layer to layer reaches the end of this path; --skips all also takes other routes."
        )
    if known is not None:
        strongest = known.strongest(explanation)
        for unit, channel in strongest:
            print_paragraph(f"{unit_name(unit, terminal_width())} looks for {channel.words}")
        if not strongest:
            print_paragraph(known.nothing)
    print_files(done, done.files)


def _path_rows(explanation: Explanation, classes: int | None, names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The strongest channels and units of each layer, and what share of all that its kept units send each of them sends."""
    room = terminal_width() - sum(len(heading) + 2 for heading in _HEADINGS[:-1])
    most = 2 if len(explanation.path) <= 3 else 1
    rows: list[tuple[str, ...]] = []
    for layer in explanation.path:
        total = sum(unit.contribution for unit in layer.units)
        lines = [("", contribution, name) for contribution, name in _channels(layer, room, names)[:most]]
        indent = "  " if lines else ""
        for unit in layer.units[:most]:
            given = names.get(f"{unit.tensor}[{unit.index[0]}]", "") if len(unit.index) == 1 else ""
            name = f"{indent}{unit_name(unit, room - len(indent))} {given}".rstrip()
            lines.append((_relative(unit.importance, classes), unit.contribution, name))
        head = (str(layer.layer), f"{len(layer.units)}{'*' if layer.below_alpha and layer.units else ''}")
        for importance, contribution, name in lines or [("", 0.0, "none")]:
            share = f"{contribution / total:.1%}" if total else "-" if layer.units else ""
            rows.append((*head, importance, share, name))
            head = ("", "")
    return rows


def _relative(importance: float, classes: int | None) -> str:
    """An importance as times that of a unit that makes no difference, 1/classes: `1.472x`. An effect as it is."""
    if classes is None:
        return f"{importance:+.3f}"
    times = importance * classes
    return f"{times:.3f}x" if times < 100 else f"{times:.0f}x"


def _channels(layer: PathLayer, room: int, names: Mapping[str, str]) -> list[tuple[float, str]]:
    """What the kept units of each channel contribute, and its name, strongest first; none where units are in vectors."""
    dims = {tensor.name: tensor.channel_dim for tensor in layer.tensors if len(tensor.shape) > 1}
    members: dict[tuple[str, int], list[float]] = {}
    for unit in layer.units:
        if unit.tensor in dims:
            members.setdefault((unit.tensor, unit.index[dims[unit.tensor]]), []).append(unit.contribution)
    channels = []
    for (tensor, number), parts in members.items():
        given = f" {names.get(f'{tensor}[{number}]', '')}".rstrip()
        name = place_name(tensor, f" [{number}]{given}, {count_of(len(parts), 'unit')}", room)
        channels.append((math.fsum(parts), name))
    return sorted(channels, key=lambda channel: -channel[0])


_HEADINGS = ("layer", "kept", "importance", "share", "strongest channels and units")
