"""`pathx units`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import Format, Option
from pathx.commands.output import about, complain, notes, print_table, progress_bar, say
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.units.references import Channel, Units


@command("run the same command again to go on")
def units(
    model: options.ModelOptions,
    path: options.PathOptions,
    device: options.DeviceOptions,
    images: Annotated[list[str] | None, options.IMAGES] = None,
    show: Annotated[
        tuple[str, int] | None,
        Option(
            "Show what one channel looks for, from what is in OUT: an activation by name or a hidden layer by number, and "
            "a channel counted from 0.",
            "LAYER CHANNEL",
        ),
    ] = None,
    by: Annotated[str, Option("What makes a channel matter in an image.", "contribution|activation")] = "contribution",
    top: Annotated[str, Option("References per channel.", "N")] = "16",
    layers: Annotated[
        list[str] | None, Option("Hidden layers, counted from the input. [default: the path's]", "N,...")
    ] = None,
    channels: Annotated[
        list[str] | None, Option("Channels of each ReLU to tell of. [default: all]", "N,A-B,...")
    ] = None,
    batch_size: options.BatchSize = "auto",
    shard: Annotated[
        str | None,
        Option(
            "See one of N parts only. [default: that of the SLURM array or torchrun, or all]", "I/N", panel=options.RUN
        ),
    ] = None,
    out: options.Out = "pathx-units",
    no_pictures: Annotated[bool, Option("Write JSON only.", panel=options.PICTURES)] = False,
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Find the images and places where each channel matters most.

    OUT gets units.json, tensors.safetensors and a contact sheet per ReLU, with the part of each image that the unit can
    see, bright where it looked. A pass that was stopped goes on where it was; passes over shards are joined by the same
    command without --shard.
    """
    if show is not None:
        _show(*show, out, format)
        return
    if not images:
        raise PathxError("there is nothing to see: give images or folders of them, or --show LAYER CHANNEL", usage=True)
    part = options.choose_shard(shard, quiet)
    how: dict[str, Any] = {
        **path.settings,
        "by": by,
        "top": options.parse(top, int, f"--top takes a whole number, not {top!r}"),
        "layers": _numbers(options.split_list(layers), "--layers"),
        "channels": _numbers(options.split_list(channels), "--channels"),
        "shard": part,
        "batch_size": options.parse_images_at_once(batch_size),
        "device": device.device,
        "dtype": device.dtype.value,
        "draw": not no_pictures,
    }

    from pathx.units.units import units

    watch = partial(progress_bar, "gathering", quiet=quiet)
    found = units(model.load(quiet), images, out, **how, note=notes(quiet), watch=watch)
    for name, reason in found.failed.items():
        complain(about(name, reason))
    if found.units is None:
        if not quiet:
            complain(f"shard {part} is gathered; run the same command without --shard once all are")
    elif format is Format.json:
        say(json.dumps(json.loads((Path(out) / "units.json").read_text(encoding="utf-8"))))
    elif not quiet:
        _print(found.units)
        say(f"{out}{os.sep}: {', '.join(found.files)}")
    if found.failed:
        raise typer.Exit(1)


def _show(tensor: str, channel: int, folder: str, format: Format) -> None:
    """What `--show` prints."""
    from pathx.units.files import read_units

    gathered = read_units(folder)
    found = [own for own in _named(gathered, tensor) if (own, channel) in gathered.channels]
    if not found:
        raise PathxError(_absent(gathered, folder, tensor, channel), usage=True)
    for name in found:
        one = gathered.channels[name, channel]
        if format is Format.json:
            say(json.dumps({"layer": one.layer, "tensor": one.tensor, **one.document()}))
        else:
            _print_channel(one)


def _named(gathered: Units, tensor: str) -> list[str]:
    """The ReLUs that a name or the number of a layer means."""
    if tensor.isascii() and tensor.isdigit() and tensor not in gathered.tensors:
        return [name for name, layer in gathered.layers.items() if layer == int(tensor)]
    return [tensor] if tensor in gathered.tensors else []


def _absent(gathered: Units, folder: str, tensor: str, channel: int) -> str:
    names = _named(gathered, tensor)
    if not names:
        known = ", ".join(f"{name} (layer {gathered.layers[name]})" for name in list(gathered.tensors)[:4])
        return f"{folder} has no units of {tensor!r}; it has {known}"
    last = max(channel for name, channel in gathered.channels if name == names[0])
    return f"{names[0]} has no channel {channel} in {folder}: the last one that was asked for is {last}"


def _print(gathered: Units) -> None:
    from pathx.units.files import on_paths

    say(f"{gathered.images} images, {gathered.about['model']['name']}, by {gathered.about['settings']['by']}")
    say()
    rows = []
    for tensor in gathered.tensors:
        for number, channel in enumerate(gathered.strongest(tensor)[:5]):
            head = (str(channel.layer), tensor) if number == 0 else ("", "")
            rows.append((*head, str(channel.channel), channel.words, on_paths(channel)))
    print_table(("layer", "tensor", "channel", "classes of its references", "paths"), rows, right={0, 2})
    say()


def _print_channel(one: Channel) -> None:
    from pathx.units.files import on_paths

    say(f"{one.name}, layer {one.layer}: {one.words}; {on_paths(one)}")
    if one.classes:
        say("on paths of: " + ", ".join(f"{label} {count}" for label, count in one.classes[:8]))
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
    say()


def _box(reference: Any) -> str:
    return "-".join(map(str, reference.receptive_field)) or "all"


def _numbers(texts: list[str], option: str) -> list[int]:
    """`3`, or `3-7` for all of them."""
    found: list[int] = []
    for text in texts:
        first, dash, last = text.partition("-")
        wrong = f"{option} takes numbers and ranges such as 3,5-7, not {text!r}"
        low = options.parse(first, int, wrong)
        high = options.parse(last, int, wrong) if dash else low
        if not 0 <= low <= high < 1_000_000:
            raise PathxError(wrong, usage=True)
        found += range(low, high + 1)
    return list(dict.fromkeys(found))
