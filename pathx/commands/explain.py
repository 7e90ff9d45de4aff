"""`pathx explain`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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

    from pathx.explanation import Explanation
    from pathx.run import Done


def explain(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    target: options.Targets = None,
    depth: options.Depth = "3",
    width: options.Width = "5",
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
    no_pictures: options.NoPictures = False,
    overwrite: options.Overwrite = False,
    fail_fast: options.FailFast = False,
    format: options.FormatOption = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Explain pictures: find the path of units behind a class, and draw what they saw.

    Each explanation gets a folder OUT/IMAGE/CLASS with heatmap.png, overlay.png and path.json. Several classes of a
    picture are also held against each other, in contrast.png and contrast.json. Of several pictures, those that are done
    already are left alone, and OUT/index.jsonl lists all of them.
    """
    with errors("the explanations that have a path.json are whole"):
        layers, units, size = options.depth(depth), options.width(width), options.size(input_size)
        means, deviations = options.numbers(mean, "--mean"), options.numbers(std, "--std")
        batch, least, part = options.batch_size(batch_size), options.alpha(alpha), options.shard(shard, quiet)

        drawing = options.drawing(smoothing, colours, percentile, show_units)

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
        results = explain_files(
            loaded, plan, out, targets=target or (), settings=settings, stop=stop, note=notes(quiet)
        )
        follow(results, plan, out, stop=stop, format=format, quiet=quiet, fail_fast=fail_fast, show=_print_explanation)


def _print_explanation(done: Done, first: bool) -> None:
    """What a person wants to see: the predictions (once per picture), the path, where the files are."""
    from rich.text import Text

    console = terminal()
    explanation, target, model = done.explanation, done.document["target"], done.document["linear_model"]
    if first:
        print_picture(console, done.picture.file, done.predictions)
    console.print(
        Text.assemble(
            (target["label"], "bold"),
            f": {class_line(target)}; ",
            f"depth {explanation.depth} of {explanation.hidden_layers}, score {model['score']:.4g}",
        )
    )
    console.print(_path_table(explanation, console.width))
    if any(layer.below_alpha and layer.units for layer in explanation.path):
        console.print("* no unit was above alpha; the best one was kept")
    if not explanation.path[-1].units and explanation.skips == "adjacent":
        console.print(
            "Nothing reaches the end of this path from layer to layer; --skips all also takes routes that jump."
        )
    files = ", ".join([*done.document["files"].values(), "path.json"])
    console.print(Text(f"{done.folder}{os.sep}: {files}\n"), soft_wrap=True)


def _path_table(explanation: Explanation, width: int) -> Table:
    """The strongest units of each layer, and what share of all that the layer's kept units send each of them sends."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in zip(_HEADINGS, ("right", "right", "left", "right", "right"), strict=True):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    room = width - sum(len(heading) + 2 for heading in _HEADINGS if heading != "strongest units")
    for layer in explanation.path:
        total = sum(unit.contribution for unit in layer.units)
        kept = f"{len(layer.units)}{'*' if layer.below_alpha and layer.units else ''}"
        if not layer.units:
            table.add_row(str(layer.layer), kept, "none", "", "")
        for number, unit in enumerate(layer.units[:3]):
            name = unit_name(unit, room)
            share = f"{unit.contribution / total:.1%}" if total else "-"
            head = (str(layer.layer), kept) if number == 0 else ("", "")
            table.add_row(*head, Text(name), f"{unit.importance:.4g}", share)
    return table


_HEADINGS = ("layer", "kept", "strongest units", "importance", "share")
