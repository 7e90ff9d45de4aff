"""`pathx decompose`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.following import follow
from pathx.commands.loading import loader
from pathx.commands.options import Dtype, Format
from pathx.commands.output import (
    errors,
    loading,
    print_image,
    print_table,
    print_target,
    relative,
    terminal,
    unit_name,
)
from pathx.commands.reporting import reporting
from pathx.commands.running import check_report, guide, started

if TYPE_CHECKING:
    from pathx.decomposition import Decomposition
    from pathx.results.result import Result
    from pathx.units.guide import Guide


def decompose(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    target: options.Targets = None,
    detail: options.DetailOption = "clear",
    depth: options.PathDepth = None,
    width: options.PathWidth = None,
    features: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="Features to show at most, the strongest. [default: all]",
            rich_help_panel=options.PATH,
        ),
    ] = None,
    from_layer: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Layer whose units are the features. [default: the top one]",
            rich_help_panel=options.PATH,
        ),
    ] = None,
    no_group: Annotated[
        bool,
        typer.Option(
            "--no-group",
            help="Do not put units that look at the same spot together.",
            rich_help_panel=options.PATH,
        ),
    ] = False,
    alpha: options.Alpha = None,
    skips: options.PathSkips = None,
    every: options.Every = None,
    frames: options.Frames = False,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    workers: options.Workers = None,
    shard: options.ShardOption = None,
    ray: options.Ray = None,
    ray_actors: options.RayActors = None,
    ray_gpus: options.RayGpus = None,
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.RunOut = "pathx-out",
    pack: options.Pack = None,
    save_tensors: options.SaveTensors = False,
    label: options.Label = None,
    heat: options.Heat = "path",
    smoothing: options.Smoothing = "0.025",
    colours: options.Colours = "red-blue",
    percentile: options.Percentile = "99",
    show_units: options.ShowUnits = False,
    no_magnify: options.NoMagnify = False,
    units: options.Units = None,
    report: options.Report = False,
    no_pictures: options.NoPictures = False,
    overwrite: options.Overwrite = False,
    fail_fast: options.FailFast = False,
    format: options.FormatOption = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Take decisions apart into the features behind them: one path for each unit that a layer keeps.

    Besides the files of explain, OUT/IMAGE/CLASS gets sheet.png and decomposition.json, and a folder feature-01, … with
    the explanation of each unit.
    """
    with errors("the decompositions that have a decomposition.json are whole"):
        check_report(report, out, pack)
        layers, widest, jumps = parsing.path(detail, depth, width, skips)
        step, seen = parsing.every(every, frames), {"input_size": input_size, "mean": mean, "std": std}
        load = loader(model, weights=weights, model_args=model_args, labels=labels, **seen)
        batch, least, part = parsing.batch_size(batch_size), parsing.alpha(alpha), parsing.shard(shard, quiet)
        most = parsing.whole_number(features, "--features")
        split = parsing.whole_number(from_layer, "--from-layer")
        drawing = parsing.drawing(smoothing, colours, percentile, show_units, no_magnify, heat)

        with loading(f"torch and {model}", quiet):
            from pathx.runs.run import Plan, Settings
            from pathx.runs.stop import Stop
            from pathx.runs.tasks import decompose_task

            loaded = load()
        settings = Settings(
            *(layers, widest, least, jumps, device, dtype.value, batch, save_tensors, label, drawing),
            workers=workers,
            pictures=not no_pictures,
            guide=(known := guide(units, loaded, device, dtype.value, quiet)),
        )
        plan, stop = Plan.of(images, out, shard=part, overwrite=overwrite, every=step), Stop()
        task = decompose_task(from_layer=split, features=most, group=not no_group)
        where: dict[str, Any] = {
            "ray": ray,
            "ray_actors": ray_actors,
            "ray_gpus": ray_gpus,
            "pack": pack,
            "documents": report or format is Format.json,
            "quiet": quiet,
        }
        asked: dict[str, Any] = {"targets": target or (), "settings": settings, "task": task, "stop": stop}
        results = started(load, loaded, plan, out, **where, **asked)
        how: dict[str, Any] = {"stop": stop, "format": format, "quiet": quiet, "fail_fast": fail_fast}
        with reporting(results, report, loaded, settings, out, units, quiet) as watched:
            follow(watched, plan, out, **how, show=partial(_print_decomposition, known), verb="taken apart")


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
        rows = _feature_rows(made, done.document["model"]["classes"], console.width, headings)
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


def _feature_rows(made: Decomposition, classes: int, width: int, headings: Sequence[str]) -> list[tuple[str, ...]]:
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
