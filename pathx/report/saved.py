"""The page of an explanation: from its files alone, or from an explanation at hand; and what the network adds to it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pathx.drawing.render import SMOOTHING, glow_map, pixel_map
from pathx.drawing.view import Region, View
from pathx.engine.ablate import part_removals
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.units import unit_maps
from pathx.errors import PathxError
from pathx.explanation import Explanation, LayerTensor, Unit
from pathx.images.read import UserImage
from pathx.maps import smooth
from pathx.regular import read_regular
from pathx.report.collect import Collected, ExplanationFiles
from pathx.report.explanation import NetworkData, channel_of, explanation_data
from pathx.report.page import Report, encode_png, encode_small, page, read_picture
from pathx.results.documents import ResultSubject, path_document
from pathx.results.files import FILES, PATH, REPORT_DATA, document_bytes, read_document, replace_file, understood
from pathx.results.saved import Photo
from pathx.results.schema import misfit, shape_of

_SHEET_SIDE, _FEATURE_SIDE = 1100, 340

MOST_UNITS = 40
"""Units whose own map a page holds."""

_MAP_SIDE = 112

NetworkDataOf = Callable[[ExplanationFiles], NetworkData | None]


def write_network_data(found: ExplanationFiles, data: NetworkData) -> None:
    """Write what the network adds to an explanation's page as report.json beside its path.json."""
    document = {"schema": "pathx/report@1", "path": _hash(found.folder), **data}
    replace_file(found.folder / REPORT_DATA, document_bytes(document))


def _read_network_data(found: ExplanationFiles) -> NetworkData | None:
    """What report.json says; None where it is missing, damaged, or of another path.json."""
    document = _beside(found.folder / REPORT_DATA, [], dict)
    same = misfit(document, shape_of("report")) is None and document["path"] == _hash(found.folder)
    return document if same else None


def _hash(folder: Path) -> str:
    return hashlib.sha256(read_regular(folder / PATH)).hexdigest()


def explanation_page(
    found: ExplanationFiles,
    beside: Collected,
    photo: Photo,
    around: dict[str, str | None] | None = None,
    others: Sequence[tuple[str, str]] = (),
) -> tuple[str, tuple[str, ...]]:
    """The page of a saved explanation, and notes on what it could not show. What is wrong with the files is a PathxError.

    Args:
        beside: what else there is, such as verdicts that may be about it.
        photo: as `find_photo` gives it.
        around: addresses of the `index`, the `previous` and the `next` page.
        others: labels and addresses of the other classes of the image.
    """
    document, folder = found.document, found.folder
    with understood(folder / PATH):
        opened, problem = photo
        notes = [*found.notes, *([problem] if problem else [])]
        more = {
            "features": _beside(folder / "decomposition.json", notes, partial(_features, folder)),
            "contrasts": _beside(folder.parent / "contrast.json", notes, partial(_contrasts, folder.parent, document))
            or [],
            "check": _check(document, beside.checks),
            "references": beside.references.of(channels_of(document), document["model"]["sha256"]),
            "names": beside.names(folder, document["model"]["sha256"]),
        }
        data = explanation_data(
            document,
            None if opened is None else opened.pixels,
            _read_network_data(found),
            notes,
            read_picture(folder / FILES["heatmap"]),
            around=around,
            others=others,
            **more,
        )
        return page("explanation.js", f"{data['whole']['label']}: {document['image']['file']}", data), tuple(notes)


def channels_of(document: dict[str, Any]) -> list[tuple[str, int]]:
    """The channels of a path, those first that carry most of their layer."""
    found: dict[tuple[str, int], float] = {}
    for layer in document["layers"]:
        tensors = {tensor["name"]: LayerTensor.read(tensor) for tensor in layer["tensors"]}
        whole = sum(abs(unit["contribution"]) for unit in layer["units"]) or 1.0
        for unit in layer["units"]:
            key = unit["tensor"], channel_of(tensors[unit["tensor"]], unit)
            found[key] = found.get(key, 0.0) + abs(unit["contribution"]) / whole
    return sorted(found, key=lambda key: -found[key])


def _beside(file: Path, notes: list[str], read: Callable[[dict[str, Any]], Any]) -> Any:
    """What a document beside an explanation adds to its page; None where there is none, and a note where it is damaged."""
    if not file.is_file():
        return None
    try:
        return read(read_document(file))
    except (PathxError, KeyError, TypeError) as error:
        notes.append(f"{file.name} cannot be shown ({error})")
        return None


def _features(folder: Path, document: dict[str, Any]) -> dict[str, Any]:
    """The features of a decomposition, with the picture of those that are drawn, and their units and channels."""
    units = {unit["unit"]: [unit["tensor"], unit["index"], unit["contribution"]] for unit in document["units"]}
    items = [
        {
            **{key: entry[key] for key in ("feature", "contribution", "share", "channels")},
            "drawn": entry["folder"] is not None,
            "picture": _small(folder / str(entry["folder"]) / FILES["overlay"], _FEATURE_SIDE),
            "units": [units[number] for number in entry["units"]],
        }
        for entry in document["features"]
    ]
    return {"layer": document["layer"], "items": items}


