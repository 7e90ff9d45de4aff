"""`pathx units` and `pathx unit`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.loading import prepared, several
from pathx.commands.options import Dtype, Format
from pathx.commands.output import about, complain, errors, notes, print_table, progress_bar
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.units.references import Channel, Units

UNITS = Annotated[str, typer.Option("--units", metavar="FOLDER", help="What pathx units wrote.")]


def units(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    by: Annotated[
        str, typer.Option("--by", metavar="contribution|activation", help="What makes a channel matter in an image.")
    ] = "contribution",
    top: Annotated[str, typer.Option("--top", metavar="N", help="References per channel.")] = "16",
    layers: Annotated[
        list[str] | None,
        typer.Option("--layers", metavar="N,...", help="Hidden layers, counted from the input. [default: the path's]"),
    ] = None,
    channels: Annotated[
        list[str] | None,
        typer.Option("--channels", metavar="N,A-B,...", help="Channels of each ReLU to tell of. [default: all]"),
    ] = None,
    detail: options.DetailOption = "clear",
    depth: options.PathDepth = None,
    width: options.PathWidth = None,
    alpha: options.Alpha = None,
    skips: options.PathSkips = None,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    batch_size: options.BatchSize = "auto",
    shard: options.ShardOption = None,
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-units",
    no_pictures: options.NoPictures = False,
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Find out what the channels of a network look for: the images and places where each matters most.

    OUT gets units.json, tensors.safetensors and a contact sheet per ReLU, with the part of each image that the unit can
    see, bright where it looked. A pass that was stopped goes on where it was; passes over shards are joined by the same
    command without --shard.
    """
    with errors("run the same command again to go on"):
        reach, most, jumps = parsing.path(detail, depth, width, skips)
        path: dict[str, Any] = {"depth": reach, "width": most, "alpha": parsing.alpha(alpha), "skips": jumps}
        batch, part = parsing.images_at_once(batch_size), parsing.shard(shard, quiet)
        references = parsing.parsed(top, int, f"--top takes a whole number, not {top!r}")
        wanted, numbers = _numbers(several(layers), "--layers"), _numbers(several(channels), "--channels")

        from pathx.images.folders import images_in
        from pathx.results.files import check_folder
        from pathx.runs.stop import Stop
        from pathx.units.files import save_units
        from pathx.units.folder import Pass, Request

        check_folder(out)
        found = images_in(images, out)
        ready = prepared(
            model,
            weights=weights,
            model_args=model_args,
            labels=labels,
            input_size=input_size,
            mean=mean,
            std=std,
            device=device,
            dtype=dtype,
            quiet=quiet,
        )
        request = Request(**path, by=by, top=references, layers=tuple(wanted), channels=tuple(numbers))
        stop = Stop()
        with progress_bar("gathering", len(found), quiet) as advance, stop.on_signals():
            one = Pass(ready, found, request, out, shard=part, batch_size=batch, progress=advance, stop=stop)
            state = one.run()
        for name, reason in state.failed.items():
            complain(about(name, reason))
        if part is not None:
            if not quiet:
                complain(f"shard {part} is gathered; run the same command without --shard once all are")
        else:
            gathered = one.units(state)
            files = save_units(gathered, Path(out), ready, draw=not no_pictures, note=notes(quiet))
            one.done()
            if format is Format.json:
                print(json.dumps(json.loads((Path(out) / "units.json").read_text(encoding="utf-8"))))
            elif not quiet:
                _print(gathered)
                print(f"{out}{os.sep}: {', '.join(files)}")
        if state.failed:
            raise typer.Exit(1)


def unit(
    tensor: Annotated[str, typer.Argument(metavar="LAYER", help="A ReLU by name, or a hidden layer by number.")],
    channel: Annotated[int, typer.Argument(metavar="CHANNEL", help="The channel, counted from 0.")],
    units: UNITS = "pathx-units",
    format: options.OneFormat = Format.text,
) -> None:
    """Show what one channel looks for, from what pathx units gathered."""
    with errors():
        from pathx.units.files import read_units

        gathered = read_units(units)
        found = [own for own in _named(gathered, tensor) if (own, channel) in gathered.channels]
        if not found:
            raise PathxError(_absent(gathered, units, tensor, channel), usage=True)
        for name in found:
            one = gathered.channels[name, channel]
            if format is Format.json:
                print(json.dumps({"layer": one.layer, "tensor": one.tensor, **one.document()}))
            else:
                _print_channel(one)


def _named(gathered: Units, tensor: str) -> list[str]:
    """The ReLUs that a name or the number of a layer means."""
    if tensor.isascii() and tensor.isdigit() and tensor not in gathered.shapes:
        return [name for name, layer in gathered.layers.items() if layer == int(tensor)]
    return [tensor] if tensor in gathered.shapes else []


def _absent(gathered: Units, folder: str, tensor: str, channel: int) -> str:
    names = _named(gathered, tensor)
    if not names:
        known = ", ".join(f"{name} (layer {gathered.layers[name]})" for name in list(gathered.shapes)[:4])
        return f"{folder} has no units of {tensor!r}; it has {known}"
    last = gathered.shapes[names[0]][0] - 1
    return (
        f"{names[0]} has no channel {channel} in {folder}: its channels are 0 to {last}, as far as they were asked for"
    )


def _print(gathered: Units) -> None:
    from pathx.units.files import on_paths

    print(f"{gathered.images} images, {gathered.about['model']['name']}, by {gathered.about['settings']['by']}")
    print()
    rows = []
    for tensor in gathered.shapes:
        for number, channel in enumerate(gathered.strongest(tensor)[:5]):
            head = (str(channel.layer), tensor) if number == 0 else ("", "")
            rows.append((*head, str(channel.channel), channel.words, on_paths(channel)))
    print_table(("layer", "tensor", "channel", "classes of its references", "paths"), rows, right={0, 2})
    print()


def _print_channel(one: Channel) -> None:
    from pathx.units.files import on_paths

    print(f"{one.name}, layer {one.layer}: {one.words}; {on_paths(one)}")
    if one.classes:
        print("on paths of: " + ", ".join(f"{label} {count}" for label, count in one.classes[:8]))
    rows = [
        (
            f"{reference.value:.4g}",
            reference.label,
            ",".join(map(str, reference.index)),
            _box(reference),
            reference.file,
        )
        for reference in one.references
    ]
    print_table(("value", "predicted", "unit", "sees", "image"), rows, right={0})
    print()


def _box(reference: Any) -> str:
    return "-".join(map(str, reference.receptive_field)) or "all"


def _numbers(texts: list[str], option: str) -> list[int]:
    """`3`, or `3-7` for all of them."""
    found: list[int] = []
    for text in texts:
        first, dash, last = text.partition("-")
        wrong = f"{option} takes numbers and ranges such as 3,5-7, not {text!r}"
        low = parsing.parsed(first, int, wrong)
        high = parsing.parsed(last, int, wrong) if dash else low
        if not 0 <= low <= high < 1_000_000:
            raise PathxError(wrong, usage=True)
        found += range(low, high + 1)
    return list(dict.fromkeys(found))
