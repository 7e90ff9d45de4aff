"""Pages of measurements: evaluations, grids, and what the images of a class have in common."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path, PurePath
from typing import Any

from pathx.errors import PathxError
from pathx.images.read import open_image
from pathx.regular import read_regular
from pathx.report.encoding import encode_small, read_picture
from pathx.report.page import page
from pathx.report.references import References
from pathx.results.files import understood

_MOST_THUMBNAILS, _THUMBNAIL, _PLOT = 200, 88, 1100
_LARGEST = 1 << 30  # bytes of a table that are read
_MEASURES = ("insertion", "deletion")
_NAMES = {"evaluation": "How good the explanations are", "grid": "Depths and widths", "common": "What classes share"}


def measure_title(file: Path) -> str:
    """What the page of a measurement is called."""
    return f"{_NAMES.get(file.stem, file.stem)}: {file.parent.name}"


def measure_page(file: Path, document: dict[str, Any], references: References) -> str:
    """The page of an evaluation.json, a grid.json or a common.json with its figures image by image.

    Raises PathxError.

    Args:
        references: what is known of the channels of networks.
    """
    with understood(file):
        rows = _rows(file.with_name("images.csv"))
        data = {
            "kind": file.stem,
            "title": _NAMES.get(file.stem, file.stem),
            "folder": str(file.parent),
            "document": document,
            "rows": rows,
            "plots": [encode_small(one, _PLOT) for one in map(read_picture, _plots(file)) if one],
            "thumbnails": _thumbnails(row["image"] for row in rows),
            "references": references.of(_channels(document), document.get("model", {}).get("sha256", "")),
        }
        return page("measures.js", measure_title(file), data)


def _plots(file: Path) -> list[Path]:
    """What `pathx evaluate` drew of the figures."""
    names = {"evaluation": ["curves.png"], "grid": ["grid.png"]}
    return [file.with_name(name) for name in names.get(file.stem, ())]


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
