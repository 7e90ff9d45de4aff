"""An explanation's page from its files alone; no network is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from pathx.errors import PathxError, shown
from pathx.images.read import open_image
from pathx.maps import plane
from pathx.report.collect import Collected, ExplanationFiles
from pathx.report.earlier import MOST_PAGES, earlier
from pathx.report.encoding import read_heatmap, small
from pathx.report.explanation import Growth, PageContent, Region, explanation_data, whole
from pathx.report.page import page
from pathx.results.files import read_document, understood
from pathx.results.saved import check_feature, read_explanation

_FEATURE_SIDE, _SHEET_SIDE, _MOST_FEATURES = 260, 1100, 12
_MOST_PIXELS = 1 << 26  # of a network's input, where only the fields of units tell

GrowthOf = Callable[[ExplanationFiles], Growth | None]


@dataclass(frozen=True, eq=False)
class Photo:
    """A photo as it is today, or why it cannot be shown."""

    image: Image.Image | None
    problem: str = ""

    @staticmethod
    def of(found: ExplanationFiles) -> Photo:
        """The photo that a document names, where it is still the same: as it is named, or from a folder above the results."""
        about = found.document["image"]
        problem = f"the photo {shown(about['file'])} is not where it was; the page is without it"
        for place in (Path(), *found.folder.resolve().parents):
            try:
                opened = open_image(place / about["file"])
            except (PathxError, ValueError):
                continue
            if opened.sha256 == about["sha256"]:
                return Photo(opened.pixels)
            problem = f"the photo {shown(about['file'])} has changed since; the page is without it"
        return Photo(None, problem)


def explanation_page(
    found: ExplanationFiles,
    *,
    beside: Collected | None = None,
    growth: GrowthOf = lambda found: None,
    photo: Photo | None = None,
    around: dict[str, str | None] | None = None,
    others: Sequence[tuple[str, str]] = (),
) -> tuple[str, tuple[str, ...]]:
    """The page of a saved explanation, and what it could not show. What is wrong with the files is a PathxError.

    Args:
        beside: what else there is, such as verdicts that may be about it.
        growth: what the network adds, where it is at hand.
        photo: where it was opened already.
        around: addresses of the `index`, the `previous` and the `next` page.
        others: labels and addresses of the other classes of the image.
    """
    with understood(found.folder / "path.json"):
        content = _content(found, beside or Collected(), growth(found), photo or Photo.of(found))
        content = replace(content, around=around, more={**content.more, "others": [list(other) for other in others]})
        title = f"{whole(found.document)['label']}: {found.document['image']['file']}"
        data = explanation_data(content)
        return page("explanation.js", title, data), tuple(data["notes"])


def _content(found: ExplanationFiles, beside: Collected, growth: Growth | None, opened: Photo) -> PageContent:
    document, folder, notes = found.document, found.folder, list(found.notes)
    region = _region(document, folder)
    pixels = None if growth is None else growth.pixels.get((document["width"], document["depth"]))
    exact = True
    if pixels is None:
        try:
            saved = read_explanation(folder)
            pixels, region = plane(saved.explanation.attribution), saved.region
        except (PathxError, RuntimeError):
            heatmap = _picture(folder / "heatmap.png")
            pixels, exact = (None if heatmap is None else read_heatmap(heatmap)), False
            if pixels is None:
                notes.append("there is no pixel map: heatmap.png is missing or was not drawn by this version of pathx")
    notes += [opened.problem] if opened.problem else []
    size = _input_size(document) if pixels is None else (pixels.shape[1], pixels.shape[0])
    more = {
        "features": _features(folder, notes),
        "contrasts": _contrasts(folder, document, notes),
        "check": _check(document, beside.checks),
        "references": beside.references.of(_channels(document), document["model"]["sha256"]),
    }
    few = growth is None and len(beside.explanations) <= MOST_PAGES
    known = earlier(folder, document) if few else None
    return PageContent(document, size, opened.image, region, pixels, exact, growth, known, notes, None, more)


def _region(document: dict[str, Any], folder: Path) -> Region | None:
    for place in (document, *(_try(folder / name) for name in ("decomposition.json", "../contrast.json"))):
        found = place.get("region")
        if isinstance(found, list) and len(found) == 4:
            left, top, right, bottom = map(float, found)
            return left, top, right, bottom
    return None


def _try(file: Path) -> dict[str, Any]:
    try:
        return read_document(file) if file.is_file() else {}
    except PathxError:
        return {}


def _picture(file: Path) -> Image.Image | None:
    try:
        return open_image(file).pixels if file.is_file() else None
    except PathxError:
        return None


def _input_size(document: dict[str, Any]) -> tuple[int, int]:
    """What the fields of units reach."""
    fields = [unit["receptive_field"] for layer in document["layers"] for unit in layer["units"]]
    known = [field for field in fields if len(field) == 4]
    width, height = (max((field[side] for field in known), default=1) for side in (2, 3))
    if not 0 < width * height <= _MOST_PIXELS:
        raise ValueError("a receptive field is out of range")
    return width, height


def _channels(document: dict[str, Any]) -> list[tuple[str, int]]:
    """The channels of a path, those first that carry most of their layer."""
    found: dict[tuple[str, int], float] = {}
    for layer in document["layers"]:
        whole = sum(abs(unit["contribution"]) for unit in layer["units"]) or 1.0
        for unit in layer["units"]:
            key = unit["tensor"], unit["index"][0]
            found[key] = found.get(key, 0.0) + abs(unit["contribution"]) / whole
    return sorted(found, key=lambda key: -found[key])


def _features(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    file = folder / "decomposition.json"
    if not file.is_file():
        return None
    try:
        document = read_document(file)
        items = [
            {
                "feature": entry["feature"],
                "name": f"{entry['unit']['tensor']} [{','.join(map(str, entry['unit']['index']))}]",
                "score": entry["score"],
                "share": entry["share"],
                "src": _small(folder / check_feature(entry["folder"]) / "overlay.png", _FEATURE_SIDE),
            }
            for entry in document["features"][:_MOST_FEATURES]
        ]
        return {"layer": document["layer"], "reason": document["reason"], "items": items}
    except (PathxError, KeyError, TypeError) as error:
        notes.append(f"decomposition.json cannot be shown ({error})")
        return None


def _contrasts(folder: Path, document: dict[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    file = folder.parent / "contrast.json"
    if not file.is_file():
        return []
    try:
        made = read_document(file)
        labels = {target["index"]: target["label"] for target in made["targets"]}
        if document["target"]["index"] not in labels or made["image"]["sha256"] != document["image"]["sha256"]:
            return []
        pairs = [
            {
                "label": f"{labels[pair['first']]} minus {labels[pair['second']]}",
                **{key: pair[key] for key in ("logit", "score", "overlap")},
            }
            for pair in made["pairs"]
        ]
        picture = _small(folder.parent / "contrast.png", _SHEET_SIDE)
        return [{"reason": made.get("reason"), "labels": list(labels.values()), "pairs": pairs, "src": picture}]
    except (PathxError, KeyError, TypeError) as error:
        notes.append(f"contrast.json cannot be shown ({error})")
        return []


def _small(file: Path, side: int) -> str | None:
    image = _picture(file)
    return None if image is None else small(image, side)


def _check(document: dict[str, Any], checks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The verdict of a check of this model on this image, where there is one."""
    for check in checks:
        try:
            name = str(check.get("image", check.get("picture")))
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
