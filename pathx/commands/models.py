"""`pathx models`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import loading, print_table, say
from pathx.drawing.words import count_of
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.models.catalogue import ModelFacts


_WHERE = {"region": "in a region", "image": "at the image"}


@command()
def models(
    *,
    name: str | None = typer.Argument(
        None,
        metavar="NAME|FILE|PATTERN",
        help="A model as --model takes it, to describe; or a pattern such as 'resnet*', to list. [default: list all]",
    ),
    source: str = option("torchvision", "Whose models to list.", names=("--from",), choices=("torchvision", "timm")),
    all: bool = option(False, "List also those that are refused, and why."),
    labels: str | None = option(None, "Search the labels of a model for this, such as cat; '' lists them all.", "TEXT"),
    weights: str | None = option(None, "As for explain. Not needed, and fetched only if given.", "NAME|FILE|none"),
    model_args: dict[str, Any] | None = option(None, "As for explain.", "JSON", parse=options.parse_model_args),
    input_size: Sequence[int] | None = option(
        None, "channels,height,width, as 3,224,224. [default: the model's own]", "C,H,W", parse=options.parse_size
    ),
    format: str = options.FORMAT,
) -> None:
    """List models to explain, or show the layers or labels of one.

    A list shows hidden layers, whether numbers are exact in a region around an image (ReLU networks) or at the image only,
    parameters, input size, and where the default weights are: bundled with pathx, cached on this machine, or to be downloaded
    on first use. A single model is shown with its source, its preprocessing and its hidden layers from the output to the
    input; depth D takes the first D. What a unit sees is its receptive field, width x height in pixels.
    """
    if name is None or re.search(r"[*?\[]", name) or (source == "timm" and not name.startswith("timm:")):
        if labels is not None:
            raise PathxError(
                "--labels searches one model: name it, as pathx models squeezenet1_1 --labels cat", usage=True
            )
        _list(name, source, all, format)
        return
    with loading(name):
        from pathx.models.catalogue import describe_model

        facts = describe_model(name, weights=weights, arguments=model_args, input_size=input_size)
    if labels is None:
        _describe(facts, format)
    else:
        _search(facts, labels, format)


def _list(pattern: str | None, source: str, everything: bool, format: str) -> None:
    from pathx.models.catalogue import models

    entries = models(pattern, source=source, refused=everything)
    if format == "json":
        say(json.dumps([asdict(entry) for entry in entries]))
        return
    headings = ("model", "hidden layers", "exact", "parameters", "input", "weights")
    rows = [
        (
            *(one.name, str(one.hidden_layers), _WHERE[one.exact]),
            *(_millions(one.parameters), _shape(one.input_size), one.weights),
        )
        for one in entries
        if one.exact is not None
    ]
    print_table(headings, rows, right={1, 3})
    if refused := [(one.name, one.refused) for one in entries if one.refused is not None]:
        say()
        print_table(("refused", "because of"), refused)


def _describe(facts: ModelFacts, format: str) -> None:
    if format == "json":
        layers = [{**asdict(layer), "units": layer.units} for layer in facts.layers]
        document = {**asdict(facts), "classes": len(facts.labels), "hidden_layers": len(layers), "layers": layers}
        say(json.dumps({key: value for key, value in document.items() if key != "labels"}))
        return
    classes = f", {len(facts.labels)} labels" if facts.labels else ", no labels"
    say(f"{facts.name}: {facts.source}, weights {facts.weights}, {_millions(facts.parameters)} parameters{classes}")
    if (seen := facts.preprocessing) is not None:
        resized = "" if seen.resize is None else f", resized to {seen.resize} ({seen.interpolation})"
        mean, std = (",".join(f"{value:g}" for value in values) for values in (seen.mean, seen.std))
        say(f"input {_shape(seen.input_size)}{resized}, mean {mean}, std {std}")
    say(f"{count_of(len(facts.layers), 'hidden layer')}, exact {_WHERE[facts.exact]}")
    say()
    rows = [
        (
            *((str(depth), str(layer.layer)) if number == 0 else ("", "")),
            *(tensor.name, _shape(tensor.shape), str(tensor.units), _shape(tensor.receptive_field)),
        )
        for depth, layer in enumerate(facts.layers, start=1)
        for number, tensor in enumerate(layer.tensors)
    ]
    print_table(("depth", "layer", "tensor", "shape", "units", "sees"), rows, right={0, 1, 4, 5})


def _search(facts: ModelFacts, text: str, format: str) -> None:
    from pathx.models.labels import find_labels, suggest_label

    known = facts.labels
    if not known:
        raise PathxError(f"{facts.name} brings no labels: its classes have numbers only", usage=True)
    found = find_labels(text, known)
    if format == "json":
        say(json.dumps([{"index": index, "label": known[index]} for index in found]))
    elif found:
        print_table(("class", "label"), [(str(index), known[index]) for index in found], right={0})
    else:
        everything = "--labels '' lists them all"
        raise PathxError(
            f"none of the {len(known)} labels has {text!r} in it: {suggest_label(text, known, everything)}"
        )


def _shape(sizes: Sequence[int]) -> str:
    """Sizes as people write them, 3x224x224."""
    return "x".join(map(str, sizes))


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M"
