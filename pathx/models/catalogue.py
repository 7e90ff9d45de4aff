"""What there is to explain: torchvision's models at a glance, and the hidden layers of one network.

Tracing every model takes a minute, so data/models.json holds what that gave for one release of torchvision;
`python -m pathx.models.catalogue` writes it again. A name that is not in it is traced when it is asked for.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pathx.engine.fields import extent
from pathx.engine.freeze import network_of
from pathx.engine.network import Gate
from pathx.errors import PathxError
from pathx.models.bundled import DEFAULT_MODEL
from pathx.models.factories import is_factory
from pathx.models.hubs import library, timm_network
from pathx.models.load import is_file, load_model
from pathx.models.named import TABLE, architecture, as_name, model_names, no_initialisation, table, weights_file
from pathx.models.preprocessing import Preprocessing


@dataclass(frozen=True)
class CatalogueEntry:
    """One of torchvision's classifiers.

    Args:
        hidden_layers: None where the model is refused.
        refused: the operation and module that rule it out, such as `silu in features.0.2`, or None.
        input_size: (channels, height, width) that its default weights are made for.
        weights: `bundled`, `cached`, `download` or `hub` (Hugging Face's): where its default weights are.
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
        receptive_field: (width, height) in pixels that a unit sees at most; empty where the input is no image.
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
    known_release, known = table()["torchvision"], table()["models"]
    for name in known if _release() == known_release else model_names():
        facts = known.get(name) or survey(name)
        if refused or facts["refused"] is None:
            settings = {key: facts[key] for key in ("hidden_layers", "refused", "parameters")}
            size = tuple(facts["input_size"])
            yield CatalogueEntry(name, **settings, input_size=size, weights=_whereabouts(name, facts["file"]))


def _release(library: str = "torchvision") -> str:
    """Of a library that is installed."""
    return version(library).partition("+")[0]


def _whereabouts(name: str, file: str) -> str:
    """Where the default weights of a model are."""
    if name == DEFAULT_MODEL:
        return "bundled"
    return "cached" if Path(torch.hub.get_dir(), "checkpoints", file).is_file() else "download"


def survey(name: str) -> dict[str, Any]:
    """What the table says about one of torchvision's models, found out."""
    module, size = architecture(name)
    return {**_facts(module, size, size), "file": weights_file(name)}


def _facts(module: nn.Module, size: tuple[int, ...], traced: tuple[int, ...]) -> dict[str, Any]:
    """How many hidden layers a network has, or why it is refused, traced on an input that may be smaller than its own."""
    facts: dict[str, Any] = {"hidden_layers": None, "refused": None}
    try:
        facts["hidden_layers"] = network_of(module, torch.zeros(1, *traced)).depth
    except PathxError as error:
        found = re.search(r": (\w+ in \S+)", str(error))
        facts["refused"] = found.group(1) if found else str(error)
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return {**facts, "parameters": parameters, "input_size": list(size)}


TIMM_TABLE = TABLE.with_name("timm.json")
"""What tracing gave for one release of timm; `python -m pathx.models.catalogue timm` adds what is missing."""
_ENOUGH = 96  # pixels: the number of hidden layers does not depend on the size, and tracing does


def timm_catalogue(pattern: str | None = None, *, refused: bool = False) -> Iterator[CatalogueEntry]:
    """timm's networks that pathx explains; with `refused` also those it does not.

    Args:
        pattern: such as `resnet*`. Names that match and are not in the table are built and traced, which takes a while.
    """
    known: dict[str, Any] = json.loads(TIMM_TABLE.read_text())["models"]
    if pattern is None:
        names: Sequence[str] = list(known)
    else:
        names = library("timm").list_models(pattern)
        if not names:
            raise PathxError(f"timm has no model that matches {pattern!r}: try a pattern such as 'resnet*'", usage=True)
    for name in names:
        facts = known.get(name) or survey_timm(name)
        if refused or facts["refused"] is None:
            size = tuple(facts["input_size"])
            settings = {key: facts[key] for key in ("hidden_layers", "refused", "parameters")}
            yield CatalogueEntry(f"timm:{name}", **settings, input_size=size, weights="hub")


def survey_timm(name: str) -> dict[str, Any]:
    """What the table says about one of timm's networks, found out."""
    timm = library("timm")
    config = timm.get_pretrained_cfg(name)
    size = tuple(config.input_size) if config else (3, 224, 224)
    traced = size if config and config.fixed_input_size else (size[0], _ENOUGH, _ENOUGH)
    try:
        with no_initialisation():
            module = timm_network(timm, name, {})
    except PathxError as error:
        return {"hidden_layers": None, "refused": str(error), "parameters": 0, "input_size": list(size)}
    facts = _facts(module, size, traced)
    return _facts(module, size, size) if "cannot run on" in (facts["refused"] or "") else facts


def models(pattern: str | None = None, *, source: str = "torchvision", refused: bool = False) -> list[CatalogueEntry]:
    """The models of torchvision or timm that pathx explains, by name.

    Args:
        pattern: such as `resnet*`; of timm's, those that match are looked at even if they are not in the table.
        refused: also those that it does not.
    """
    if source == "timm":
        return list(timm_catalogue(pattern, refused=refused))
    return [entry for entry in catalogue(refused=refused) if fnmatch(entry.name, pattern or "*")]


@dataclass(frozen=True)
class ModelFacts:
    """What a user may want to know of a model before explaining it.

    Args:
        source: where it comes from: `torchvision`, `timm`, `file`, …
        weights: which they are, or for a name of torchvision where its default weights are.
        preprocessing: None for a file that does not say it.
        layers: from the output to the input.
    """

    name: str
    source: str
    weights: str
    parameters: int
    preprocessing: Preprocessing | None
    labels: tuple[str, ...]
    layers: tuple[HiddenLayer, ...]


def describe_model(
    name_or_file: str | Path,
    *,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    input_size: Sequence[int] | None = None,
) -> ModelFacts:
    """The preprocessing, labels and hidden layers of a model from any source.

    Args:
        weights: as for `load_model`. A name needs none, and none are fetched: only the classes may depend on them.
    """
    name = str(name_or_file)
    hub = name.startswith(("timm:", "hf:"))
    fetched = weights is None and (hub or not (is_file(name) or is_factory(name) or os.path.isdir(name)))
    given: dict[str, Any] = {"arguments": arguments, "input_size": input_size}
    given["weights"] = "none" if fetched and as_name(name) != DEFAULT_MODEL else weights
    known = True
    with no_initialisation() if fetched else nullcontext():
        try:
            loaded = load_model(name_or_file, **given)
        except PathxError:
            if not is_file(name_or_file):
                raise
            known = False
            loaded = load_model(name_or_file, **given, mean=0.0, std=1.0)  # which change no layer
    source, used = loaded.origin.get("source", "file"), loaded.weights
    if fetched and source == "torchvision":
        used = _whereabouts(loaded.name, weights_file(loaded.name))
    return ModelFacts(
        name,
        source,
        used,
        sum(parameter.numel() for parameter in loaded.module.parameters()),
        loaded.preprocessing if known else None,
        loaded.labels,
        tuple(hidden_layers(loaded.module, loaded.preprocessing.input_size)),
    )


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


def main(source: str = "torchvision") -> None:
    """Write the table again for the torchvision that is installed, or add to that of timm what is missing."""
    facts: dict[str, Any] = {}
    if source == "timm":
        facts = dict(json.loads(TIMM_TABLE.read_text())["models"])
    names = library("timm").list_models() if source == "timm" else model_names()
    for name in names:
        if name not in facts:
            facts[name] = survey_timm(name) if source == "timm" else survey(name)
            print(name, facts[name], flush=True)
            write_table(TIMM_TABLE if source == "timm" else TABLE, source, facts)  # at once: timm takes hours


def write_table(file: Path, source: str, facts: Mapping[str, Any]) -> None:
    """One line per model, so that changes can be read."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(facts.items()))
    file.write_text(f'{{\n  "{source}": "{_release(source)}",\n  "models": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
