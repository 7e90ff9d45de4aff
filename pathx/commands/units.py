"""`pathx units`."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import about, print_error, print_table, say
from pathx.errors import PathxError
from pathx.runs.index import Shard

if TYPE_CHECKING:
    from pathx.units.files import Channel, Units


@command("run the same command again to continue")
def units(
    *,
    images: list[str] | None = typer.Argument(None, metavar=options.IMAGES.metavar, help=options.IMAGES.help),
    show: tuple[str, str] | None = option(
        None,
        "Show what one channel looks for, from the results in OUT: an activation by name or a hidden layer by number, and "
        "a channel counted from 0.",
        "LAYER CHANNEL",
    ),
    by: str = option(
        "contribution", "What makes a channel matter in an image.", choices=("contribution", "activation")
    ),
    top: int = option(16, "References per channel.", "N"),
    layers: list[int] = option(
        (),
        "Hidden layers, counted from the input. [default: the path's]",
        "N,...",
        parse=partial(options.parse_ranges, "--layers"),
    ),
    channels: list[int] = option(
        (),
        "Channels of each activation to describe. [default: all]",
        "N,A-B,...",
        parse=partial(options.parse_ranges, "--channels"),
    ),
    how: options.DocumentOptions,
    batch_size: int | str = options.BATCH_SIZE,
    shard: Shard | None = options.SHARD,
    out: str = options.out_folder("pathx-units"),
    no_pictures: bool = options.NO_PICTURES,
) -> None:
    """Find the images and places where each channel matters most.

    OUT gets units.json, tensors.safetensors and a contact sheet per activation: for each channel, the parts of images that
    its units can see, bright where they looked. Run the same command again to continue a pass that was stopped, and
    without --shard to join the passes over shards.
    """
    if show is not None:
        problem = (
            f"--show takes an activation or a layer, and a channel's number, such as 17 50; not {' '.join(show)!r}"
        )
        _show(show[0], options.parse(show[1], int, problem), out, how.screen.format)
        return
    if not images:
        raise PathxError("no images are given: give images or folders of them, or --show LAYER CHANNEL", usage=True)
    part = options.choose_shard(shard, how.screen.quiet)
    settings: dict[str, Any] = {"by": by, "top": top, "layers": layers, "channels": channels, "draw": not no_pictures}
    settings |= {"shard": part, "batch_size": batch_size, **how.settings("gathering")}

    from pathx.units.units import units

    found = units(how.load(), images, out, **settings)
    for name, reason in found.failed.items():
        print_error(about(name, reason))
    if (gathered := found.units) is not None:
        document = json.loads((Path(out) / "units.json").read_text(encoding="utf-8"))
        how.screen.show(document, lambda: _print(gathered, f"{out}{os.sep}: {', '.join(found.files)}"))
    elif not how.screen.quiet:
        print_error(f"shard {part} is gathered; run the same command without --shard once all are")
    if found.failed:
        raise typer.Exit(1)


def _show(tensor: str, channel: int, folder: str, format: str) -> None:
    """What `--show` prints."""
    from pathx.units.files import read_units

    gathered = read_units(folder)
    found = [own for own in _channel_names(gathered, tensor) if (own, channel) in gathered.channels]
    if not found:
        raise PathxError(_absent(gathered, folder, tensor, channel), usage=True)
    for name in found:
        one = gathered.channels[name, channel]
        if format == "json":
            say(json.dumps({"layer": one.layer, "tensor": one.tensor, **one.document()}))
        else:
            _print_channel(one)


def _channel_names(gathered: Units, tensor: str) -> list[str]:
    """The ReLUs that a name or the number of a layer means."""
    if tensor.isascii() and tensor.isdigit() and tensor not in gathered.tensors:
        return [name for name, layer in gathered.layers.items() if layer == int(tensor)]
    return [tensor] if tensor in gathered.tensors else []


def _absent(gathered: Units, folder: str, tensor: str, channel: int) -> str:
    names = _channel_names(gathered, tensor)
    if not names:
        known = ", ".join(f"{name} (layer {gathered.layers[name]})" for name in list(gathered.tensors)[:4])
        return f"{folder} has no units of {tensor!r}; it has {known}"
    last = max(channel for name, channel in gathered.channels if name == names[0])
    return f"{names[0]} has no channel {channel} in {folder}: the last one gathered is {last}"


def _print(gathered: Units, files: str) -> None:
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
    say(files)


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
