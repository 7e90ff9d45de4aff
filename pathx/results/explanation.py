"""The files of one explanation: three pictures, on request the tensors, and last path.json, which says all is there."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as safetensors_bytes

from pathx.drawing.figure import explanation_figure
from pathx.drawing.page import Panel
from pathx.drawing.render import Drawing, png
from pathx.drawing.view import View, heat_of, pixel_map, unit_boxes
from pathx.errors import PathxError, shown
from pathx.images.read import UserImage
from pathx.results.files import (
    CONTRAST,
    CONTRAST_PICTURE,
    DECOMPOSITION,
    FILES,
    PATH,
    REPORT,
    REPORT_DATA,
    SHEET,
    Replacement,
    created_by,
    document_bytes,
    is_finite,
    read_document,
    replacing,
)
from pathx.results.schema import PATH_SCHEMA

if TYPE_CHECKING:
    from pathx.explanation import Explanation, PathLayer, Unit

SCHEMA = PATH_SCHEMA
TENSORS_SCHEMA = "pathx/tensors@1"
MOST_EDGES = 1000  # that path.json lists of a layer
SETTINGS = ("depth", "width", "alpha", "skips", "importance")
EARLIER = "an earlier version of the image"


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


def explanation_folder(out: str | Path, relative_image_path: str | Path, target_slug: str) -> Path:
    """`<out>/<relative path of the image>/<target slug>`, never outside of `out`.

    Args:
        relative_image_path: below the folder that the user named; of a path that is absolute or climbs (`..`), only the
            file's name is used.
    """
    relative = PurePath(relative_image_path)
    if relative.anchor or ".." in relative.parts:
        relative = PurePath(relative.name)
    for part in (relative.name, target_slug):
        if part in ("", ".", "..") or PurePath(part).name != part:
            raise PathxError(f"{shown(part)} cannot name a folder of results: give the image by its file name")
    return Path(out) / relative / target_slug


def save(
    explanation: Explanation, folder: Path, subject: ResultSubject, more: tuple[Panel, ...] = ()
) -> dict[str, Any]:
    """Write the files of one explanation and return what path.json says.

    Files are replaced whole, path.json last, so its presence means that the files beside it belong to it; if they cannot be
    written, what was there stays. Of an older explanation in that folder with the same settings, files that are still true
    stay as well; of any other nothing does, nor what rests on it: a decomposition, a contrast.

    Args:
        more: further pictures for the figure.
    """
    document, contents = draw_files(explanation, subject, more)
    with replacing(folder) as new:
        gone = put_explanation(new, document, contents)
        decomposition = _older(folder / DECOMPOSITION)
        if decomposition is None or not describe_the_same(decomposition, document):
            gone = [DECOMPOSITION, SHEET, *feature_files(folder), *gone]
        if explanation.against is None:
            drop_contrast(folder.parent, document)
        new.commit(gone)
        remove_empty_features(folder)
    return document


def draw_files(
    explanation: Explanation, subject: ResultSubject, more: tuple[Panel, ...] = ()
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What path.json is to say, but for `files`, and the files that are to lie beside it."""
    document = path_document(explanation, subject)
    contents = pictures(explanation, subject.view(explanation, more), subject.drawing) if subject.draw else {}
    if subject.save_tensors:
        contents[FILES["tensors"]] = _tensors(explanation, document)
    return document, contents


def put_explanation(new: Replacement, document: dict[str, Any], contents: dict[str, bytes]) -> list[str]:
    """Put the files of one explanation, complete the document, and say which older files must go.

    Args:
        document, contents: as `draw_files` gives them.
    """
    there = _still_true(new.folder, document)
    document["files"] = {key: name for key, name in FILES.items() if name in contents or name in there}
    for name, data in contents.items():
        new.put(name, data)
    new.put(PATH, document_bytes(document))
    gone = [name for name in FILES.values() if name not in contents and name not in there]
    if there <= contents.keys():  # else the older path.json is needed until the end: it says that these files are true
        gone = [PATH, *gone]
    return [*gone, REPORT, REPORT_DATA]


def remove_others(folder: Path, explanation: Explanation, subject: ResultSubject) -> str:
    """How results were made that are to go, as an explanation takes their place.

    In its own folder those made in another way are replaced when it is saved. Those of other questions, which are other
    classes or pairs of classes, stay whatever their settings; they are removed here only if they are of another image, model
    or preprocessing, so that all that lies side by side is about the same thing.
    """
    found = []
    for place in sorted(folder.parent.iterdir()) if folder.parent.is_dir() else ():
        old = None if place.is_symlink() else _older(place / PATH)
        if old is None:
            continue
        differences = [] if place != folder else _other_settings(old, explanation)
        differences = differences or _other_subject(old, subject)
        if differences:
            found.append(", ".join(differences))
        if differences and place != folder:
            with replacing(place) as new:
                new.commit([DECOMPOSITION, SHEET, *feature_files(place), PATH, *FILES.values(), REPORT, REPORT_DATA])
                remove_empty_features(place)
            with suppress(OSError):  # where somebody else's files are in it
                place.rmdir()
    return found[0] if found else ""


