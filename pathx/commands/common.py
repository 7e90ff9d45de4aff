"""`pathx common`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options
from pathx.commands.loading import prepared, several
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import complain, errors, notes, print_table, progress_bar
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.common import Common, Place


class Grouping(str, Enum):
    prediction = "prediction"
    folder = "folder"


def common(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER", help="Folders of pictures, or what pathx explain wrote.")
    ],
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    by: Annotated[Grouping, typer.Option("--by", help="A picture's class: what is predicted, or its folder.")] = (
        Grouping.prediction
    ),
    threshold: Annotated[
        str, typer.Option("--threshold", metavar="SHARE", help="Share of pictures that makes a unit common.")
    ] = "0.5",
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", metavar="N,...", help="Layers to plot. [default: the path's first and last]"),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--classes", metavar="NAME,...", help="Classes to plot. [default: the ten with most pictures]"),
    ] = None,
    depth: Annotated[
        str | None, typer.Option("--depth", metavar="N|all", help="Hidden layers on the path. [default: 3]")
    ] = None,
    width: Annotated[
        str | None, typer.Option("--width", metavar="K|P%|all", help="Units kept per layer at most. [default: 5]")
    ] = None,
    alpha: options.Alpha = None,
    skips: options.SkipsOption = Skips.adjacent,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-common",
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Find what the paths of a class have in common: how often each unit, channel and position is on the path.

    OUT gets common.json and plots. From a folder that pathx explain wrote, the network is not run again.
    """
    with errors():
        share = options.parsed(threshold, float, f"--threshold takes a share from 0 to 1, not {threshold!r}")
        if not 0 < share <= 1:
            raise PathxError(f"threshold {threshold} is out of range; use more than 0, at most 1", usage=True)
        shown = [options.parsed(text, int, f"--layers takes numbers, not {text!r}") for text in several(layers)]
        batch = options.pictures_at_once(batch_size)

        from pathx.common import common_of_pictures, common_of_results, is_finished
        from pathx.evaluation import write_json
        from pathx.folders import pictures_in

        if all(map(is_finished, folders)):
            if depth is not None or width is not None:
                raise PathxError("these are finished explanations: leave --depth and --width out", usage=True)
            found = common_of_results(folders, by=by.value)
        else:
            pictures = pictures_in(folders, out)
            ready = prepared(
                *(model,),
                weights=weights,
                labels=labels,
                input_size=input_size,
                mean=mean,
                std=std,
                device=device,
                dtype=dtype,
            )
            with progress_bar("explaining", len(pictures), quiet) as advance:
                found = common_of_pictures(
                    ready,
                    pictures,
                    by=by.value,
                    depth=options.depth(depth or "3"),
                    width=options.width(width or "5"),
                    alpha=options.alpha(alpha),
                    skips=skips.value,
                    batch_size=batch,
                    progress=advance,
                )
        chosen = _chosen_layers(found, shown), _chosen_classes(found, several(classes))
        document = found.document(share)
        _draw(found, *chosen, Path(out), notes(quiet))
        write_json(Path(out) / "common.json", document)
        if format is Format.json:
            print(json.dumps(document))
        elif not quiet:
            _print(document, out)
        for name, reason in found.unread.items():
            complain(reason if name in reason else f"{name}: {reason}")
        for note in () if quiet else found.notes:
            complain(f"note: {note}")
        if found.unread:
            raise typer.Exit(1)


def _chosen_layers(found: Common, asked: list[int]) -> list[int]:
    for layer in asked:
        if layer not in found.layers:
            numbers = ", ".join(map(str, found.layers))
            raise PathxError(f"layer {layer} is not on the paths, which have {numbers}", usage=True)
    ends = list(found.layers)
    return asked or sorted({ends[0], ends[-1]}, reverse=True)


def _chosen_classes(found: Common, asked: list[str]) -> list[str]:
    from pathx.targets import resolve_target

    labels = list(found.trails)
    return [labels[resolve_target(text, labels)] for text in asked] or labels[:10]


def _draw(found: Common, layers: list[int], classes: list[str], folder: Path, note: Callable[[str], None]) -> None:
    from pathx.common import channel, position, whole
    from pathx.plots import MISSING, plot_frequencies, plot_overlap, plot_places, plots_are_missing

    if plots_are_missing():
        note(MISSING)
        return
    for layer in layers:
        shares = {label: found.shares(label, layer) for label in classes}
        tensors = found.layers[layer]
        if all(len(tensor.shape) == 1 for tensor in tensors):
            units: list[Place] = [(tensor.name, (index,)) for tensor in tensors for index in range(tensor.shape[0])]
            about = f"unit of layer {layer}"
        else:
            units = sorted({unit for some in shares.values() for unit in some})
            about = f"the {len(units)} units of layer {layer} that are on any path, in order"
        lines = {label: [some.get(unit, 0.0) for unit in units] for label, some in shares.items()}
        plot_frequencies(folder / f"units-{layer}", f"layer {layer}: how often each unit is on the path", lines, about)
        for tensor in tensors:
            if len(tensor.shape) < 3:
                continue
            name = f"layer {layer}, {tensor.name}"
            by_channel = {label: found.shares(label, layer, channel) for label in classes}
            bars = {
                label: [some.get((tensor.name, (c,)), 0.0) for c in range(tensor.shape[0])]
                for label, some in by_channel.items()
            }
            plot_frequencies(folder / f"channels-{layer}-{tensor.name}", f"{name}: by channel", bars, "channel")
            by_position = {label: found.shares(label, layer, position) for label in classes}
            maps = {
                label: [
                    [some.get((tensor.name, (y, x)), 0.0) for x in range(tensor.shape[2])]
                    for y in range(tensor.shape[1])
                ]
                for label, some in by_position.items()
            }
            plot_places(folder / f"positions-{layer}-{tensor.name}", f"{name}: by position", maps)
    if len(found.trails) > 1:
        for name, part in (("units", whole), ("channels", channel)):
            matrix = found.overlaps(list(found.layers), part)
            plot_overlap(folder / f"overlap-{name}", f"{name} that classes share", list(found.trails), matrix)


def _print(document: dict[str, Any], out: str) -> None:
    from pathx.plots import plots_are_missing

    settings = document["settings"]
    print(
        f"{document['pictures']} pictures in {len(document['classes'])} classes by {document['by']}; "
        f"{document['model']['name']}, depth {settings['depth']}, width {settings['width']}, skips {settings['skips']}"
    )
    print()
    rows = []
    for group in document["classes"]:
        for number, layer in enumerate(group["layers"]):
            best = [f"{_named(unit)} {unit['share']:.0%}" for unit in layer["units"][:3]]
            channels = [f"{_named(unit)} {unit['share']:.0%}" for unit in layer["channels"][:3]]
            head = (group["label"], str(group["pictures"])) if number == 0 else ("", "")
            common = str(len(layer["common_path"]))
            rows.append((*head, str(layer["layer"]), common, ", ".join(best), ", ".join(channels)))
    share = f"in {document['threshold']:.0%}"
    print_table(("class", "pictures", "layer", share, "most frequent units", "channels"), rows, right={1, 2, 3})
    print()
    print(f"{out}: common.json{'' if plots_are_missing() else ' and plots'}")


def _named(unit: dict[str, Any]) -> str:
    return f"{unit['tensor']} [{','.join(map(str, unit['index']))}]"
