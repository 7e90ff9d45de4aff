"""The data of an explanation's page: from path.json, and from what else there is beside it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pathx.explanation import LayerTensor, PathLayer, Unit
from pathx.maps import Places, enlarged, laid
from pathx.report.earlier import Earlier
from pathx.report.encoding import embedded, signed_map
from pathx.report.page import VERSION

_MODEL = ("score", "bias", "attribution_sum")
Region = tuple[float, float, float, float]

MOST_UNITS = 1500
"""Units of a layer that a page lists, the most important; the others are one box, so that sums stay what they are."""

MAP_SIDE = 224
"""Maps are scaled down to this on their longer side."""


@dataclass(frozen=True, eq=False)
class Growth:
    """What the network adds to the files of an explanation: paths of other widths and depths, and maps of units.

    Args:
        documents: what path.json would say of the deepest path of each width, the narrowest first.
        models: by (width, depth), the linear model as path.json has it.
        pixels: by (width, depth), the attribution summed over channels.
        units: by (layer, position), the map of a kept unit of the path itself; with the unit's share of the bias it sums
            to the unit's contribution.
    """

    documents: Sequence[dict[str, Any]]
    models: dict[tuple[int | str, int], dict[str, float]]
    pixels: dict[tuple[int | str, int], Tensor]
    units: dict[tuple[int, int], Tensor]


@dataclass(frozen=True, eq=False)
class PageContent:
    """An explanation to make a page of.

    Args:
        document: what path.json says.
        size: (width, height) of the network's input.
        photo: None where it is gone.
        region: what the network saw of the photo, where that is known.
        pixels: the pixel map, (H, W).
        exact: whether the pixel map is in the units of the logit, rather than in steps of its strongest colour.
        notes: what a reader must know of the page.
        earlier: what an earlier page holds of what the network adds.
        around: addresses of the `index`, the `previous` and the `next` page.
        more: what else there is: `features`, `contrasts`, `check`, `references`, `others`.
    """

    document: dict[str, Any]
    size: tuple[int, int]
    photo: Image.Image | None = None
    region: Region | None = None
    pixels: Tensor | None = None
    exact: bool = True
    growth: Growth | None = None
    earlier: Earlier | None = None
    notes: Sequence[str] = ()
    around: dict[str, str | None] | None = None
    more: dict[str, Any] = field(default_factory=dict)


def explanation_data(content: PageContent) -> dict[str, Any]:
    """What the page of an explanation holds."""
    document = content.document
    shown, region = None, content.region
    if content.photo is not None:
        address, scale = embedded(content.photo)
        wide, high = (max(1, round(side * scale)) for side in content.photo.size)
        shown = {"src": address, "width": wide, "height": high}
        region = None if region is None else tuple(side * scale for side in region)  # type: ignore[assignment]
    known, notes = content.earlier, list(content.notes)
    if not any("edges" in layer for layer in document["layers"]):
        notes.append("path.json has no edges, so the flow has no ribbons: explain again with this version of pathx")
    if shown is not None and region is None:
        notes.append("the results do not say which part of the photo the network saw, so it is not shown")
        shown = None
    return {
        "kind": "explanation",
        "version": VERSION,
        "image": document["image"],
        "model": document["model"],
        "target": document["target"],
        "against": document.get("against"),
        "whole": whole(document),
        "alpha": document["alpha"],
        "skips": document["skips"],
        "own": {"depth": document["depth"], "width": document["width"]},
        "command": command(document),
        "created_by": f"pathx {document.get('created_by', {}).get('pathx', '')}".strip(),
        "notes": notes,
        "photo": shown,
        "region": region,
        "input": list(content.size),
        "paths": _paths(content) if known is None else known.paths,
        "unit_maps": _unit_maps(content) if known is None else known.unit_maps,
        "features": content.more.get("features"),
        "contrasts": content.more.get("contrasts", []),
        "check": content.more.get("check"),
        "references": content.more.get("references", {}),
        "others": content.more.get("others", []),
        "around": content.around,
    }


def whole(document: dict[str, Any]) -> dict[str, Any]:
    """What a path explains, in words, and how much there is of it: a class's logit, or the difference of two."""
    target, other = document["target"], document.get("against")
    if other is None:
        return {"label": target["label"], "logit": target["logit"], "name": "the logit"}
    label = f"{target['label']} and not {other['label']}"
    return {"label": label, "logit": target["logit"] - other["logit"], "name": "the difference of the logits"}


def command(document: dict[str, Any]) -> str:
    """The command that makes an explanation again, as far as its document tells."""
    model, image = document["model"], document["image"]["file"]
    words = ["pathx", "explain", image, "--model", model["name"]]
    if model["weights"] not in ("bundled", "none", "DEFAULT", ""):
        words += ["--weights", model["weights"]]
    words += ["--target", str(document["target"]["index"])]
    if document.get("against"):
        words += ["--against", str(document["against"]["index"])]
    for name in ("depth", "width", "alpha", "skips"):
        words += [f"--{name}", str(document[name])]
    return shlex.join(word.encode("utf-8", "replace").decode() for word in words)


