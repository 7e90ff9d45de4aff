"""The files of explanations, decompositions and contrasts: pictures, on request tensors, and the document that is written last."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePath
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from pathx.contrast import Contrast, Pair
from pathx.decomposition import ALIKE, Decomposition, Feature
from pathx.drawing.figure import (
    View,
    contrast_scale,
    contrast_sheet,
    decomposition_scale,
    decomposition_sheet,
    explanation_figure,
    feature_heat,
)
from pathx.drawing.page import Panel
from pathx.drawing.render import Drawing, pixel_map, png
from pathx.errors import PathxError, shown
from pathx.explanation import Explanation, PathLayer, Unit
from pathx.images.read import UserImage
from pathx.maps import SPOT, Place, no_place
from pathx.results.files import (
    CONTRAST,
    CONTRAST_PICTURE,
    DECOMPOSITION,
    FILES,
    PATH,
    SETTINGS,
    SHEET,
    Kind,
    ResultFiles,
)
from pathx.results.schema import PATH_SCHEMA, created_by, is_finite

TENSORS_SCHEMA = "pathx/tensors@1"
DECOMPOSITION_SCHEMA, CONTRAST_SCHEMA = "pathx/decomposition@2", "pathx/contrast@1"
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


# Decompositions


def decomposition_files(
    made: Decomposition, subject: ResultSubject, more: tuple[Panel, ...] = (), more_of_sheet: tuple[Panel, ...] = ()
) -> ResultFiles:
    """The files of one decomposition: those of the whole explanation, in `feature-01`, … those of each feature that is drawn,
    and decomposition.json.

    Args:
        more, more_of_sheet: further pictures for the figure of the whole path, and for the sheet.
    """
    whole = explanation_files(made.whole, subject, more)
    document, path, contents = _decomposition_document(made, subject), whole.document, whole.contents
    if subject.draw:
        contents |= decomposition_pictures(made, subject.view(made.whole, more_of_sheet), subject.drawing)
    if subject.save_tensors:
        contents |= {f"{name}/{FILES['tensors']}": _feature_tensors(one) for name, one in _folders(made).items()}
    for entry in document["features"]:
        entry["files"] = {key: name for key, name in FILES.items() if f"{entry['folder']}/{name}" in contents}
    document["files"] = {**({"sheet": SHEET} if SHEET in contents else {}), "path": PATH, **path["files"]}
    return ResultFiles(Kind.decomposition, {PATH: path, DECOMPOSITION: document}, contents)


def decomposition_pictures(made: Decomposition, view: View, drawing: Drawing) -> dict[str, bytes]:
    """The sheet, and of each feature that is drawn its overlay, in one colour scale."""
    tile, scale = view.tile(), decomposition_scale(made, drawing)
    pictures = {SHEET: decomposition_sheet(made, view, drawing)}
    for name, one in _folders(made).items():
        pictures[f"{name}/{FILES['overlay']}"] = tile.overlay(feature_heat(one, drawing), drawing, scale=scale)
    return {name: png(picture) for name, picture in pictures.items()}


def _folders(made: Decomposition) -> dict[str, Feature]:
    """The features that are drawn, by the names of their folders."""
    return {f"feature-{one.number:02}": one for one in made.drawn}


def feature_folders(document: dict[str, Any]) -> list[str]:
    """Where the features are, for people to read."""
    names = [f"{entry['folder']}/" for entry in document["features"] if entry["files"]]
    return [f"{names[0]} to {names[-1]}"] if len(names) > 1 else names


def _decomposition_document(made: Decomposition, subject: ResultSubject) -> dict[str, Any]:
    """What decomposition.json says: schema `pathx/decomposition@2`."""
    whole = made.whole
    feature_of = {position: one.number for one in made.features for position in one.units}
    names = {one.number: name for name, one in _folders(made).items()}
    return subject.document(
        DECOMPOSITION_SCHEMA,
        whole,
        {"target": subject.target(whole, whole.target)},
        layer=made.layer,
        below_alpha=made.below_alpha,
        contribution=made.contribution,
        score=whole.score,
        features=[
            {
                "feature": one.number,
                "folder": names.get(one.number),
                "contribution": one.contribution,
                "share": one.share,
                **(one.place.document() if one.place else no_place()),
                "units": [position + 1 for position in one.units],
                "channels": _channels(made, one),
                "files": {},
            }
            for one in made.features
        ],
        units=[
            {
                "unit": position + 1,
                "feature": feature_of[position],
                **unit_document(unit),
                "score": path.score,
                "bias": path.bias,
            }
            for position, (unit, path) in enumerate(zip(made.units, made.paths, strict=True))
        ],
        grouping={"alike": ALIKE, "linkage": "complete", "smoothing": SPOT},
        colour_scale=decomposition_scale(made, subject.drawing),
        files={},
    )


def _channels(made: Decomposition, feature: Feature) -> list[dict[str, Any]]:
    """The channels that a feature's units belong to, with how many units and what they send, the strongest first."""
    return [
        {
            "tensor": tensor,
            "channel": channel,
            "units": len(units),
            "contribution": math.fsum(unit.contribution for unit in units),
        }
        for (tensor, channel), units in made.channels(feature).items()
    ]


