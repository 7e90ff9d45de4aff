"""Pages of measurements: evaluations, grids, and what the images of a class have in common."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

from pathx.errors import PathxError
from pathx.images.read import open_image
from pathx.images.regular import read_regular
from pathx.report.encoding import small
from pathx.report.page import page
from pathx.report.references import References
from pathx.results.files import understood
from pathx.results.lines import JsonLines

_MOST_THUMBNAILS, _THUMBNAIL = 200, 88
_LARGEST = 1 << 30  # bytes of a table that are read
_MEASURES = ("insertion", "deletion")
_NAMES = {"evaluation": "How good the explanations are", "grid": "Depths and widths", "common": "What classes share"}


def measure_title(document: dict[str, Any], file: Path) -> str:
    """What the page of a measurement is called."""
    return f"{_NAMES.get(file.stem, file.stem)}: {file.parent.name}"


def measure_page(file: Path, document: dict[str, Any], references: References) -> str:
    """The page of an evaluation.json, a grid.json or a common.json, with the figures image by image beside it.

    Raises PathxError.

    Args:
        references: what is known of the channels of networks.
    """
    with understood(file):
        return _page(file, document, references)


def _page(file: Path, document: dict[str, Any], references: References) -> str:
    rows = _rows(file.with_name("pictures.csv"))
    title = measure_title(document, file)
    data = {
        "kind": file.stem,
        "title": _NAMES.get(file.stem, file.stem),
        "folder": str(file.parent),
        "document": document,
        "rows": rows,
        "curves": _curves(file.with_name("records.jsonl"), rows),
        "thumbnails": _thumbnails(row["picture"] for row in rows),
        "references": references.of(_channels(document), document.get("model", {}).get("sha256", "")),
    }
    return page("measures.js", title, data)


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
    """pictures.csv, with numbers where there are any."""
    if not file.is_file():
        return []
    try:
        text = read_regular(file, _LARGEST).decode("utf-8", "surrogateescape")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, csv.Error):
        return []
    kept = ("picture", "label", "predicted", "method")
    return [
        {**{key: row.get(key) or "" for key in kept}, **{key: _number(row.get(key)) for key in _MEASURES}}
        for row in rows
    ]


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        return None


def _curves(file: Path, rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each method the mean curve of both measures, and the band that holds the mean with 95 %.

    A record does not name its method; the areas under its two curves do, which pictures.csv has beside the name.
    """
    if not file.is_file():
        return {}
    methods = {_key(row["picture"], row["insertion"], row["deletion"]): row["method"] for row in rows}
    found: dict[str, dict[str, list[list[float]]]] = {}
    for record in JsonLines(file).read():
        try:
            areas = [_area(record[measure]) for measure in _MEASURES]
            method = methods.get(_key(record["picture"], *areas))
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            continue  # cut short, or without figures
        if method is not None:
            for measure in _MEASURES:
                found.setdefault(method, {}).setdefault(measure, []).append(record[measure])
    return {method: {m: _mean_curve(curves) for m, curves in both.items()} for method, both in found.items()}


def _key(image: str, insertion: float | None, deletion: float | None) -> tuple[str, str]:
    return image, f"{insertion or 0:.9f} {deletion or 0:.9f}"


def _area(curve: Sequence[float]) -> float:
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)


def _mean_curve(curves: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    steps = list(zip(*curves, strict=False))
    mean = [math.fsum(step) / len(step) for step in steps]
    error = [
        1.96 * math.sqrt(math.fsum((value - middle) ** 2 for value in step) / max(1, len(step) - 1) / len(step))
        for step, middle in zip(steps, mean, strict=True)
    ]
    return {
        "mean": mean,
        "low": [max(0.0, middle - width) for middle, width in zip(mean, error, strict=True)],  # of a probability
        "high": [min(1.0, middle + width) for middle, width in zip(mean, error, strict=True)],
    }


def _thumbnails(names: Iterable[str]) -> dict[str, str]:
    made: dict[str, str] = {}
    for name in names:
        if len(made) >= _MOST_THUMBNAILS:
            break
        # Names of images are paths from the current folder; pictures of anything else are not asked for.
        if name not in made and not PurePath(name).anchor and ".." not in PurePath(name).parts:
            try:
                made[name] = small(open_image(name).pixels, _THUMBNAIL)
            except (PathxError, ValueError):
                continue
    return made
