"""`pathx ablate`."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.loading import prepared
from pathx.commands.options import Dtype, Format
from pathx.commands.output import about, complain, errors, print_table
from pathx.errors import PathxError

if TYPE_CHECKING:
    from torch import Tensor

    from pathx.engine.ablate import Ablation

_PLACE = re.compile(r"(.+?)\s*\[\s*(\d{1,9}(?:\s*,\s*\d{1,9})*)\s*\]")


def ablate(
    images: options.Images,
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    unit: Annotated[
        list[str] | None,
        typer.Option("--unit", metavar="NAME[C,Y,X]", help="A unit, as path.json and the table name it; may repeat."),
    ] = None,
    channel: Annotated[
        list[str] | None, typer.Option("--channel", metavar="NAME[C]", help="All units of a channel; may repeat.")
    ] = None,
    path: Annotated[bool, typer.Option("--path", help="All units of the path behind the class.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="The other way round: in their layers only these stay.")] = False,
    units: Annotated[
        str | None,
        typer.Option(
            "--units", metavar="FOLDER", help="Set units to their means, which pathx units wrote, not to zero."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="CLASS", help="Class to follow. [default: the predicted]")
    ] = None,
    detail: options.DetailOption = "clear",
    depth: options.PathDepth = None,
    width: options.PathWidth = None,
    alpha: options.Alpha = None,
    skips: options.PathSkips = None,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    format: options.OneFormat = Format.text,
) -> None:
    """Set units to zero in the real network and see what becomes of its answer."""
    with errors("nothing was written"):
        reach, most, jumps = parsing.path(detail, depth, width, skips)
        settings: dict[str, Any] = {"depth": reach, "width": most, "alpha": parsing.alpha(alpha), "skips": jumps}
        places = [_place(text, "--unit") for text in unit or ()] + [_place(text, "--channel") for text in channel or ()]
        if not places and not path:
            raise PathxError(
                "there is nothing to remove: name units with --unit or --channel, or use --path", usage=True
            )

        from pathx.engine.ablate import ablate as remove
        from pathx.engine.explain import explain
        from pathx.images.folders import images_in
        from pathx.models.labels import resolve_target
        from pathx.pipeline import Unreadable, read_input

        found = images_in(images)
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
        )
        wanted = None if target is None else resolve_target(target, ready.labels)
        means = None if units is None else _means(units, ready)
        failed = False
        for image in found:
            read = read_input(image, ready.model.preprocessing)
            if isinstance(read, Unreadable):
                complain(about(image.name, str(read.error)))
                failed = True
                continue
            inputs = read.tensor[None].to(ready.device, ready.dtype)
            paths = explain(ready.module, inputs, target=wanted, **settings) if path else None
            (made,) = remove(ready.module, inputs, places, path=paths, keep=keep, means=means, target=wanted)
            _print(made, image.file, ready.labels, format)
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
    means = {}
    for tensor, shape in gathered.shapes.items():
        own = [gathered.channels.get((tensor, number)) for number in range(shape[0])]
        means[tensor] = torch.tensor([0.0 if one is None else one.mean for one in own])
    return means


def _print(made: Ablation, file: str, labels: Any, format: Format) -> None:
    before, after = made.probabilities
    was, now = (labels[number] for number in made.predictions)
    if format is Format.json:
        document = {
            "image": file,
            "target": {"index": made.target, "label": labels[made.target]},
            "units": made.units,
            "active": made.active,
            "before": {"probability": before, "logit": float(made.before[made.target]), "predicted": was},
            "after": {"probability": after, "logit": float(made.after[made.target]), "predicted": now},
        }
        print(json.dumps(document))
        return
    print(f"{file}: {made.units} units changed, {made.active} of them active")
    logits = [f"{float(values[made.target]):.4g}" for values in (made.before, made.after)]
    rows = [("before", f"{before:.1%}", logits[0], was), ("after", f"{after:.1%}", logits[1], now)]
    print_table(("", labels[made.target], "logit", "predicted"), rows, right={1, 2})
    print()
