"""The files of a decomposition: an explanation per feature, the sheet, and last decomposition.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pathx.decomposition import Decomposition, Feature, Group
from pathx.drawing.page import Panel
from pathx.drawing.png import png
from pathx.drawing.render import Drawing
from pathx.drawing.sheets import decomposition_scale, decomposition_sheet, group_heat
from pathx.drawing.view import View, heat_of, heat_scale, magnified
from pathx.errors import PathxError
from pathx.images.read import UserImage
from pathx.maps import SPOT, no_place
from pathx.results.explanation import (
    ModelInfo,
    check_finite,
    describe_the_same,
    drawn,
    drop_contrast,
    feature_files,
    made_by,
    put_explanation,
    remove_empty_features,
    subject,
    target_document,
    unit_document,
)
from pathx.results.files import DECOMPOSITION, FILES, PATH, SHEET, document_bytes, read_document, replacing

SCHEMA = "pathx/decomposition@1"


def decomposition_files(document: dict[str, Any]) -> list[str]:
    """The names of a decomposition's files, those of its features included, its document last."""
    own = document["files"]
    each = [name for key, name in own.items() if key != "sheet"]
    features = [f"{part['folder']}/{name}" for part in document["features"] for name in each]
    return [*own.values(), *features, DECOMPOSITION]


@dataclass(frozen=True)
class Scales:
    """What the strongest colours of a decomposition's heatmaps and overlays stand for.

    Where a part is magnified, that is by so many times less.
    """

    exact: float
    smoothed: float

    @staticmethod
    def of(made: Decomposition, drawing: Drawing) -> Scales:
        parts = [made.whole.attribution, *(feature.explanation.attribution for feature in made.features)]
        return Scales(heat_scale(parts, drawing), decomposition_scale(made, drawing))

    def over(self, factor: int) -> tuple[float, float]:
        """The two scales for a part that is magnified."""
        return self.exact / factor, self.smoothed / factor


@dataclass(frozen=True)
class FeatureReferences:
    """What units look for elsewhere, as further pictures: in the figure of the whole, in the sheet, in each feature's figure."""

    whole: tuple[Panel, ...] = ()
    sheet: tuple[Panel, ...] = ()
    features: tuple[tuple[Panel, ...], ...] = ()


def save_decomposition(
    made: Decomposition,
    folder: Path,
    *,
    image: UserImage,
    region: tuple[float, float, float, float],
    model: ModelInfo,
    label: str,
    device: str,
    save_tensors: bool = False,
    drawing: Drawing | None = None,
    draw: bool = True,
    references: FeatureReferences | None = None,
) -> dict[str, Any]:
    """Write the files of one decomposition and return what decomposition.json says.

    In `folder` the files of the whole explanation, in `feature-01`, … below it those of each feature, and last
    decomposition.json. Features of an older one are removed; files that are still true stay, as for an explanation.

    Args:
        draw: whether to make pictures.
        references: what its units look for elsewhere, where that is known.
    """
    drawing, known = drawing or Drawing(), references or FeatureReferences()
    about: dict[str, Any] = {"image": image, "region": region, "model": model, "label": label, "device": device}
    about |= {"save_tensors": save_tensors, "drawing": drawing, "draw": draw}
    scales = Scales.of(made, drawing)
    view = View(image.pixels, image.on_pixels(region), label, more=known.sheet)
    document = _document(made, scales, image, model, label, device, drawing)
    document["region"] = list(region)
    check_finite(document, image)
    names = [entry["folder"] for entry in document["features"]]
    with replacing(folder) as new:
        each = known.features or ((),) * len(made.features)
        parts = [("", made.whole, scales.over(1), known.whole)]
        parts += [
            (f"{entry['folder']}/", feature.explanation, scales.over(entry["magnified"]), more)
            for feature, entry, more in zip(made.features, document["features"], each, strict=True)
        ]
        there = _still_true(folder, document)
        put, gone = [], [DECOMPOSITION]
        for place, explanation, scale, more in parts:
            path, contents = drawn(explanation, scales=scale, more=more, **about)
            gone += put_explanation(new, place, path, contents)
            put.append(path)
        if draw:
            new.put(SHEET, png(decomposition_sheet(made, view, drawing)))
        elif SHEET not in there:
            gone.append(SHEET)
        files = {key: name for key, name in FILES.items() if all(key in path["files"] for path in put)}
        document["files"] = {**({"sheet": SHEET} if draw or SHEET in there else {}), "path": PATH, **files}
        new.put(DECOMPOSITION, document_bytes(document))
        gone += [name for name in feature_files(folder) if name.partition("/")[0] not in names]
        drop_contrast(folder.parent, put[0])
        new.commit(gone)
        remove_empty_features(folder)
    return document


