"""The files of one explanation: two pictures, on request the tensors, and last path.json, which says all is there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save as safetensors_bytes

import pathx
from pathx.errors import PathxError
from pathx.pictures import Picture, shown
from pathx.png import png
from pathx.render import Drawing
from pathx.sheets import View, heat

if TYPE_CHECKING:
    from pathx.explanation import Explanation, PathLayer, Unit

SCHEMA = "pathx/path@1"
TENSORS_SCHEMA = "pathx/tensors@1"
DOCUMENT = "path.json"
FILES = {"heatmap": "heatmap.png", "overlay": "overlay.png", "tensors": "tensors.safetensors"}


@dataclass(frozen=True)
class ModelInfo:
    """What path.json says of a model.

    Args:
        weights: where they came from: torchvision's name, a file, or `none`.
        sha256: of the weights.
        classes: how many.
    """

    name: str
    weights: str
    sha256: str
    classes: int


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
            raise PathxError(f"{shown(part)} cannot name a folder of results: give the picture by its file name")
    return Path(out) / relative / target_slug


def save(
    explanation: Explanation,
    folder: str | Path,
    *,
    picture: Picture,
    region: tuple[float, float, float, float],
    model: ModelInfo,
    label: str,
    device: str,
    save_tensors: bool = False,
    drawing: Drawing | None = None,
    draw: bool = True,
    scales: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Write the files of one explanation and return what path.json says.

    Files are replaced whole. An older path.json goes first and the new one comes last, so its presence means that the
    files beside it belong to it; after an error none of them is left.

    Args:
        region: (left, top, right, bottom) in pixels of the picture: what the network saw.
        device: what the explanation was computed on.
        draw: whether to make pictures.
        scales: what the strongest colours of heatmap and overlay stand for, where pictures are compared.
    """
    files = {key: name for key, name in FILES.items() if (save_tensors if key == "tensors" else draw)}
    document = path_document(explanation, picture=picture, model=model, label=label, device=device, files=files)
    view = View(picture.image, region, label)
    contents = pictures(explanation, view, drawing or Drawing(), scales) if draw else {}
    if save_tensors:
        contents[FILES["tensors"]] = _tensors(explanation, document, region)
    contents[DOCUMENT] = document_bytes(document)
    replace_all(Path(folder), contents, (DOCUMENT, *FILES.values()))
    return document


def pictures(
    explanation: Explanation, view: View, drawing: Drawing, scales: tuple[float, float] | None = None
) -> dict[str, bytes]:
    """heatmap.png and overlay.png; `scales` as for `save`."""
    exact, smoothed = scales or (None, None)
    return {
        FILES["heatmap"]: png(heat(explanation.attribution, drawing, scale=exact)),
        FILES["overlay"]: png(view.overlay(explanation, drawing, scale=smoothed)),
    }


def document_bytes(document: dict[str, Any]) -> bytes:
    """A document as its file has it."""
    return (json.dumps(document, indent=2, allow_nan=False) + "\n").encode()


def path_document(
    explanation: Explanation, *, picture: Picture, model: ModelInfo, label: str, device: str, files: dict[str, str]
) -> dict[str, Any]:
    """What path.json says: schema `pathx/path@1`, keys in its order, every number finite."""
    attribution_sum = float(explanation.attribution.detach().cpu().double().sum())
    document = {
        "schema": SCHEMA,
        **subject(explanation, picture, model),
        "target": target_document(explanation, label),
        "depth": explanation.depth,
        "width": explanation.width,
        "alpha": explanation.alpha,
        "skips": explanation.skips,
        "complete": explanation.complete,
        "layers": [_layer_document(layer) for layer in explanation.path],
        "linear_model": {
            "score": explanation.score,
            "bias": explanation.bias,
            "attribution_sum": attribution_sum,
            "residual": explanation.score - explanation.bias - attribution_sum,
        },
        "files": dict(files),
        "created_by": created_by(explanation, device),
    }
    check_finite(document, picture)
    return document


def subject(explanation: Explanation, picture: Picture, model: ModelInfo) -> dict[str, Any]:
    """What a document says of the image and the model."""
    return {
        "image": {
            "file": picture.file,
            "sha256": picture.sha256,
            "width": picture.width,
            "height": picture.height,
        },
        "model": {
            "name": model.name,
            "weights": model.weights,
            "sha256": model.sha256,
            "classes": model.classes,
            "hidden_layers": explanation.hidden_layers,
        },
    }


def target_document(explanation: Explanation, label: str) -> dict[str, Any]:
    """What a document says of an explained class."""
    logits = explanation.logits.detach().cpu().double().flatten()
    logit = logits[explanation.target]
    return {
        "index": explanation.target,
        "label": label,
        "logit": float(logit),
        "probability": explanation.probability,
        "rank": 1 + int((logits > logit).sum()),
    }


