"""`pathx models` and `pathx layers`: what can be explained, and at what depths."""

from __future__ import annotations

import json
from enum import Enum
from fnmatch import fnmatch
from typing import Annotated

import typer

from pathx.commands import options, parsing
from pathx.commands.options import Format
from pathx.commands.output import errors, millions, print_table, shape


class Source(str, Enum):
    torchvision = "torchvision"
    timm = "timm"


def models(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Names to list, such as 'resnet*'. [default: all that are known]"),
    ] = None,
    source: Annotated[Source, typer.Option("--from", help="Whose models.")] = Source.torchvision,
    everything: Annotated[bool, typer.Option("--all", help="Also those that are refused, and why.")] = False,
    format: options.OneFormat = Format.text,
) -> None:
    """List the models of torchvision or timm that can be explained.

    With their hidden layers, parameters, input size, and where their default weights are: bundled with pathx, cached on
    this machine, or to be downloaded on first use.
    """
    with errors():
        from dataclasses import asdict

        from pathx.models.catalogue import catalogue, timm_catalogue

        if source is Source.timm:
            entries = list(timm_catalogue(pattern, refused=everything))
        else:
            entries = [entry for entry in catalogue(refused=everything) if fnmatch(entry.name, pattern or "*")]
        if format is Format.json:
            print(json.dumps([asdict(entry) for entry in entries]))
            return
        headings = ("model", "hidden layers", "parameters", "input", "weights")
        rows = [
            (entry.name, str(entry.hidden_layers), millions(entry.parameters), shape(entry.input_size), entry.weights)
            for entry in entries
            if entry.refused is None
        ]
        print_table(headings, rows, right={1, 2})
        if everything:
            print()
            print_table(("refused", "because of"), [(e.name, e.refused) for e in entries if e.refused is not None])


def layers(
    model: options.Model = "squeezenet1_1",
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE|none", help="As for explain. None are needed, and none are fetched unless asked."
        ),
    ] = None,
    model_args: options.ModelArguments = None,
    input_size: Annotated[
        str | None,
        typer.Option(metavar="C,H,W", help="channels,height,width, as 3,224,224. [default: the model's own]"),
    ] = None,
    format: options.OneFormat = Format.text,
) -> None:
    """List a model's hidden layers from the output to the input, to choose a depth by.

    Depth D takes the first D layers of the list. What a unit sees is its receptive field, width x height in pixels.
    """
    with errors():
        size, arguments = parsing.size(input_size), parsing.arguments(model_args)

        from dataclasses import asdict

        from pathx.models.catalogue import layers_of

        found = layers_of(model, weights=weights, arguments=arguments, input_size=size)
        if format is Format.json:
            print(json.dumps([{**asdict(layer), "units": layer.units} for layer in found]))
            return
        rows = [
            (
                *(map(str, (depth, layer.layer)) if first else ("", "")),
                tensor.name,
                shape(tensor.shape),
                str(tensor.units),
                seen,
            )
            for depth, layer in enumerate(found, start=1)
            for first, tensor in zip((True, *(False,) * len(layer.tensors)), layer.tensors, strict=False)
            for seen in [shape(tensor.receptive_field)]
        ]
        print_table(("depth", "layer", "tensor", "shape", "units", "sees"), rows, right={0, 1, 4, 5})
