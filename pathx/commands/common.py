"""`pathx common`."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.loading import prepared, several
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import about, complain, errors, notes, print_paragraph, print_table, progress_bar
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.evaluation.common import Common, Place


class Grouping(str, Enum):
    prediction = "prediction"
    folder = "folder"


def common(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER", help="Folders of images, or what pathx explain wrote.")
    ],
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    by: Annotated[Grouping, typer.Option("--by", help="An image's class: what is predicted, or its folder.")] = (
        Grouping.prediction
    ),
    threshold: Annotated[
        str, typer.Option("--threshold", metavar="SHARE", help="Share of images that makes a unit common.")
    ] = "0.5",
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", metavar="N,...", help="Layers to plot. [default: the path's first and last]"),
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option("--classes", metavar="NAME,...", help="Classes to plot. [default: the ten with most images]"),
    ] = None,
    wrong: Annotated[
        bool,
        typer.Option(
            "--wrong", help="Find channels that go with wrong predictions; folders must be named after the classes."
        ),
    ] = False,
    units: Annotated[
        str | None, typer.Option("--units", metavar="FOLDER", help="With --wrong: say what these channels look for.")
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
        share = parsing.parsed(threshold, float, f"--threshold takes a share from 0 to 1, not {threshold!r}")
        if not 0 < share <= 1:
            raise PathxError(f"threshold {threshold} is out of range; use more than 0, at most 1", usage=True)
        shown = [parsing.parsed(text, int, f"--layers takes numbers, not {text!r}") for text in several(layers)]
        batch = parsing.images_at_once(batch_size)

        from pathx.evaluation.common import common_of_images, common_of_results, is_finished
        from pathx.evaluation.evaluate import write_json
        from pathx.images.folders import images_in
        from pathx.results.files import check_folder, check_own

        check_folder(out)
        check_own(Path(out), ["common.json"])
        if all(map(is_finished, folders)):
            if depth is not None or width is not None:
                raise PathxError("these are finished explanations: leave --depth and --width out", usage=True)
            found = common_of_results(folders, by=by.value)
        else:
            images = images_in(folders, out)
            loading = {
                "weights": weights,
                "model_args": model_args,
                "labels": labels,
                "input_size": input_size,
                "mean": mean,
                "std": std,
            }
            ready = prepared(model, **loading, device=device, dtype=dtype, quiet=quiet)
            with progress_bar("explaining", len(images), quiet) as advance:
                found = common_of_images(
                    ready,
                    images,
                    by=by.value,
                    depth=parsing.depth(depth or "3"),
                    width=parsing.width(width or "5"),
                    alpha=parsing.alpha(alpha),
                    skips=skips.value,
                    batch_size=batch,
                    progress=advance,
                )
        chosen = _chosen_layers(found, shown), _chosen_classes(found, several(classes))
        document = found.document(share)
        if wrong:
            document["wrong"] = _suspects(found)
        _draw(found, *chosen, Path(out), notes(quiet))
        write_json(Path(out) / "common.json", document)
        if format is Format.json:
            print(json.dumps(document))
        elif not quiet:
            _print(document, out)
            if wrong:
                _print_suspects(document["wrong"], units)
        for name, reason in found.unread.items():
            complain(about(name, reason))
        for note in () if quiet else found.notes:
            complain(f"note: {note}")
        if found.unread:
            raise typer.Exit(1)


def _suspects(found: Common) -> list[dict[str, Any]]:
    """Channels that are on the paths of wrong predictions far more often than on those of right ones."""
    from pathx.evaluation.common import labelled_paths
    from pathx.evaluation.shortcuts import comparable, suspects

    paths = labelled_paths(found)
    if not comparable(paths):
        raise PathxError(
            "no class has both right and wrong predictions: --wrong needs folders named after the classes of the model, "
            "with images that are predicted rightly and wrongly",
            usage=True,
        )
    return [
        {
            "predicted": one.predicted,
            "layer": one.channel[0],
            "tensor": one.channel[1],
            "channel": one.channel[2],
            "wrong": list(one.wrong),
            "right": list(one.right),
            "odds": one.odds,
            "interval": [one.low, one.high],
            "chance": one.chance,
            "corrected": one.corrected,
            "images": list(one.images),
        }
        for one in suspects(paths)
    ]


def _print_suspects(suspects: list[dict[str, Any]], units: str | None) -> None:
    if not suspects:
        print("no channel is on wrong paths more often than chance would have it")
        return
    words: dict[tuple[str, int], str] = {}
    if units is not None:
        from pathx.units.files import read_units

        words = {place: channel.words for place, channel in read_units(units).channels.items()}
    print("channels that go with wrong predictions:")
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


def _chosen_layers(found: Common, asked: list[int]) -> list[int]:
    for layer in asked:
        if layer not in found.layers:
            numbers = ", ".join(map(str, found.layers))
            raise PathxError(f"layer {layer} is not on the paths, which have {numbers}", usage=True)
    ends = list(found.layers)
    return asked or sorted({ends[0], ends[-1]}, reverse=True)


def _chosen_classes(found: Common, asked: list[str]) -> list[str]:
    from pathx.models.labels import resolve_target

    labels = list(found.trails)
    return [labels[resolve_target(text, labels)] for text in asked] or labels[:10]


def _draw(found: Common, layers: list[int], classes: list[str], folder: Path, note: Callable[[str], None]) -> None:
    from pathx.evaluation.common import channel, position, whole
    from pathx.evaluation.plots import MISSING, plot_frequencies, plot_overlap, plot_places, plots_are_missing

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
    from pathx.evaluation.plots import plots_are_missing

    settings = document["settings"]
    print(
        f"{document['pictures']} images in {len(document['classes'])} classes by {document['by']}; "
        f"{document['model']['name']}, depth {settings['depth']}, width {settings['width']}, skips {settings['skips']}"
    )
    print()
    for group in document["classes"]:
        print(f"{group['label']}: {group['pictures']} images")
        for layer, facts in zip(group["layers"], document["layers"], strict=True):
            single = len(facts["tensors"]) == 1
            tensor = f" ({facts['tensors'][0]['name']})" if single else ""
            common = f"{len(layer['common_path'])} units in {document['threshold']:.0%} of the images"
            print(f"  layer {layer['layer']}{tensor}: {common}")
            for kind in ("units", "channels") if layer["positions"] else ("units",):
                best = [f"{_named(unit, single)} {unit['share']:.0%}" for unit in layer[kind][:3]]
                print_paragraph(f"    {kind:9}", ", ".join(best))
        print()
    print(f"{out}: common.json{'' if plots_are_missing() else ' and plots'}")


def _named(unit: dict[str, Any], short: bool) -> str:
    """A unit or channel; without its tensor where there is but one."""
    index = f"[{','.join(map(str, unit['index']))}]"
    return index if short else f"{unit['tensor']} {index}"
