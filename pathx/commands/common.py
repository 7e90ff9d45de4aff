"""`pathx common`."""

from __future__ import annotations

from functools import partial
from typing import Any

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option, split_list
from pathx.commands.output import print_paragraph, print_problems, print_table, say
from pathx.errors import PathxError


@command()
def common(
    *,
    folders: list[str] = typer.Argument(metavar="FOLDER", help="Folders of images, or what pathx explain wrote."),
    by: str = option(
        "prediction",
        "An image's class: what is predicted, or its folder.",
        names=("--group-by",),
        choices=("prediction", "folder"),
    ),
    threshold: float = option(
        0.5, "A unit is common if it is on the paths of this share of a class's images, or more.", "SHARE"
    ),
    layers: list[int] = option(
        (),
        "Layers to plot. [default: the path's first and last]",
        "N,...",
        parse=partial(options.parse_ranges, "--layers"),
    ),
    classes: list[str] = option(
        (), "Classes to plot. [default: the ten with most images]", "NAME,...", parse=split_list
    ),
    wrong: bool = option(
        False, "Find channels that go with wrong predictions; folders must be named after the classes."
    ),
    units: str | None = options.UNITS,
    how: options.DocumentOptions,
    batch_size: int | str = options.BATCH_SIZE,
    out: str = options.out_folder("pathx-common"),
) -> None:
    """Find the units, channels and places that a class's paths share.

    OUT gets common.json and plots. If a folder holds results of pathx explain, the network is not run again.
    """
    from pathx.evaluation.common import common, is_finished

    finished = all(map(is_finished, folders))
    if finished and how.path != options.PathOptions():
        raise PathxError(
            "these are finished explanations: leave --depth, --width, --alpha, --skips and --exact out", usage=True
        )
    loaded = None if finished else how.load()
    settings: dict[str, Any] = {"by": by, "threshold": threshold, "layers": layers, "classes": classes, "wrong": wrong}
    settings |= {"batch_size": batch_size, **how.settings("explaining")}
    document = common(loaded, folders, out=out, **settings)
    how.screen.show(document, lambda: _print(document, out, units))
    print_problems(document, how.screen.quiet)


def _print_suspects(suspects: list[dict[str, Any]], units: str | None) -> None:
    if not suspects:
        say("no channel is on wrong paths more often than chance would have it")
        return
    words: dict[tuple[str, int], str] = {}
    if units is not None:
        from pathx.units.files import read_units

        words = {place: channel.words for place, channel in read_units(units).channels.items()}
    say("channels that go with wrong predictions:")
    rows = [
        (
            *(one["predicted"], str(one["layer"]), f"{one['tensor']} [{one['channel']}]"),
            *(f"{one[key][0]} of {one[key][1]}" for key in ("wrong", "right")),
            f"{one['odds']:.3g} ({one['interval'][0]:.3g} to {one['interval'][1]:.3g})",
            words.get((one["tensor"], one["channel"]), ""),
        )
        for one in suspects[:10]
    ]
    headings = ("predicted", "layer", "channel", "wrong", "right", "odds ratio (95 %)", "looks for" if words else "")
    print_table(headings, rows, right={1})


def _print(document: dict[str, Any], out: str, units_folder: str | None) -> None:
    from pathx.evaluation.plots import plots_are_missing

    settings = document["settings"]
    say(
        f"{document['images']} images in {len(document['classes'])} classes by {document['by']}; "
        f"{document['model']['name']}, depth {settings['depth']}, width {settings['width']}, skips {settings['skips']}"
    )
    say()
    _print_nearest(document)
    for group in (group for group in document["classes"] if not group["too_few"]):
        say(f"{group['label']}: {group['images']} images")
        for layer, facts in zip(group["layers"], document["layers"], strict=True):
            single = len(facts["tensors"]) == 1
            tensor = f" ({facts['tensors'][0]['name']})" if single else ""
            common = f"{len(layer['common_path'])} units in {document['threshold']:.0%} of the images"
            say(f"  layer {layer['layer']}{tensor}: {common}")
            for kind in ("units", "channels") if layer["positions"] else ("units",):
                best = [f"{_unit_name(unit, single)} {unit['share']:.0%}" for unit in layer[kind][:3]]
                print_paragraph(", ".join(best), f"    {kind:9}")
        say()
    say(f"{out}: common.json{'' if plots_are_missing() else ' and plots'}")
    if "wrong" in document:
        _print_suspects(document["wrong"], units_folder)


def _print_nearest(document: dict[str, Any]) -> None:
    """Of every class with enough images, the one that it shares most channels with."""
    large = [place for place, group in enumerate(document["classes"]) if not group["too_few"]]
    rows = []
    for place in large:
        group, overlaps = document["classes"][place], document["overlap"]["channels"][place]
        shared = sum(one["share"] >= document["threshold"] for layer in group["layers"] for one in layer["channels"])
        others = [other for other in large if other != place]
        nearest = max(others, key=lambda other: overlaps[other]) if others else None
        cells = ("", "") if nearest is None else (document["classes"][nearest]["label"], f"{overlaps[nearest]:.0%}")
        rows.append((group["label"], str(group["images"]), str(shared), *cells))
    if rows:
        headings = ("class", "images", f"channels in {document['threshold']:.0%}", "nearest class", "shared")
        print_table(headings, rows, right={1, 2, 4})
        say()


def _unit_name(unit: dict[str, Any], short: bool) -> str:
    """A unit or channel; without its tensor where there is but one."""
    index = f"[{','.join(map(str, unit['index']))}]"
    return index if short else f"{unit['tensor']} {index}"