def _other_settings(old: dict[str, Any], explanation: Explanation) -> list[str]:
    """The settings of an older explanation that are others now."""
    about = [f"{key} {old.get(key)}" for key in SETTINGS if old.get(key) != getattr(explanation, key)]
    dtype, before = str(explanation.attribution.dtype), old.get("created_by", {}).get("dtype")
    return about + ([f"dtype {before}"] if f"torch.{before}" != dtype else [])


def _other_subject(old: dict[str, Any], subject: ResultSubject) -> list[str]:
    """Whether an older explanation is of another model, of other pixels, or of other preprocessing."""
    other = old.get("model", {})
    if other.get("sha256") != subject.model["sha256"]:
        return [f"model {other.get('name')}"]
    if old["schema"] != SCHEMA:
        return []
    if old["image"]["sha256"] != subject.image.sha256:
        return [EARLIER]
    return [] if old.get("preprocessing") == subject.preprocessing else ["other preprocessing"]


def describe_the_same(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether two documents are about one class of one image, explained by one model in one way.

    Their numbers may differ in the last digits, which depend on what else was computed at the same time.
    """
    try:
        if any(old[key] != new[key] for key in SETTINGS) or old["image"]["sha256"] != new["image"]["sha256"]:
            return False
        if old["model"] != new["model"] or old["created_by"]["dtype"] != new["created_by"]["dtype"]:
            return False
        if "layers" in old and "layers" in new and _units(old) != _units(new):
            return False
        of = new["target"]
        targets = {target["index"]: target for target in old.get("targets", [old.get("target")])}
        same = targets[of["index"]]
        return bool(same["label"] == of["label"] and _alike(same["logit"], of["logit"]))
    except (KeyError, TypeError):
        return False


def _alike(logit: float, other: float) -> bool:
    """Whether two logits are the same but for the last digits."""
    return math.isclose(logit, other, rel_tol=1e-3, abs_tol=1e-5)


def _units(document: dict[str, Any]) -> list[list[tuple[str, list[int]]]]:
    return [[(unit["tensor"], unit["index"]) for unit in layer["units"]] for layer in document["layers"]]


def _older(file: Path) -> dict[str, Any] | None:
    """The document that is in a place where a new one is to be, if pathx can read it."""
    try:
        return read_document(file)
    except PathxError:
        return None


def _still_true(folder: Path, document: dict[str, Any]) -> set[str]:
    """Files beside an older path.json that go with the new one as well."""
    old = _older(folder / PATH)
    if old is None or not describe_the_same(old, document):
        return set()
    files = old.get("files")
    names = files.values() if isinstance(files, dict) else ()
    return {name for name in FILES.values() if name in names and (folder / name).is_file()}


def feature_files(folder: Path) -> list[str]:
    """The files of a decomposition's features, documents first."""
    return [f"{feature.name}/{name}" for feature in _features(folder) for name in (PATH, *FILES.values())]


def remove_empty_features(folder: Path) -> None:
    """Remove the folders of features that nothing is left in."""
    for feature in _features(folder):
        if not any(feature.iterdir()):
            feature.rmdir()


def _features(folder: Path) -> list[Path]:
    found = [one for one in folder.iterdir() if re.fullmatch(r"feature-\d\d+", one.name)]
    return sorted(one for one in found if one.is_dir() and not one.is_symlink())


def drop_contrast(folder: Path, document: dict[str, Any]) -> None:
    """Remove the contrast of an image's explanations, unless it is about this one of them."""
    contrast = _older(folder / CONTRAST)
    if contrast is not None and not describe_the_same(contrast, document):
        with replacing(folder) as new:
            new.commit([CONTRAST, CONTRAST_PICTURE])


def pictures(explanation: Explanation, view: View, drawing: Drawing) -> dict[str, bytes]:
    """figure.png, heatmap.png and overlay.png."""
    heat, pixels = heat_of(explanation, drawing), pixel_map(explanation.attribution, drawing)
    boxes = unit_boxes(explanation) if drawing.show_units else ()
    overlay = view.draw(heat, drawing, boxes=boxes)
    figure = explanation_figure(explanation, view, drawing, heat=heat, overlay=overlay, pixels=pixels)
    drawn = {"figure": figure, "heatmap": pixels.convert("RGB"), "overlay": overlay.full}
    return {FILES[name]: png(picture) for name, picture in drawn.items()}


def path_document(explanation: Explanation, subject: ResultSubject) -> dict[str, Any]:
    """What path.json says: schema `pathx/path@1`, every number finite."""
    attribution_sum = float(explanation.attribution.detach().cpu().double().sum())
    removal = None if explanation.removal is None else asdict(explanation.removal)
    about = {"target": subject.target(explanation, explanation.target)}
    if explanation.against is not None:
        about["against"] = subject.target(explanation, explanation.against)
    return subject.document(
        SCHEMA,
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
