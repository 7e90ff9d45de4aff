"""The page of an explanation: from its files alone, or from an explanation at hand; and what the network adds to it."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pathx.drawing.figure import Region, View, used_ends
from pathx.drawing.render import SMOOTHING, Drawing, Overlay, colour_bar, glow_map, pixel_map
from pathx.drawing.words import LINE, removal_line
from pathx.engine.ablate import part_removals
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.units import unit_maps
from pathx.errors import PathxError
from pathx.explanation import Explanation, LayerTensor, Unit
from pathx.images.read import UserImage
from pathx.maps import smooth
from pathx.regular import read_regular
from pathx.report.collect import Collected, ExplanationFiles, input_size, path_map
from pathx.report.page import PHOTO_SIDE, Report, encode_photo, encode_png, encode_small, page, read_picture
from pathx.results.documents import ResultSubject, path_document
from pathx.results.files import FILES, PATH, REPORT_DATA, SETTINGS, replace_file
from pathx.results.saved import Photo, read_removal
from pathx.results.schema import document_bytes, misfit, read_document, shape_of, understood

NetworkData = dict[str, Any]
"""What the network adds to a page, as report.json has it.

`unit_maps`: by `layer:position` what a unit's contribution is made of, as a picture to lay on the photo.
`effects`: what parts of the path do, as the frozen network predicts it and as removing them alone from the real one measures it.
"""

MOST_UNITS = 1500
"""Units of a layer that a page lists, the most important; the others are one box, so that sums stay what they are."""


def explanation_data(
    document: dict[str, Any],
    photo: Image.Image | None,
    network: NetworkData | None = None,
    notes: Sequence[str] = (),
    pixels: Image.Image | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What the page of an explanation holds.

    Args:
        document: what path.json says.
        photo: None where it is gone.
        network: what the network adds, where it was at hand.
        notes: what a reader must know of the page.
        pixels: heatmap.png, where it is known.
        more: what else there is: `features`, `contrasts`, `check`, `references`, `names`, labels and addresses of `others`, and
            `around`, the addresses of the `index`, the `previous` and the `next` page.
    """
    shown, (height, width) = None, input_size(document)
    left, top, right, bottom = document["region"]
    if photo is not None:
        shown = encode_photo(photo)
        across, down = shown["width"] / photo.width, shown["height"] / photo.height
        left, top, right, bottom = left * across, top * down, right * across, bottom * down
    return {
        **{key: document[key] for key in ("image", "model", "target")},
        "proof": proof(document),
        "whole": whole(document),
        "settings": {key: document[key] for key in SETTINGS},
        "command": command(document),
        "created_by": f"pathx {document.get('created_by', {}).get('pathx', '')}".strip(),
        "notes": list(notes),
        "photo": shown,
        "region": [left, top, right, bottom],
        "input": [width, height],
        "maps": _maps(document, photo, pixels),
        "path": _path(document),
        "unit_maps": {} if network is None else network["unit_maps"],
        "effects": [] if network is None else network["effects"],
        **{
            "features": None,
            "contrasts": [],
            "check": None,
            "references": {},
            "names": {},
            "others": [],
            "around": None,
        },
        **more,
    }


def whole(document: dict[str, Any]) -> dict[str, Any]:
    """What a path explains, in words, and how much there is of it: a class's logit, or the difference of two."""
    target, other = document["target"], document.get("against")
    if other is None:
        return {"label": target["label"], "logit": target["logit"], "name": "the logit"}
    label = f"{target['label']} and not {other['label']}"
    return {"label": label, "logit": target["logit"] - other["logit"], "name": "the difference of the logits"}


def proof(document: dict[str, Any]) -> str | None:
    """What becomes of the class without the path, as the screen and figure.png say it; None where nobody asked."""
    removal, other = read_removal(document.get("removal")), document.get("against") or {"label": ""}
    return None if removal is None else removal_line(removal, document["target"]["label"], other["label"])


def command(document: dict[str, Any]) -> str:
    """The command that makes an explanation again, as far as its document tells."""
    model, image = document["model"], document["image"]["file"]
    words = ["pathx", "explain", image, "--model", model["name"]]
    if model["weights"] not in ("bundled", "none", "DEFAULT", ""):
        words += ["--weights", model["weights"]]
    words += ["--target", str(document["target"]["index"])]
    if document.get("against"):
        words += ["--against", str(document["against"]["index"])]
    for name in SETTINGS:
        words += [f"--{name}", str(document[name])]
    return shlex.join(word.encode("utf-8", "replace").decode() for word in words)


