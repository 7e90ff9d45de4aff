"""Pages of measurements (evaluations, grids, what classes share), and the atlas of what a network's channels look for."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from pathx.errors import PathxError
from pathx.images.read import open_image
from pathx.regular import read_regular
from pathx.report.collect import References
from pathx.report.page import encode_small, page, read_picture
from pathx.results.schema import channel_key, read_names, understood

_MOST_THUMBNAILS, _THUMBNAIL, _PLOT = 200, 88, 1100
_LARGEST = 1 << 30  # bytes of a table that are read
_MEASURES = ("insertion", "deletion")
_NAMES = {
    "evaluation": "How good the explanations are",
    "grid": "Depths and widths",
    "common": "What classes share",
    "units": "What channels look for",
}

_PLOTS = {"evaluation": "curves.png", "grid": "grid.png"}

PICTURED = 24
"""Channels of an activation that have pictures, the strongest; the others are listed."""

Shown = Mapping[str, Sequence[tuple[str, str]]]
"""By channel, file and address of the explanations whose path it is on."""


def page_title(file: Path) -> str:
    """What the page of a document is called."""
    return f"{_NAMES.get(file.stem, file.stem)}: {file.parent.name}"


def measure_page(file: Path, document: dict[str, Any], references: References) -> str:
    """The page of an evaluation.json, a grid.json or a common.json with its figures image by image.

    Raises PathxError.

    Args:
        references: what is known of the channels of networks.
    """
    with understood(file):
        rows = _rows(file.with_name("images.csv"))
        plot = read_picture(file.with_name(_PLOTS[file.stem])) if file.stem in _PLOTS else None
        data = {
            "kind": file.stem,
            "title": _NAMES.get(file.stem, file.stem),
            "folder": str(file.parent),
            "document": document,
            "rows": rows,
            "plots": [] if plot is None else [encode_small(plot, _PLOT)],
            "thumbnails": _thumbnails(row["image"] for row in rows),
            "references": references.of(_channels(document), document.get("model", {}).get("sha256", "")),
        }
        return page("measures.js", page_title(file), data)


def _channels(document: dict[str, Any]) -> list[tuple[str, int]]:
    """The channels that most images of a class share, those first."""
    shares = [
        (unit["share"], unit["tensor"], unit["index"][0])
        for one in document.get("classes", ())
        for layer in one["layers"]
        for unit in layer["units"]
    ]
    return [(tensor, channel) for _, tensor, channel in sorted(shares, key=lambda one: -one[0])]


def _rows(file: Path) -> list[dict[str, Any]]:
    """images.csv, with numbers where there are any."""
    if not file.is_file():
        return []
    try:
        text = read_regular(file, _LARGEST).decode("utf-8", "surrogateescape")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, csv.Error):
        return []
    kept = ("image", "label", "predicted", "method")
    return [
        {**{key: row.get(key) or "" for key in kept}, **{key: _number(row.get(key)) for key in _MEASURES}}
        for row in rows
    ]


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _thumbnails(names: Iterable[str]) -> dict[str, str]:
    made: dict[str, str] = {}
    for name in names:
        if len(made) >= _MOST_THUMBNAILS:
            break
        # Names of images are paths from the current folder; pictures of anything else are not asked for.
        if name not in made and not PurePath(name).anchor and ".." not in PurePath(name).parts:
            try:
                made[name] = encode_small(open_image(name).pixels, _THUMBNAIL)
            except (PathxError, ValueError):
                continue
    return made


def atlas_page(file: Path, document: dict[str, Any], references: References, shown: Shown | None = None) -> str:
    """The page of a units.json. Raises PathxError.

    Args:
        shown: explanations that a gallery has a page for.
    """
    with understood(file):
        model = document["model"]
        data = {
            "title": page_title(file),
            "model": {key: model[key] for key in ("name", "sha256")},
            "images": document["images"],
            "by": document["settings"]["by"],
            "names": read_names([file.parent, *file.resolve().parent.parents], model["sha256"]),
            "layers": [
                {"layer": layer["layer"], "tensors": [_tensor(one, references, model) for one in layer["tensors"]]}
                for layer in document["layers"]
            ],
            "shown": shown or {},
        }
        return page("atlas.js", page_title(file), data)


def _tensor(tensor: dict[str, Any], references: References, model: dict[str, Any]) -> dict[str, Any]:
    """An activation, its channels by what they carried in all."""
    used = [one for one in tensor["channels"] if one["references"]]
    used.sort(key=lambda one: -one["paths"]["images"] * one["paths"]["share"])
    pictured = [(tensor["name"], one["channel"]) for one in used[:PICTURED]]
    known = references.of(pictured, model["sha256"], PICTURED)
    channels = []
    for one in used:
        crops = known.get(channel_key(tensor["name"], one["channel"]), {}).get("crops", [])
        about = {key: one[key] for key in ("channel", "words", "paths")}
        channels.append({**about, "specificity": specificity(one), "crops": crops, "files": _files(one)})
    return {"name": tensor["name"], "channels": channels}


def specificity(channel: dict[str, Any]) -> float | None:
    """1 where all references of a channel are of one class, 0 where each is of another; None for a single one."""
    count = len(channel["references"])
    return 1 - float(channel["entropy"]) / math.log2(count) if count > 1 else None


def _files(channel: dict[str, Any]) -> list[str]:
    return list(dict.fromkeys(str(one["file"]) for one in channel["references"]))