def _feature_tensors(feature: Feature) -> bytes:
    """`attribution`, as one input, and `path_map`, (H, W) in float64, where the input is an image."""
    tensors = {"attribution": feature.attribution.detach().cpu().contiguous()}
    if feature.path_map is not None:
        tensors["path_map"] = feature.path_map
    return safetensors_bytes(tensors)


# Contrasts


def contrast_files(
    contrast: Contrast, subject: ResultSubject, folders: Sequence[str], between: Sequence[str]
) -> ResultFiles:
    """The files of one contrast.

    Args:
        folders: where the explanation of each class is, beside contrast.json.
        between: where that of the first against each other is.
    """
    first, drawing = contrast.explanations[0], subject.drawing
    targets = [
        {
            **subject.target(explanation, explanation.target),
            "score": explanation.score,
            "bias": explanation.bias,
            "attribution_sum": float(explanation.attribution.detach().cpu().double().sum()),
            "folder": place,
        }
        for explanation, place in zip(contrast.explanations, folders, strict=True)
    ]
    document = subject.document(
        CONTRAST_SCHEMA,
        first,
        {"reason": contrast.reason or None},
        targets=targets,
        pairs=[
            {"first": targets[0]["index"], "second": target["index"], **_pair_document(pair), "folder": place}
            for pair, target, place in zip(contrast.pairs, targets[1:], between, strict=True)
        ],
        colour_scale=contrast_scale(contrast, drawing),
        files={"contrast": CONTRAST_PICTURE} if subject.draw else {},
    )
    contents = {}
    if subject.draw:
        labels, probabilities = zip(*((target["label"], target["probability"]) for target in targets), strict=True)
        contents[CONTRAST_PICTURE] = png(contrast_sheet(contrast, subject.view(first), labels, probabilities, drawing))
    return ResultFiles(Kind.contrast, {CONTRAST: document}, contents)


def _pair_document(pair: Pair) -> dict[str, Any]:
    return {
        "logit": pair.logit,
        "score": pair.difference.score,
        "share": pair.share,
        "bias": pair.difference.bias,
        "attribution_sum": float(pair.difference.attribution.detach().cpu().double().sum()),
        "overlap": pair.overlap,
        "for_first": _side(*pair.first),
        "for_second": _side(*pair.second),
        "shared_units": [{"layer": layer, "units": units} for layer, units in pair.shared_units.items()],
    }


def _side(amount: float, place: Place | None) -> dict[str, Any]:
    return {"sum": amount, **(place.document() if place else no_place())}
