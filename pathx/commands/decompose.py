"""`pathx decompose`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pathx.commands import options
from pathx.commands.following import follow
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import (
    class_line,
    errors,
    notes,
    print_picture,
    terminal,
    unit_name,
)

if TYPE_CHECKING:
    from rich.table import Table

    from pathx.decomposing import Decomposed
    from pathx.decomposition import Decomposition


def decompose(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    target: options.Targets = None,
    depth: options.Depth = "3",
    width: options.Width = "5",
    features: Annotated[
        str | None, typer.Option(metavar="K", help="Features to show at most, the strongest. [default: all]")
    ] = None,
    from_layer: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Layer whose units are the features. [default: the top one, or the one below it where each unit of the "
            "top one speaks for one class only]",
        ),
    ] = None,
    no_group: Annotated[
        bool, typer.Option("--no-group", help="Do not put units that look at the same spot together.")
    ] = False,
    alpha: options.Alpha = None,
    skips: options.SkipsOption = Skips.adjacent,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    workers: options.Workers = None,
    shard: options.ShardOption = None,
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-out",
    save_tensors: options.SaveTensors = False,
    label: options.Label = None,
    smoothing: options.Smoothing = "0.025",
    colours: options.Colours = "red-blue",
    percentile: options.Percentile = "99",
    show_units: options.ShowUnits = False,
    no_magnify: options.NoMagnify = False,
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
        layers, units, size = options.depth(depth), options.width(width), options.size(input_size)
        means, deviations = options.numbers(mean, "--mean"), options.numbers(std, "--std")
        batch, least, part = options.batch_size(batch_size), options.alpha(alpha), options.shard(shard, quiet)
        most = options.whole_number(features, "--features")
        split = options.whole_number(from_layer, "--from-layer")
        drawing = options.drawing(smoothing, colours, percentile, show_units, no_magnify)

        from pathx.decomposing import decompose_task
        from pathx.models import load_model
        from pathx.run import Plan, Settings, explain_files
        from pathx.workers import Stop

        loaded = load_model(model, weights=weights, input_size=size, mean=means, std=deviations, labels=labels)
        settings = Settings(
            *(layers, units, least, skips.value, device, dtype.value, batch, save_tensors, label, drawing),
            workers=workers,
            pictures=not no_pictures,
        )
        plan, stop = Plan.of(images, out, shard=part, overwrite=overwrite), Stop()
        task = decompose_task(from_layer=split, features=most, group=not no_group)
        results = explain_files(
            loaded, plan, out, targets=target or (), settings=settings, task=task, stop=stop, note=notes(quiet)
        )
        follow(
            results,
            plan,
            out,
            stop=stop,
            format=format,
            quiet=quiet,
            fail_fast=fail_fast,
            show=_print_decomposition,
            verb="taken apart",
        )


def _print_decomposition(done: Decomposed, first: bool) -> None:
    """The features, how they add up, where the files are."""
    from rich.text import Text

    from pathx.decomposing import feature_folders
    from pathx.sheets import decomposition_remarks

    console = terminal()
    made, whole = done.decomposition, done.decomposition.whole
    target = done.document["target"]
    if first:
        print_picture(console, done.picture.file, done.predictions)
    console.print(
        Text.assemble(
            (target["label"], "bold"),
            f": {class_line(target)}; depth {whole.depth} of {whole.hidden_layers}, score {whole.score:.4g}",
        )
    )
    console.print(Text(f"taken apart at layer {made.layer}: {made.reason}"))
    if made.groups:
        console.print(_feature_table(made, console.width))
    for remark in decomposition_remarks(made):
        console.print(Text(remark))
    if made.features:
        console.print(Text(_sum_line(made)))
    files = ", ".join(["sheet.png", *feature_folders(done.document), "decomposition.json"])
    console.print(Text(f"{done.folder}{os.sep}: {files}\n"), soft_wrap=True)


def _sum_line(made: Decomposition) -> str:
    """Whether the parts sum to the whole."""
    if made.difference.exact:
        return "The features sum to the whole."
    return (
        f"The features score {made.difference.score:+.4g} more than the whole together: "
        "below this layer each chooses units of its own."
    )


def _feature_table(made: Decomposition, width: int) -> Table:
    """A row for every group of features, which look at the same spot."""
    from rich.table import Table
    from rich.text import Text

    from pathx.sheets import percent, ranges

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in _HEADINGS:
        justify = "left" if heading in ("features", "strongest unit", "box") else "right"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    room = width - sum(len(heading) + 2 for heading in _HEADINGS if heading != "strongest unit") - 12
    for group in made.groups:
        unit = made.features[group.features[0]].unit
        centre = f"{group.place.centre[0]:.0f},{group.place.centre[1]:.0f}" if group.place else "-"
        box = ",".join(map(str, group.place.box)) if group.place else "nothing reaches the picture"
        name = Text(unit_name(unit, room))
        numbers = ranges(number + 1 for number in group.features)
        table.add_row(numbers, percent(group.share), f"{group.score:.4g}", name, f"{unit.importance:.4g}", centre, box)
    return table


_HEADINGS = ("features", "share", "score", "strongest unit", "importance", "centre", "box")
