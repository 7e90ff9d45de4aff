"""`pathx labels`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pathx.commands import options
from pathx.commands.options import Format
from pathx.commands.output import errors, loading, print_table
from pathx.errors import PathxError


def labels(
    search: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Show labels with this in them only, such as cat.")
    ] = "",
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    file: options.Labels = None,
    format: options.OneFormat = Format.text,
) -> None:
    """List the classes of a model, or search them: what --target takes."""
    with errors():
        with loading(model):
            from pathx.models.labels import find_labels
            from pathx.models.load import load_model

            known = load_model(model, weights=weights, labels=file).labels
        if not known:
            raise PathxError(f"{model} brings no labels: its classes have numbers only, or give --labels", usage=True)
        found = find_labels(search, known)
        if format is Format.json:
            print(json.dumps([{"index": index, "label": known[index]} for index in found]))
        elif found:
            print_table(("class", "label"), [(str(index), known[index]) for index in found], right={0})
        else:
            raise PathxError(f"none of the {len(known)} labels has {search!r} in it: try a shorter word")
