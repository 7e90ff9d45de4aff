"""`pathx ablate`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import about, note_printer, print_error, print_paragraph, print_table, say
from pathx.drawing.words import change_words
from pathx.errors import PathxError

if TYPE_CHECKING:
    from torch import Tensor

    from pathx.engine.ablate import Ablation

_PLACE = re.compile(r"(.+?)\s*\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]")


@command("nothing was written")
def ablate(
    *,
    images: list[str] = options.IMAGES,
    unit: list[str] = option((), "A unit, as path.json and the table name it; may repeat.", "NAME[C,Y,X]"),
    channel: list[str] = option((), "All units of a channel; may repeat.", "NAME[C]"),
    path: bool = option(False, "All units of the path behind the class."),
    keep: bool = option(False, "Keep only these units: set all others of their layers to zero."),
    units: str | None = option(
        None, "Set units to their means instead of zero: a folder that pathx units wrote.", "FOLDER"
    ),
    target: str | None = option(None, "Class to follow. [default: the predicted class]", "CLASS"),
    format: str = options.FORMAT,
    model: options.ModelOptions,
    path_options: options.PathOptions,
    device: options.DeviceOptions,
) -> None:
    """Set units to zero in the real network and compare its answers.

    With --keep, all other units of their layers are set to zero: what can these units do alone?
    """
    places = [_place(text, "--unit") for text in unit] + [_place(text, "--channel") for text in channel]
    if not places and not path:
        raise PathxError("there is nothing to remove: name units with --unit or --channel, or use --path", usage=True)

    from pathx.engine.ablate import ablate
    from pathx.engine.explain import explain
    from pathx.images.find import images_in
    from pathx.models.labels import resolve_target
    from pathx.pipeline import Unreadable, read_input

    found = images_in(images)
    ready = device.prepare(model.load(), exact=path_options.exact, note=note_printer(False))
    wanted = None if target is None else resolve_target(target, ready.labels)
    means = None if units is None else _means(units, ready)
    failed = False
    for image in found:
        read = read_input(image, ready.model.preprocessing)
        if isinstance(read, Unreadable):
            print_error(about(image.name, str(read.error)))
            failed = True
            continue
        inputs = read.tensor[None].to(ready.device, ready.dtype)
        paths = explain(ready.module, inputs, target=wanted, **vars(path_options)) if path else None
        (made,) = ablate(ready.module, inputs, places, path=paths, keep=keep, means=means, target=wanted)
        sentence = _sentence(made, ready.labels[made.target], keep, "zero" if means is None else "their means")
        _print(made, image.file, sentence, ready.labels, format)
    if failed:
        raise typer.Exit(1)


def _place(text: str, option: str) -> tuple[str, tuple[int, ...]]:
    found = _PLACE.fullmatch(text.strip())
    if found is None:
        example = "features.12.relu[3,5,7]" if option == "--unit" else "features.12.relu[3]"
        raise PathxError(f"{option} takes a name and an index such as {example}, not {text!r}", usage=True)
    index = tuple(int(part) for part in found[2].split(","))
    return found[1], index[:1] if option == "--channel" else index


def _means(folder: str, ready: Any) -> dict[str, Tensor]:
    """The mean activation of every channel that was gathered."""
    from dataclasses import asdict

    import torch

    from pathx.units.files import check_same_model, read_units

    gathered = read_units(folder)
    check_same_model(gathered, folder, ready.about, asdict(ready.model.preprocessing))
    shapes, means = {gate.name: gate.shape for layer in ready.network.layers for gate in layer}, {}
    for tensor, known in gathered.tensors.items():
        if known.shape != shapes.get(tensor):
            raise PathxError(
                f"the units in {folder} are of another {tensor!r} than the network's: gather the units again",
                usage=True,
            )
        own = [gathered.channels.get((tensor, number)) for number in range(known.shape[known.channel_dim])]
        means[tensor] = torch.tensor([0.0 if one is None else one.mean for one in own])
    return means


def _print(made: Ablation, file: str, sentence: str, labels: Any, format: str) -> None:
    before, after = made.probabilities
    was, now = (labels[number] for number in made.predictions)
    if format == "json":
        document = {
            "image": file,
            "target": {"index": made.target, "label": labels[made.target]},
            "units": made.units,
            "active": made.active,
            "kept": made.kept,
            "before": {"probability": before, "logit": float(made.before[made.target]), "predicted": was},
            "after": {"probability": after, "logit": float(made.after[made.target]), "predicted": now},
        }
        say(json.dumps(document))
        return
    say(file)
    print_paragraph(sentence)
    logits = [f"{float(values[made.target]):.4g}" for values in (made.before, made.after)]
    rows = [("before", f"{before:.1%}", logits[0], was), ("after", f"{after:.1%}", logits[1], now)]
    print_table(("", labels[made.target], "logit", "predicted"), rows, right={1, 2})
    say()


def _sentence(made: Ablation, label: str, kept: bool, value: str) -> str:
    """What was changed and what becomes of the class, in words."""
    changed = f"all but {made.kept:,}" if kept else f"{made.active:,}"
    _, change = change_words(*made.probabilities)
    return f"With {changed} of {made.active + made.kept:,} active units set to {value}, {label} {change}."