def _path(document: dict[str, Any]) -> dict[str, Any]:
    """The path and its linear model."""
    layers = document["layers"]
    return {
        "layers": [_layer(layer) for layer in layers],
        "edges": [edge for layer in layers for edge in _edges(layer)],
        "model": {key: document["linear_model"][key] for key in ("score", "bias", "attribution_sum")},
    }


def _layer(layer: dict[str, Any]) -> dict[str, Any]:
    names = {tensor["name"]: number for number, tensor in enumerate(layer["tensors"])}
    tensors = {tensor["name"]: LayerTensor.read(tensor) for tensor in layer["tensors"]}
    return {
        "layer": layer["layer"],
        "below_alpha": layer["below_alpha"],
        "tensors": [{key: tensor[key] for key in ("name", "shape")} for tensor in layer["tensors"]],
        "edges_share": layer.get("edges_share"),
        "units": [
            {
                **unit,
                "tensor": names[unit["tensor"]],
                "channel": channel_of(tensors[unit["tensor"]], unit),
                "centre": _centre(tensors[unit["tensor"]], unit["index"]),
            }
            for unit in layer["units"][:MOST_UNITS]
        ],
        "kept": len(layer["units"]),
        "unlisted": math.fsum(unit["contribution"] for unit in layer["units"][MOST_UNITS:]),
    }


def channel_of(tensor: LayerTensor, unit: dict[str, Any]) -> int:
    """The channel of a unit as a document has it."""
    return int(unit["index"][tensor.channel_dim])


def _centre(tensor: LayerTensor, index: Sequence[int]) -> tuple[float, float] | None:
    """What a unit looks at in the middle, (x, y) in pixels of the network's input; None where it has no place."""
    position = None if tensor.places is None else tensor.position(index)
    if tensor.places is None or position is None:
        return None
    (top, down), (left, across) = tensor.places
    return left + across * position[1], top + down * position[0]


def _edges(layer: dict[str, Any]) -> list[list[Any]]:
    """[layer, from, layer above or None, to, value] each."""
    return [
        [layer["layer"], at, entry["to_layer"], to, value]
        for entry in layer["edges"]
        for at, to, value in entry["values"]
        if at < MOST_UNITS and to < MOST_UNITS
    ]


def path_overlay(document: dict[str, Any], values: Tensor, photo: Image.Image | None) -> Overlay:
    """The path map on the photo; on grey where that is gone."""
    height, width = values.shape
    grey = View(Image.new("RGB", (width, height), "#999"), (0, 0, width, height))
    return (grey if photo is None else View(photo, tuple(document["region"]))).draw(values, Drawing())


def _maps(document: dict[str, Any], photo: Image.Image | None, pixels: Image.Image | None) -> list[dict[str, Any]]:
    """The pictures that a page lays on the photo: the path map covers it, the pixel map what the network saw of it."""
    maps, values = [], path_map(document)
    if values is not None:
        ends = used_ends([values])
        against = ", blue counts against it" if ends[0] < 0 else ""
        legend = f"The path map: gold supports the class{against}; {LINE}."
        picture = encode_small(path_overlay(document, values, photo).full, PHOTO_SIDE)
        maps.append({"name": "Path map", "whole": True, "src": picture, "bar": _bar(ends), "legend": legend})
    if pixels is not None:
        legend = "The pixel map, exact values: red supports the class, blue counts against it."
        picture = encode_png(pixels.convert("P", palette=Image.Palette.ADAPTIVE))
        maps.append({"name": "Pixel map", "whole": False, "src": picture, "bar": _bar(exact=True), "legend": legend})
    return maps


def _bar(ends: tuple[float, float] = (-1.0, 1.0), *, exact: bool = False) -> str:
    return encode_png(colour_bar(90, 9, Drawing().colours, exact=exact, ends=ends))


_SHEET_SIDE, _FEATURE_SIDE = 1100, 340

MOST_MAPS = 40
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
    each = max(1, MOST_MAPS // max(1, len(explanation.path)))
    found: dict[str, Unit] = {}
    for layer in explanation.path[:MOST_MAPS]:
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
