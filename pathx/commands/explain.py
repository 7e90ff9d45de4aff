"""`pathx explain`."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

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
    from pathx.explanation import Explanation
    from pathx.results.result import Result
    from pathx.units.guide import Guide


def explain(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    target: options.Targets = None,
    against: options.Against = None,
    detail: options.DetailOption = "clear",
    depth: options.PathDepth = None,
    width: options.PathWidth = None,
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
    units: options.Units = None,
    report: options.Report = False,
    no_pictures: options.NoPictures = False,
    overwrite: options.Overwrite = False,
    fail_fast: options.FailFast = False,
    format: options.FormatOption = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Explain images: find the path of units behind a class, and draw what they saw.

    Each explanation gets a folder OUT/IMAGE/CLASS with figure.png (open this first), overlay.png, heatmap.png and
    path.json. Several classes of an image are also compared, in contrast.png and contrast.json. Of several images, those
    that are done already are left alone, and OUT/index.jsonl lists all of them.
    """
    with errors("the explanations that have a path.json are whole"):
        check_report(report, out, pack)
        layers, most, jumps = parsing.path(detail, depth, width, skips)
        step, seen = parsing.every(every, frames), {"input_size": input_size, "mean": mean, "std": std}
        load = loader(model, weights=weights, model_args=model_args, labels=labels, **seen)
        batch, least, part = parsing.batch_size(batch_size), parsing.alpha(alpha), parsing.shard(shard, quiet)

        drawing = parsing.drawing(smoothing, colours, percentile, show_units, heat=heat)

        with loading(f"torch and {model}", quiet):
            from pathx.runs.run import Plan, Settings
            from pathx.runs.stop import Stop

            loaded = load()
        settings = Settings(
            *(layers, most, least, jumps, device, dtype.value, batch, save_tensors, label, drawing),
            workers=workers,
            pictures=not no_pictures,
            against=against,
            guide=(known := guide(units, loaded, device, dtype.value, quiet)),
        )
        plan, stop = Plan.of(images, out, shard=part, overwrite=overwrite, every=step), Stop()
        where: dict[str, Any] = {
            "ray": ray,
            "ray_actors": ray_actors,
            "ray_gpus": ray_gpus,
            "pack": pack,
            "documents": report or format is Format.json,
            "quiet": quiet,
        }
        results = started(load, loaded, plan, out, **where, targets=target or (), settings=settings, stop=stop)
        how: dict[str, Any] = {"stop": stop, "format": format, "quiet": quiet, "fail_fast": fail_fast}
        with reporting(results, report, loaded, settings, out, units, quiet) as watched:
            follow(watched, plan, out, **how, show=partial(_print_explanation, known))


def _print_explanation(known: Guide | None, done: Result, first: bool) -> None:
    """What a person wants to see: the predictions (once per image), the path, where the files are."""
    from rich.text import Text

    console = terminal()
    explanation, document = done.explanation, done.document
    if first:
        print_image(console, done.file, done.predictions)
    print_target(console, document, explanation)
    classes = document["model"]["classes"] if explanation.against is None else 2
    print_table(_HEADINGS, _path_rows(explanation, classes, console.width), right=range(4))
    console.print(f"importance: times 1/{classes}, which a unit has that makes no difference")
    if any(layer.below_alpha and layer.units for layer in explanation.path):
        console.print("* no unit was above alpha; the best one was kept")
    if not explanation.path[-1].units and explanation.skips == "adjacent":
        console.print(
            "Nothing reaches the end of this path from layer to layer; --skips all also takes routes that jump."
        )
    if known is not None:
        strongest = known.strongest(explanation)
        for unit, channel in strongest:
            console.print(Text(f"{unit_name(unit, console.width)} looks for {channel.words}"))
        if not strongest:
            console.print(Text(known.nothing))
    files = ", ".join(done.files)
    console.print(Text(f"{done.folder}{os.sep}: {files}\n"), soft_wrap=True)


def _path_rows(explanation: Explanation, classes: int, width: int) -> list[tuple[str, ...]]:
    """The strongest units of each layer, and what share of all that the layer's kept units send each of them sends."""
    room = width - sum(len(heading) + 2 for heading in _HEADINGS[:-1])
    rows: list[tuple[str, ...]] = []
    for layer in explanation.path:
        total = sum(unit.contribution for unit in layer.units)
        kept = f"{len(layer.units)}{'*' if layer.below_alpha and layer.units else ''}"
        if not layer.units:
            rows.append((str(layer.layer), kept, "", "", "none"))
        for number, unit in enumerate(layer.units[: 3 if len(explanation.path) <= 3 else 1]):
            share = f"{unit.contribution / total:.1%}" if total else "-"
            head = (str(layer.layer), kept) if number == 0 else ("", "")
            rows.append((*head, relative(unit.importance, classes), share, unit_name(unit, room)))
    return rows


_HEADINGS = ("layer", "kept", "importance", "share", "strongest units")
