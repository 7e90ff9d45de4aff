"""What pathx can explain: tables of torchvision's and timm's models, and the hidden layers of one network.

Tracing all models takes minutes to hours, so the tables in data/ hold the outcome for one release of each library. The tests'
`python -m support.tables` writes torchvision.json again, and `python -m support.timm_networks` timm.json.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from pathx.engine.fields import extent
from pathx.engine.freeze import network_of
from pathx.engine.network import Gate, Network
from pathx.errors import PathxError
from pathx.models.load import DEFAULT_MODEL, as_name, load_model, source_of
from pathx.models.named import no_initialisation, weights_file
from pathx.models.preprocessing import Preprocessing

TABLES = {source: Path(__file__).parent / "data" / f"{source}.json" for source in ("torchvision", "timm")}


@dataclass(frozen=True)
class CatalogueEntry:
    """A classifier of torchvision or timm.

    Args:
        hidden_layers: None if the model is refused.
        exact: "region" if its numbers hold in a whole region around an image (ReLU networks), "image" if they hold at the image
            alone; None if the model is refused.
        refused: why, such as `mul in stages.3`, or None.
        input_size: (channels, height, width) that its default weights expect.
        weights: where its default weights are: `bundled`, `cached`, `download` or `hub` (Hugging Face's).
    """

    name: str
    hidden_layers: int | None
    exact: str | None
    refused: str | None
    parameters: int
    input_size: tuple[int, ...]
    weights: str


@dataclass(frozen=True)
class HiddenTensor:
    """The units of one activation.

    Args:
        receptive_field: the largest (width, height) in pixels that a unit sees; empty if the input is no image.
    """

    name: str
    shape: tuple[int, ...]
    units: int
    receptive_field: tuple[int, ...]


@dataclass(frozen=True)
class HiddenLayer:
    """A hidden layer.

    Args:
        tensors: the activations that form it.
    """

    layer: int
    tensors: tuple[HiddenTensor, ...]

    @property
    def units(self) -> int:
        return sum(tensor.units for tensor in self.tensors)


def models(pattern: str | None = None, *, source: str = "torchvision", refused: bool = False) -> list[CatalogueEntry]:
    """The models of one release of torchvision or timm that pathx explains, by name.

    Args:
        pattern: such as `resnet*`.
        refused: also list those that it does not explain.
    """
    known = json.loads(TABLES[source].read_text())["models"]
    names = [name for name in known if fnmatch(name, pattern or "*")]
    if not names:
        raise PathxError(f"{source} has no model that matches {pattern!r}: try a pattern such as 'resnet*'", usage=True)
    entries = (_entry(source, name, known[name]) for name in names)
    return [entry for entry in entries if refused or entry.refused is None]


def _entry(source: str, name: str, facts: Mapping[str, Any]) -> CatalogueEntry:
    settings = {key: facts[key] for key in ("hidden_layers", "exact", "refused", "parameters")}
    shown, weights = (f"timm:{name}", "hub") if source == "timm" else (name, _whereabouts(name, facts["file"]))
    return CatalogueEntry(shown, **settings, input_size=tuple(facts["input_size"]), weights=weights)


def _whereabouts(name: str, file: str) -> str:
    """Where the default weights of a torchvision model are."""
    if name == DEFAULT_MODEL:
        return "bundled"
    return "cached" if Path(torch.hub.get_dir(), "checkpoints", file).is_file() else "download"


@dataclass(frozen=True, repr=False)
class ModelFacts:
    """What a user may want to know about a model before explaining it.

    Args:
        source: where it comes from: `torchvision`, `timm`, `file`, …
        weights: their name, or for a name of torchvision where its default weights are.
        preprocessing: None for a file that does not say it.
        exact: "region" if the numbers hold in a whole region around an image (ReLU networks), "image" if they hold at the image
            alone.
        layers: from the output to the input.
    """

    name: str
    source: str
    weights: str
    parameters: int
    preprocessing: Preprocessing | None
    labels: tuple[str, ...]
    exact: str
    layers: tuple[HiddenLayer, ...]

    def __repr__(self) -> str:
        return (
            f"<ModelFacts {self.name}: {len(self.layers)} hidden layers, exact {self.exact}, {len(self.labels)} labels>"
        )


def describe_model(
    name_or_file: str | Path,
    *,
    weights: str | Path | None = None,
    arguments: Mapping[str, Any] | None = None,
    input_size: Sequence[int] | None = None,
) -> ModelFacts:
    """The preprocessing, labels and hidden layers of a model from any source.

    Args:
        weights: as for `load_model`. Nothing is downloaded for a name, since only the classes may depend on the weights.
    """
    name, source = str(name_or_file), source_of(name_or_file)
    fetched = weights is None and source in ("timm", "transformers", "torchvision") and not os.path.isdir(name)
    given: dict[str, Any] = {"arguments": arguments, "input_size": input_size}
    given["weights"] = "none" if fetched and as_name(name) != DEFAULT_MODEL else weights
    known = True
    with no_initialisation() if fetched else nullcontext():
        try:
            loaded = load_model(name_or_file, **given)
        except PathxError:
            if source != "file":
                raise
            known = False
            loaded = load_model(name_or_file, **given, mean=0.0, std=1.0)  # which change no layer
    source, used = loaded.origin.get("source", "file"), loaded.weights
    if fetched and source == "torchvision":
        used = _whereabouts(loaded.name, weights_file(loaded.name))
    network = network_of(loaded.module, torch.zeros(1, *loaded.preprocessing.input_size))
    return ModelFacts(
        name,
        source,
        used,
        sum(parameter.numel() for parameter in loaded.module.parameters()),
        loaded.preprocessing if known else None,
        loaded.labels,
        network.reading.exact,
        tuple(hidden_layers(network)),
    )


def hidden_layers(network: Network) -> list[HiddenLayer]:
    """The hidden layers of a network, from the output to the input."""

    def tensor(gate: Gate) -> HiddenTensor:
        seen = extent(network.fields.get(gate.source), network.shape(network.graph.input))
        return HiddenTensor(gate.name, gate.shape, gate.units, seen)

    numbered = reversed(list(enumerate(network.layers, start=1)))
    return [HiddenLayer(number, tuple(map(tensor, gates))) for number, gates in numbered]
