"""What there is to explain: torchvision's models at a glance, and the hidden layers of one network.

Tracing every model takes a minute, so data/models.json holds what that gave for one release of torchvision;
`python -m pathx.catalogue` writes it anew. A name that is not in it is traced when it is asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pathx.errors import PathxError
from pathx.fields import extent
from pathx.frozen import network_of
from pathx.models import DEFAULT_MODEL, architecture, is_file, load_model, model_names, weights_file
from pathx.network import Gate

TABLE = Path(__file__).parent / "data" / "models.json"


@dataclass(frozen=True)
class CatalogueEntry:
    """One of torchvision's classifiers.

    Args:
        hidden_layers: None where the model is refused.
        refused: the operation and module that rule it out, such as `silu in features.0.2`, or None.
        input_size: (channels, height, width) that its default weights are made for.
        weights: `bundled`, `cached` or `download`: where its default weights are.
    """

    name: str
    hidden_layers: int | None
    refused: str | None
    parameters: int
    input_size: tuple[int, ...]
    weights: str


@dataclass(frozen=True)
class HiddenTensor:
    """The units of one ReLU.

    Args:
        receptive_field: (width, height) in pixels that a unit sees at most; empty where the input is no picture.
    """

    name: str
    shape: tuple[int, ...]
    units: int
    receptive_field: tuple[int, ...]


@dataclass(frozen=True)
class HiddenLayer:
    """A hidden layer.

    Args:
        tensors: the ReLUs that form it.
    """

    layer: int
    tensors: tuple[HiddenTensor, ...]

    @property
    def units(self) -> int:
        return sum(tensor.units for tensor in self.tensors)


def catalogue(*, refused: bool = False) -> Iterator[CatalogueEntry]:
    """torchvision's classifiers that pathx explains, by name; with `refused` also those it does not."""
    table = json.loads(TABLE.read_text())
    known = table["models"]
    for name in known if _release() == table["torchvision"] else model_names():
        facts = known.get(name) or survey(name)
        if refused or facts["refused"] is None:
            settings = {key: facts[key] for key in ("hidden_layers", "refused", "parameters")}
            size = tuple(facts["input_size"])
            yield CatalogueEntry(name, **settings, input_size=size, weights=_whereabouts(name, facts["file"]))


def _release() -> str:
    """Of the torchvision that is installed."""
    return version("torchvision").partition("+")[0]


def _whereabouts(name: str, file: str) -> str:
    """Where the default weights of a model are."""
    if name == DEFAULT_MODEL:
        return "bundled"
    return "cached" if Path(torch.hub.get_dir(), "checkpoints", file).is_file() else "download"


def survey(name: str) -> dict[str, Any]:
    """What the table says about one of torchvision's models, found out."""
    module, size = architecture(name)
    facts: dict[str, Any] = {"hidden_layers": None, "refused": None}
    try:
        facts["hidden_layers"] = network_of(module, torch.zeros(1, *size)).depth
    except PathxError as error:
        found = re.search(r"\w+ in \S+", str(error))
        facts["refused"] = found.group() if found else str(error)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return {**facts, "parameters": parameters, "input_size": list(size), "file": weights_file(name)}


def layers_of(
    name_or_file: str | Path, *, weights: str | Path | None = None, input_size: Sequence[int] | None = None
) -> list[HiddenLayer]:
    """The hidden layers of a model by name or file.

    Args:
        weights: as for `load_model`. A torchvision name needs none: only the number of classes may depend on them.
    """
    if weights is None and not is_file(name_or_file):
        return hidden_layers(*architecture(str(name_or_file), input_size))
    loaded = load_model(
        name_or_file, weights=weights, input_size=input_size, mean=0.0, std=1.0
    )  # which change no layer
    return hidden_layers(loaded.module, loaded.preprocessing.input_size)


def hidden_layers(model: nn.Module, input_size: tuple[int, ...]) -> list[HiddenLayer]:
    """The hidden layers of a network, from the output to the input.

    Args:
        input_size: of one input, as (channels, height, width).
    """
    network = network_of(model, torch.zeros(1, *input_size))

    def tensor(gate: Gate) -> HiddenTensor:
        seen = extent(network.fields.get(gate.source), input_size)
        return HiddenTensor(gate.name, gate.shape, gate.units, seen)

    numbered = reversed(list(enumerate(network.layers, start=1)))
    return [HiddenLayer(number, tuple(map(tensor, gates))) for number, gates in numbered]


def main() -> None:
    """Write the table anew for the torchvision that is installed."""
    facts = {}
    for name in model_names():
        facts[name] = survey(name)
        print(name, facts[name], flush=True)
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in facts.items())
    TABLE.write_text(f'{{\n  "torchvision": "{_release()}",\n  "models": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
