"""The data of an explanation's page: from path.json, and from what else there is beside it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from pathx.drawing.render import SMOOTHING, Drawing, Overlay, colour_bar
from pathx.drawing.view import View, used_ends
from pathx.drawing.words import LINE, removal_line
from pathx.explanation import LayerTensor, PathLayer
from pathx.maps import contribution_grids, enlarge
from pathx.report.page import PHOTO_SIDE, encode_photo, encode_png, encode_small
from pathx.results.saved import read_removal

NetworkData = dict[str, Any]
"""What the network adds to a page, as report.json has it.

`unit_maps`: by `layer:position` what a unit's contribution is made of, as a picture to lay on the photo.
`effects`: what parts of the path do, as the frozen network predicts it and as removing them alone from the real one measures it.
"""

SETTINGS = ("depth", "width", "alpha", "skips", "importance")
_MOST_PIXELS = 1 << 26  # of a network's input

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


def input_size(document: dict[str, Any]) -> tuple[int, int]:
    """(height, width) of the network's input."""
    _, height, width = document["input"]
    if not 0 < height * width <= _MOST_PIXELS:
        raise ValueError("the size of the input is out of range")
    return height, width


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


def path_map(document: dict[str, Any]) -> Tensor | None:
    """The path map (H, W) as overlay.png shows it, from path.json; None where no unit has a place."""
    parts = [part for layer in document["layers"] for part in contribution_grids(PathLayer.read(layer))]
    return enlarge(parts, input_size(document), SMOOTHING) if parts else None


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