def _paths(content: PageContent) -> list[dict[str, Any]]:
    """Every path that the page can show, the explanation's own among them."""
    document, growth = content.document, content.growth
    own = _path(document, content.size)
    own["models"][document["depth"]] = {key: document["linear_model"][key] for key in _MODEL}
    if content.pixels is not None:
        drawn = signed_map(_at_most(content.pixels, MAP_SIDE), scale=_strongest(content.pixels))
        own["pixels"][document["depth"]] = {**drawn, "exact": content.exact}
    if growth is None:
        return [own]
    paths = [_path(one, content.size) for one in growth.documents]
    for path in paths:
        for (width, depth), model in growth.models.items():
            if width == path["width"]:
                path["models"][depth] = model
        for (width, depth), pixels in growth.pixels.items():
            if width == path["width"]:
                path["pixels"][depth] = signed_map(_at_most(pixels, MAP_SIDE // 4))
        if path["width"] == own["width"]:
            path["models"] |= own["models"]
            path["pixels"] |= own["pixels"]
    return paths


def _path(document: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    layers = document["layers"]
    return {
        "width": document["width"],
        "layers": [_layer(layer) for layer in layers],
        "edges": [edge for layer in layers for edge in _edges(layer, layer is layers[0])],
        "models": {},
        "pixels": {},
        "places": [_place_map(layer, size) for layer in layers],
    }


def _layer(layer: dict[str, Any]) -> dict[str, Any]:
    names = {tensor["name"]: number for number, tensor in enumerate(layer["tensors"])}
    return {
        "layer": layer["layer"],
        "below_alpha": layer["below_alpha"],
        "tensors": [{"name": tensor["name"], "shape": tensor["shape"]} for tensor in layer["tensors"]],
        "edges_share": layer.get("edges_share"),
        "units": [{**unit, "tensor": names[unit["tensor"]]} for unit in layer["units"][:MOST_UNITS]],
        "kept": len(layer["units"]),
        "unlisted": math.fsum(unit["contribution"] for unit in layer["units"][MOST_UNITS:]),
    }


def _edges(layer: dict[str, Any], top: bool) -> list[list[Any]]:
    """[layer, from, layer above or None, to, value] each. What the top layer sends to the class is known in any case."""
    number = layer["layer"]
    if "edges" not in layer:
        units = layer["units"][:MOST_UNITS] if top else []
        return [[number, at, None, 0, unit["contribution"]] for at, unit in enumerate(units)]
    return [
        [number, at, entry["to_layer"], to, value]
        for entry in layer["edges"]
        for at, to, value in entry["values"]
        if at < MOST_UNITS and to < MOST_UNITS
    ]


def _place_map(layer: dict[str, Any], size: tuple[int, int]) -> dict[str, Any] | None:
    """The layer's part of the path map; None where its units have no place."""
    tensors = tuple(
        LayerTensor(tensor["name"], tuple(tensor["shape"]), _places(tensor, size)) for tensor in layer["tensors"]
    )
    if not any(tensor.places for tensor in tensors):
        return None
    kept = PathLayer(layer["layer"], layer["below_alpha"], tensors, tuple(map(_unit, layer["units"])))
    return signed_map(_at_most(enlarged(laid(kept), (size[1], size[0])), MAP_SIDE // 2))


def _places(tensor: dict[str, Any], size: tuple[int, int]) -> Places | None:
    """Where the units of a feature map look: as the document says, or spread evenly, as in results that do not say it."""
    if "places" in tensor:
        found = tensor["places"]
        return None if found is None else (tuple(found[0]), tuple(found[1]))
    if len(tensor["shape"]) != 3:
        return None
    down, across = (length / count for length, count in zip((size[1], size[0]), tensor["shape"][1:], strict=True))
    return (down / 2, down), (across / 2, across)


def _unit(entry: dict[str, Any]) -> Unit:
    known: dict[str, Any] = {name: tuple(entry[name]) for name in ("index", "receptive_field")}
    known |= {name: entry[name] for name in ("tensor", "activation", "weight", "contribution", "importance")}
    return Unit(**known)


def _unit_maps(content: PageContent) -> dict[str, dict[str, Any]]:
    if content.growth is None:
        return {}
    return {
        f"{layer}:{position}": signed_map(_at_most(values, MAP_SIDE // 2))
        for (layer, position), values in content.growth.units.items()
    }


def _strongest(values: Tensor) -> float:
    """What the strongest step of a map stands for: all but the few strongest values, so that the others keep theirs."""
    sizes = values.detach().abs().flatten().double()
    return float(sizes.sort().values[int(0.998 * (len(sizes) - 1))]) or float(sizes.max()) or 1.0


def _at_most(values: Tensor, side: int) -> Tensor:
    """A map of at most this many pixels on its longer side, each the sum of those it stands for."""
    height, width = values.shape
    times = max(height, width) / side
    if times <= 1:
        return values
    size = (max(1, round(height / times)), max(1, round(width / times)))
    means = torch.nn.functional.adaptive_avg_pool2d(values.detach().cpu().double()[None], size)[0]
    return means * (height * width / (size[0] * size[1]))
