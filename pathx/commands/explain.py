"""`pathx explain`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from pathx.commands import options
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import about, complain, errors

if TYPE_CHECKING:
    from rich.table import Table

    from pathx.explanation import Explanation
    from pathx.run import Done


def explain(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Pictures to explain.")],
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    target: options.Targets = None,
    depth: options.Depth = "3",
    width: options.Width = "5",
    alpha: options.Alpha = None,
    skips: options.SkipsOption = Skips.adjacent,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "8",
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-out",
    save_tensors: Annotated[bool, typer.Option("--save-tensors", help="Also write tensors.safetensors.")] = False,
    format: options.FormatOption = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Explain pictures: find the path of units behind a class, and draw what they saw.

    Each explanation gets a folder OUT/IMAGE/CLASS with heatmap.png, overlay.png and path.json.
    """
    with errors():
        layers, units, size = options.depth(depth), options.width(width), options.size(input_size)
        means, deviations = options.numbers(mean, "--mean"), options.numbers(std, "--std")
        batch, least = options.batch_size(batch_size), options.alpha(alpha)

        from pathx.models import load_model
        from pathx.run import Done, Settings, explain_files

        loaded = load_model(model, weights=weights, input_size=size, mean=means, std=deviations, labels=labels)
        settings = Settings(layers, units, least, skips.value, device, dtype.value, batch, save_tensors)
        failed: set[str] = set()
        shown: set[str] = set()
        for result in explain_files(loaded, images, out, targets=target or (), settings=settings):
            if not isinstance(result, Done):
                failed.add(result.file)
                complain(about(result.file, str(result.error)), result.error)
                continue
            first = result.picture.file not in shown
            shown.add(result.picture.file)
            if first and not quiet:
                for note in result.picture.notes:
                    complain(f"note: {about(result.picture.file, note)}")
            if format is Format.json:
                print(json.dumps(result.document, allow_nan=False), flush=True)
            elif not quiet:
                _print_explanation(result, first=first)
        if failed:
            if len(images) > 1:
                rest = f"; the rest is in {out}" if shown else ""
                complain(f"{len(failed)} of {len(set(images))} pictures failed{rest}")
            raise typer.Exit(1)


def _print_explanation(done: Done, *, first: bool) -> None:
    """What a person wants to see: the predictions (once per picture), the path, where the files are."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000  # for a file or a pipe nothing is cut
    explanation, target, model = done.explanation, done.document["target"], done.document["linear_model"]
    if first:
        best = ", ".join(f"{label} {probability:.1%}" for label, probability in done.predictions)
        console.print(Text(done.picture.file, "bold"), soft_wrap=True)
        console.print(Padding(Text(best), (0, 0, 0, 2), expand=False))
        console.print()
    console.print(
        Text.assemble(
            (target["label"], "bold"),
            f": class {target['index']}, {target['probability']:.1%}, logit {target['logit']:.4g}; ",
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
            index = f" [{','.join(map(str, unit.index))}]"
            name, space = unit.tensor, max(room - len(index), 8)
            if len(name) > space:
                name = "…" + name[1 - space :]  # its end tells it from others
            share = f"{unit.contribution / total:.1%}" if total else "-"
            head = (str(layer.layer), kept) if number == 0 else ("", "")
            table.add_row(*head, Text(name + index), f"{unit.importance:.4g}", share)
    return table


_HEADINGS = ("layer", "kept", "strongest units", "importance", "share")
