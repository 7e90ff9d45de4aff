"""The files of one explanation: three pictures, on request the tensors, and path.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as safetensors_bytes

from pathx.drawing.figure import explanation_figure
from pathx.drawing.page import Panel
from pathx.drawing.render import Drawing, pixel_map, png
from pathx.drawing.view import View
from pathx.errors import PathxError, shown
from pathx.images.read import UserImage
from pathx.results.files import FILES, PATH, SETTINGS, Kind, ResultFiles, created_by, is_finite
from pathx.results.schema import PATH_SCHEMA

if TYPE_CHECKING:
    from pathx.explanation import Explanation, PathLayer, Unit

TENSORS_SCHEMA = "pathx/tensors@1"
MOST_EDGES = 1000  # that path.json lists of a layer


@dataclass(frozen=True, eq=False)
class ResultSubject:
    """The image that results are about, the model, and how to draw and write them: what all files of an image share.

    Args:
        region: (left, top, right, bottom) in pixels of the image: what the network saw.
        model: what documents say of the model: name, weights, sha256, classes, origin.
        labels: of the classes.
        device: what was computed on.
        settings: all settings of the run, for the document.
        preprocessing: how the network's input was made from the image.
        draw: whether to make pictures.
    """

    image: UserImage
    region: tuple[float, float, float, float]
    model: Mapping[str, Any]
    labels: Sequence[str]
    device: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    drawing: Drawing = field(default_factory=Drawing)
    draw: bool = True
    save_tensors: bool = False

    def label(self, index: int | None) -> str:
        return "" if index is None else self.labels[index]

    def view(self, explanation: Explanation, more: tuple[Panel, ...] = ()) -> View:
        """The image to draw on, with further panels."""
        source = f"{PurePath(self.image.file).name}, {self.model['name']}"
        label, other = self.label(explanation.target), self.label(explanation.against)
        return View(self.image.pixels, self.image.on_pixels(self.region), label, source, other=other, more=more)

    def target(self, explanation: Explanation, index: int) -> dict[str, Any]:
        """What a document says of an explained class."""
        logits = explanation.logits.detach().cpu().double().flatten()
        logit = logits[index]
        return {
            "index": index,
            "label": self.label(index),
            "logit": float(logit),
            "probability": float(logits.softmax(0)[index]),
            "rank": 1 + int((logits > logit).sum()),
        }

    def document(
        self, schema: str, explanation: Explanation, about: Mapping[str, Any], **content: Any
    ) -> dict[str, Any]:
        """A document: image, model, the question, settings, the answer, software. Refuses numbers that JSON does not have."""
        image = {key: getattr(self.image, key) for key in ("file", "sha256", "width", "height")}
        origin = {"origin": dict(self.model["origin"])} if self.model.get("origin") else {}
        model = {key: self.model[key] for key in ("name", "weights", "sha256", "classes")}
        model |= {"hidden_layers": explanation.hidden_layers, "exact": explanation.exact, **origin}
        dtype = str(explanation.attribution.dtype).removeprefix("torch.")
        document = {
            "schema": schema,
            "image": image,
            "model": model,
            **about,
            **{key: getattr(explanation, key) for key in SETTINGS},
            **content,
            "region": list(self.region),
            "settings": dict(self.settings),
            "preprocessing": dict(self.preprocessing),
            "created_by": created_by(device=self.device, dtype=dtype),
        }
        if not is_finite(document):
            raise PathxError(
                f"{shown(self.image.file)}: the explanation holds NaN or infinite numbers: "
                "try `dtype` float64, check the weights"
            )
        return document


def explanation_files(explanation: Explanation, subject: ResultSubject, more: tuple[Panel, ...] = ()) -> ResultFiles:
    """The files of one explanation.

    Args:
        more: further pictures for the figure.
    """
    document = path_document(explanation, subject)
    contents = pictures(explanation, subject.view(explanation, more), subject.drawing) if subject.draw else {}
    if subject.save_tensors:
        contents[FILES["tensors"]] = _tensors(explanation, document)
    document["files"] = {key: name for key, name in FILES.items() if name in contents}
    return ResultFiles(Kind.explanation, {PATH: document}, contents)


def pictures(explanation: Explanation, view: View, drawing: Drawing) -> dict[str, bytes]:
    """figure.png, heatmap.png and overlay.png."""
    drawn = {
        "figure": explanation_figure(explanation, view, drawing),
        "heatmap": pixel_map(explanation.attribution, drawing).convert("RGB"),
        "overlay": view.overlay(explanation, drawing),
    }
    return {FILES[name]: png(picture) for name, picture in drawn.items()}


def path_document(explanation: Explanation, subject: ResultSubject) -> dict[str, Any]:
    """What path.json says: schema `pathx/path@1`, every number finite."""
    attribution_sum = float(explanation.attribution.detach().cpu().double().sum())
    removal = None if explanation.removal is None else asdict(explanation.removal)
    about = {"target": subject.target(explanation, explanation.target)}
    if explanation.against is not None:
        about["against"] = subject.target(explanation, explanation.against)
    return subject.document(
        PATH_SCHEMA,
        explanation,
        about,
        complete=explanation.complete,
        layers=[_layer_document(layer) for layer in explanation.path],
        linear_model={
            "score": explanation.score,
            "bias": explanation.bias,
            "attribution_sum": attribution_sum,
            "residual": explanation.score - explanation.bias - attribution_sum,
            "share_of_logit": explanation.share_of_logit,
        },
        removal=removal,
        input=list(explanation.attribution.shape),
        files={},
    )


def _layer_document(layer: PathLayer) -> dict[str, Any]:
    """What a document says of a layer of a path."""
    return {
        "layer": layer.layer,
        "below_alpha": layer.below_alpha,
        "tensors": [tensor.document() for tensor in layer.tensors],
        "units": [unit_document(unit) for unit in layer.units],
        **_edges_document(layer),
    }


def _edges_document(layer: PathLayer) -> dict[str, Any]:
    """The strongest edges of a layer, and what share they are of all, by absolute value; nothing where there are none.

    Units are named by their position in `units`, of this layer (from) and of layer `to_layer` (to); where that is null,
    `to` is the explained class. Keys in order:

    `edges`        [{"to_layer": int | null, "values": [[from, to, value], …]}, …], strongest first
    `edges_share`  1 where all are listed
    """
    values = [edges.value.detach().cpu().double() for edges in layer.edges]
    if not values:
        return {}
    strength = torch.cat([value.flatten() for value in values]).abs()
    shown = strength.topk(min(MOST_EDGES, len(strength)))
    found = shown.indices[shown.values > 0].sort().values
    whole = float(strength.sum())
    entries, start = [], 0
    for edges, value in zip(layer.edges, values, strict=True):
        own = found[(found >= start) & (found < start + value.numel())] - start
        own = own[value.flatten()[own].abs().argsort(descending=True, stable=True)]
        width = value.shape[1]
        triples = zip((own // width).tolist(), (own % width).tolist(), value.flatten()[own].tolist(), strict=True)
        entries.append({"to_layer": edges.layer, "values": [list(triple) for triple in triples]})
        start += value.numel()
    return {"edges": entries, "edges_share": float(shown.values.sum()) / whole if whole else 1.0}


def unit_document(unit: Unit) -> dict[str, Any]:
    """What a document says of a unit."""
    plain = {name: getattr(unit, name) for name in unit.__slots__}
    return {**plain, "index": list(unit.index), "receptive_field": list(unit.receptive_field)}


def _tensors(explanation: Explanation, document: dict[str, Any]) -> bytes:
    """The numbers behind the pictures, never smoothed, as safetensors:

    `attribution`, `weight`  as one input, in the dtype of the run
    `bias`                   () float64
    `path_map`               (H, W) float64: `Explanation.path_map()`, where the input is an image
    `layer_map`              (H, W) float64, where it was drawn (`heat = "layers"`)
    and for every layer n of the path, with its K kept units in the order of path.json:
    `units.n`                (K, dimensions) int64: indices, filled with -1 where a layer mixes maps and vectors
    `tensors.n`              (K,) int64: which of the layer's tensors, as listed in the metadata, each unit belongs to
    `weights.n`              (K,) float64

    The metadata is one entry `pathx` of JSON (several entries would be written in random order, and two runs would
    differ): schema, image, region, model, target, depth, width, alpha, skips, importance, layers (each with its
    tensors, and for each of those the centre and step of its places, down and across, or null).
    """
    tensors = {
        "attribution": explanation.attribution.detach().cpu().contiguous(),
        "weight": explanation.weight.detach().cpu().clone(memory_format=torch.contiguous_format),
        "bias": torch.tensor(explanation.bias, dtype=torch.float64),
    }
    if explanation.attribution.dim() == 3:
        tensors["path_map"] = explanation.path_map()
    if explanation.layer_map is not None:
        tensors["layer_map"] = explanation.layer_map
    for layer in explanation.path:
        order = {tensor.name: position for position, tensor in enumerate(layer.tensors)}
        dimensions = max(len(tensor.shape) for tensor in layer.tensors)
        rows = [[*unit.index, *[-1] * (dimensions - len(unit.index))] for unit in layer.units]
        tensors[f"units.{layer.layer}"] = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), dimensions)
        tensors[f"tensors.{layer.layer}"] = torch.tensor([order[unit.tensor] for unit in layer.units])
        tensors[f"weights.{layer.layer}"] = torch.tensor([unit.weight for unit in layer.units], dtype=torch.float64)
    about = {"schema": TENSORS_SCHEMA} | {
        key: document[key] for key in ("image", "region", "model", "target", *SETTINGS)
    }
    about["layers"] = [
        {**{key: listed[key] for key in ("layer", "tensors")}, "places": [tensor.places for tensor in layer.tensors]}
        for layer, listed in zip(explanation.path, document["layers"], strict=True)
    ]
    return safetensors_bytes(tensors, metadata={"pathx": json.dumps(about, allow_nan=False)})