def _still_true(folder: Path, document: dict[str, Any]) -> set[str]:
    """The sheet, where an older decomposition in a folder is the same as this one."""
    try:
        old = read_document(folder / DECOMPOSITION)
        same = describe_the_same(old, document) and all(old[key] == document[key] for key in ("layer", "grouping"))
        units = [[entry["unit"]["index"] for entry in one["features"]] for one in (old, document)]
    except (PathxError, KeyError, TypeError):
        return set()
    there = same and units[0] == units[1] and "sheet" in old.get("files", {}) and (folder / SHEET).is_file()
    return {SHEET} if there else set()


def feature_folders(document: dict[str, Any]) -> list[str]:
    """Where the features are, for people to read."""
    names = [f"{entry['folder']}/" for entry in document["features"]]
    return [f"{names[0]} to {names[-1]}"] if len(names) > 1 else names


def _document(
    made: Decomposition,
    scales: Scales,
    image: UserImage,
    model: ModelInfo,
    label: str,
    device: str,
    drawing: Drawing,
) -> dict[str, Any]:
    """What decomposition.json says: schema `pathx/decomposition@1`."""
    whole = made.whole
    group_of = {position: number for number, one in enumerate(made.groups, 1) for position in one.features}
    return {
        "schema": SCHEMA,
        **subject(whole, image, model),
        "target": target_document(whole, whole.target, label),
        "depth": whole.depth,
        "width": whole.width,
        "alpha": whole.alpha,
        "skips": whole.skips,
        "importance": whole.importance,
        "layer": made.layer,
        "reason": made.reason,
        "below_alpha": made.below_alpha,
        "whole": {
            "score": whole.score,
            "bias": whole.bias,
            "attribution_sum": float(whole.attribution.detach().cpu().double().sum()),
        },
        "features": [
            {
                "feature": position + 1,
                "folder": f"feature-{position + 1:02}",
                "group": group_of[position],
                **_feature_document(feature),
                "magnified": magnified(heat_of(feature.explanation, drawing), scales.smoothed, drawing),
            }
            for position, feature in enumerate(made.features)
        ],
        "overlap": [list(row) for row in made.overlap],
        "grouping": None if made.alike is None else {"alike": made.alike, "linkage": "complete", "smoothing": SPOT},
        "groups": [
            {
                "group": number,
                "features": [position + 1 for position in one.features],
                **_group_document(one),
                "magnified": magnified(group_heat(made, one, drawing), scales.smoothed, drawing),
            }
            for number, one in enumerate(made.groups, start=1)
        ],
        "others": asdict(made.others),
        "difference": asdict(made.difference),
        "colour_scale": scales.smoothed,
        "files": {},
        "created_by": made_by(whole, device),
    }


def _feature_document(feature: Feature) -> dict[str, Any]:
    return {
        "unit": unit_document(feature.unit),
        "importance": feature.unit.importance,
        "score": feature.score,
        "bias": feature.explanation.bias,
        "share": feature.share,
        **(feature.place.document() if feature.place else no_place()),
    }


def _group_document(group: Group) -> dict[str, Any]:
    return {
        "score": group.score,
        "share": group.share,
        **(group.place.document() if group.place else no_place()),
    }