def created_by(explanation: Explanation, device: str) -> dict[str, str]:
    """What a document says of the software and the machine."""
    return {
        "pathx": pathx.__version__,
        "torch": str(torch.__version__),
        "torchvision": _version("torchvision"),
        "device": device,
        "dtype": str(explanation.attribution.dtype).removeprefix("torch."),
    }


_version = lru_cache(version)  # which looks through the installed packages every time


def check_finite(document: dict[str, Any], picture: Picture) -> None:
    """Refuse numbers that JSON does not have."""
    if not _finite(document):
        raise PathxError(
            f"{shown(picture.file)}: the explanation holds NaN or infinite numbers: try --dtype float64, check the weights"
        )


def _layer_document(layer: PathLayer) -> dict[str, Any]:
    return {
        "layer": layer.layer,
        "below_alpha": layer.below_alpha,
        "tensors": [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in layer.tensors],
        "units": [unit_document(unit) for unit in layer.units],
    }


def unit_document(unit: Unit) -> dict[str, Any]:
    """What a document says of a unit."""
    return {
        "tensor": unit.tensor,
        "index": list(unit.index),
        "activation": unit.activation,
        "weight": unit.weight,
        "contribution": unit.contribution,
        "importance": unit.importance,
        "receptive_field": list(unit.receptive_field),
    }


def _finite(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _tensors(explanation: Explanation, document: dict[str, Any], region: Sequence[float]) -> bytes:
    """The numbers behind the pictures, never smoothed, as safetensors:

    `attribution`, `weight`  as one input, in the dtype of the run
    `bias`                   () float64
    and for every layer n of the path, with its K kept units in the order of path.json:
    `units.n`                (K, dimensions) int64: indices, filled with -1 where a layer mixes maps and vectors
    `tensors.n`              (K,) int64: which of the layer's tensors, as listed in the metadata, each unit belongs to
    `weights.n`              (K,) float64

    The metadata is one entry `pathx` of JSON (several entries would be written in random order, and two runs would
    differ): schema, image, region, model, target, depth, width, alpha, skips, layers (each with its tensors).
    """
    tensors = {
        "attribution": explanation.attribution.detach().cpu().contiguous(),
        "weight": explanation.weight.detach().cpu().clone(memory_format=torch.contiguous_format),
        "bias": torch.tensor(explanation.bias, dtype=torch.float64),
    }
    for layer in explanation.path:
        order = {tensor.name: position for position, tensor in enumerate(layer.tensors)}
        dimensions = max(len(tensor.shape) for tensor in layer.tensors)
        rows = [[*unit.index, *[-1] * (dimensions - len(unit.index))] for unit in layer.units]
        tensors[f"units.{layer.layer}"] = torch.tensor(rows, dtype=torch.int64).reshape(len(rows), dimensions)
        tensors[f"tensors.{layer.layer}"] = torch.tensor([order[unit.tensor] for unit in layer.units])
        tensors[f"weights.{layer.layer}"] = torch.tensor([unit.weight for unit in layer.units], dtype=torch.float64)
    about = {"schema": TENSORS_SCHEMA, "image": document["image"], "region": list(region)}
    about |= {key: document[key] for key in ("model", "target", "depth", "width", "alpha", "skips")}
    about["layers"] = [{"layer": layer["layer"], "tensors": layer["tensors"]} for layer in document["layers"]]
    return safetensors_bytes(tensors, metadata={"pathx": json.dumps(about, allow_nan=False)})


def replace_all(folder: Path, contents: dict[str, bytes], known: Sequence[str]) -> None:
    """Write files whole: what was there of an earlier run goes first, and after an error nothing is left.

    Args:
        contents: the document last, which says by its presence that the others are there.
        known: names of all files that there may be, the document first.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            remove_all(folder, known)
            for name, data in contents.items():
                replace_file(folder / name, data)
        except BaseException:
            with suppress(OSError):
                remove_all(folder, known)
            raise
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(folder: Path, error: OSError) -> PathxError:
    """For results that cannot be written."""
    reason = error.strerror or str(error)
    return PathxError(f"cannot write results to {shown(folder)} ({reason}): choose another folder with --out")


def remove_all(folder: Path, known: Sequence[str]) -> None:
    """Remove files in that order, and what an earlier run left half-written of them when it was killed."""
    for name in known:
        (folder / name).unlink(missing_ok=True)
        _unfinished(folder / name).unlink(missing_ok=True)


def replace_file(file: Path, data: bytes) -> None:
    """Write a file so that at any time there is the old one or the new one."""
    with _unfinished(file).open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(_unfinished(file), file)


def _unfinished(file: Path) -> Path:
    return file.with_name(f".{file.name}.part")