def _contrasts(folder: Path, own: dict[str, Any], document: dict[str, Any]) -> list[dict[str, Any]]:
    """The contrast of an image's classes, if the explained one is among them."""
    labels = {target["index"]: target["label"] for target in document["targets"]}
    if own["target"]["index"] not in labels or own["image"]["sha256"] != document["image"]["sha256"]:
        return []
    pairs = [
        {
            "label": f"{labels[pair['first']]} minus {labels[pair['second']]}",
            **{key: pair[key] for key in ("logit", "score", "overlap")},
        }
        for pair in document["pairs"]
    ]
    picture = _small(folder / "contrast.png", _SHEET_SIDE)
    return [{"reason": document.get("reason"), "labels": list(labels.values()), "pairs": pairs, "src": picture}]


def _small(file: Path, side: int) -> str | None:
    """A small copy of a picture; None where there is none."""
    picture = read_picture(file)
    return None if picture is None else encode_small(picture, side)


def _check(document: dict[str, Any], checks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The verdict of a check of this model on this image, where there is one."""
    for check in checks:
        try:
            name = str(check["image"])
            same = Path(name).name == Path(document["image"]["file"]).name
            if not same or check["model"].get("sha256", document["model"]["sha256"]) != document["model"]["sha256"]:
                continue
            findings = [
                {"name": name, "passed": one["passed"], "verdict": one["verdict"]}
                for name, one in check["checks"].items()
            ]
            return {"passed": check["passed"], "findings": findings}
        except (KeyError, TypeError, AttributeError):
            continue
    return None


def network_data(frozen: Frozen, explanation: Explanation, image: int = 0) -> NetworkData:
    """What the network adds to the page of an explanation.

    Args:
        frozen: the network at a batch of images.
        image: the image of the batch that the explanation is about.
    """
    units = _strongest(explanation)
    if not units:  # a network that ends in zeros keeps none
        return {"unit_maps": {}, "effects": []}
    maps = unit_maps(frozen, [(image, unit.tensor, unit.index) for unit in units.values()])
    gates = {gate.name: gate for layer in frozen.network.layers for gate in layer}
    encoded = {}
    for (name, unit), values in zip(units.items(), maps, strict=True):
        slopes = frozen.slopes(gates[unit.tensor]).given  # None stands for 1: a kept unit of a ReLU is active
        slope = 1.0 if slopes is None else float(slopes[(image, *unit.index)])
        encoded[name] = encode_png(unit_picture(unit.weight * slope * values))
    return {"unit_maps": encoded, "effects": [asdict(part) for part in part_removals(frozen, explanation, image)]}


def unit_picture(values: Tensor) -> Image.Image:
    """What a unit got from every pixel (C, H, W), smoothed as overlays are, and small."""
    smoothed = smooth(values, SMOOTHING)
    return glow_map(torch.nn.functional.avg_pool2d(smoothed[None], math.ceil(max(smoothed.shape) / _MAP_SIDE))[0])


def _strongest(explanation: Explanation) -> dict[str, Unit]:
    """The units that contribute most: of every layer as many, up to a limit in all."""
    each = max(1, MOST_UNITS // max(1, len(explanation.path)))
    found: dict[str, Unit] = {}
    for layer in explanation.path[:MOST_UNITS]:
        order = sorted(range(len(layer.units)), key=lambda at: -abs(layer.units[at].contribution))
        found |= {f"{layer.layer}:{at}": layer.units[at] for at in order[:each]}
    return found


def explanation_report(
    explanation: Explanation,
    photo: Image.Image | None = None,
    region: Region | None = None,
    *,
    label: str | None = None,
    name: str = "the image",
) -> Report:
    """The interactive page of an explanation.

    Args:
        photo, region, label: as for `Explanation.figure`.
        name: what the page calls the image.
    """
    view = View.of(explanation, photo, region, explanation.label if label is None else label)
    origin, classes = explanation.origin, explanation.logits.numel()
    about = {"name": "the model" if origin is None else type(origin.model).__name__, "weights": "none", "sha256": ""}
    labels = [f"class {index}" for index in range(classes)]
    labels[explanation.target] = view.label
    if explanation.against is not None:
        labels[explanation.against] = explanation.other_label
    device = str(explanation.attribution.device)
    subject = ResultSubject(UserImage(name, "", view.photo), view.region, {**about, "classes": classes}, labels, device)
    document = path_document(explanation, subject)
    network = None if origin is None else network_data(freeze(origin.model, origin.image[None]), explanation)
    data = explanation_data(document, view.photo, network, pixels=pixel_map(explanation.attribution))
    return Report(page("explanation.js", f"{data['whole']['label']}: {name}", data))
