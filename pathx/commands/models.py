"""`pathx models` and `pathx layers`: what can be explained, and at what depths."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pathx.commands import options
from pathx.commands.options import Format
from pathx.commands.output import errors, millions, print_table, shape


def models(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are refused, and why.")] = False,
    format: options.OneFormat = Format.text,
) -> None:
    """List torchvision's models that can be explained.

    With their hidden layers, parameters, input size, and where their default weights are: bundled with pathx, cached on
    this machine, or to be downloaded on first use.
    """
    with errors():
        from dataclasses import asdict

        from pathx.catalogue import catalogue

        entries = list(catalogue(refused=everything))
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
        size = options.size(input_size)

        from dataclasses import asdict

        from pathx.catalogue import layers_of

        found = layers_of(model, weights=weights, input_size=size)
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
