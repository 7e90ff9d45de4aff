"""The files of a decomposition: a folder per feature that is drawn, the sheet, and last decomposition.json."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as safetensors_bytes

from pathx.decomposition import ALIKE, Decomposition, Feature
from pathx.drawing.page import Panel
from pathx.drawing.png import png
from pathx.drawing.render import Drawing
from pathx.drawing.sheets import decomposition_scale, decomposition_sheet, feature_heat
from pathx.drawing.view import View
from pathx.errors import PathxError
from pathx.images.read import UserImage
from pathx.maps import SPOT, no_place
from pathx.results.explanation import (
    ModelInfo,
    check_finite,
    describe_the_same,
    draw_files,
    drop_contrast,
    feature_files,
    put_explanation,
    remove_empty_features,
    software_document,
    subject,
    target_document,
    unit_document,
)
from pathx.results.files import DECOMPOSITION, FILES, PATH, SHEET, document_bytes, read_document, replacing

SCHEMA = "pathx/decomposition@2"


def decomposition_files(document: dict[str, Any]) -> list[str]:
    """The names of a decomposition's files, those of its features included, its document last."""
    features = [
        f"{entry['folder']}/{name}"
        for entry in document["features"]
        if entry["folder"]
        for name in entry["files"].values()
    ]
    return [*document["files"].values(), *features, DECOMPOSITION]


@dataclass(frozen=True)
class ReferencePanels:
    """What units look for elsewhere, as further pictures: in the figure of the whole path, and in the sheet."""

    whole: tuple[Panel, ...] = ()
    sheet: tuple[Panel, ...] = ()


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
    references: ReferencePanels | None = None,
) -> dict[str, Any]:
    """Write the files of one decomposition and return what decomposition.json says.

    In `folder` the files of the whole explanation, in `feature-01`, … below it those of each feature that is drawn, and last
    decomposition.json. Features of an older one are removed; files that are still true stay, as for an explanation.

    Args:
        draw: whether to make pictures.
        references: what its units look for elsewhere, where that is known.
    """
    drawing, known = drawing or Drawing(), references or ReferencePanels()
    about: dict[str, Any] = {"image": image, "region": region, "model": model, "label": label, "device": device}
    about |= {"save_tensors": save_tensors, "drawing": drawing, "draw": draw}
    view = View(image.pixels, image.on_pixels(region), label, more=known.sheet)
    document = _document(made, image, model, label, device, drawing)
    document["region"] = list(region)
    check_finite(document, image)
    contents = decomposition_pictures(made, view, drawing) if draw else {}
    if save_tensors:
        contents |= {f"{name}/{FILES['tensors']}": _tensors(one) for name, one in _folders(made).items()}
    with replacing(folder) as new:
        there = _still_true(folder, document) - contents.keys()
        path, own = draw_files(made.whole, more=known.whole, **about)
        gone = [DECOMPOSITION, *put_explanation(new, "", path, own)]
        for name, data in contents.items():
            new.put(name, data)
        for entry in document["features"]:
            names = {key: f"{entry['folder']}/{name}" for key, name in FILES.items()}
            entry["files"] = {key: FILES[key] for key, name in names.items() if name in contents or name in there}
        sheet = {"sheet": SHEET} if SHEET in contents or SHEET in there else {}
        document["files"] = {**sheet, "path": PATH, **path["files"]}
        new.put(DECOMPOSITION, document_bytes(document))
        gone += [name for name in (SHEET, *feature_files(folder)) if name not in contents and name not in there]
        drop_contrast(folder.parent, path)
        new.commit(gone)
        remove_empty_features(folder)
    return document


def decomposition_pictures(made: Decomposition, view: View, drawing: Drawing) -> dict[str, bytes]:
    """The sheet, and of each feature that is drawn its overlay, in one colour scale."""
    tile, scale = view.tile(), decomposition_scale(made, drawing)
    pictures = {SHEET: decomposition_sheet(made, view, drawing)}
    for name, one in _folders(made).items():
        pictures[f"{name}/{FILES['overlay']}"] = tile.overlay(feature_heat(one, drawing), drawing, scale=scale)
    return {name: png(picture) for name, picture in pictures.items()}


def _folders(made: Decomposition) -> dict[str, Feature]:
    """The features that are drawn, by the names of their folders."""
    return {f"feature-{one.number:02}": one for one in made.drawn}


def _still_true(folder: Path, document: dict[str, Any]) -> set[str]:
    """The files of an older decomposition in a folder, its explanation's apart, where it is the same as this one."""
    try:
        old = read_document(folder / DECOMPOSITION)
        same = describe_the_same(old, document) and old["layer"] == document["layer"]
        features = [[(entry["folder"], entry["units"]) for entry in one["features"]] for one in (old, document)]
        units = [[(unit["tensor"], unit["index"]) for unit in one["units"]] for one in (old, document)]
        if not same or features[0] != features[1] or units[0] != units[1]:
            return set()
        own = set(old["files"].values()) - {PATH, *FILES.values()}
        names = own | {f"{entry['folder']}/{name}" for entry in old["features"] for name in entry["files"].values()}
    except (PathxError, KeyError, TypeError, AttributeError):
        return set()
    return {name for name in names & {SHEET, *feature_files(folder)} if (folder / name).is_file()}


def feature_folders(document: dict[str, Any]) -> list[str]:
    """Where the features are, for people to read."""
    names = [f"{entry['folder']}/" for entry in document["features"] if entry["files"]]
    return [f"{names[0]} to {names[-1]}"] if len(names) > 1 else names


def _document(
    made: Decomposition, image: UserImage, model: ModelInfo, label: str, device: str, drawing: Drawing
) -> dict[str, Any]:
    """What decomposition.json says: schema `pathx/decomposition@2`."""
    whole = made.whole
    feature_of = {position: one.number for one in made.features for position in one.units}
    names = {one.number: name for name, one in _folders(made).items()}
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
        "below_alpha": made.below_alpha,
        "contribution": made.contribution,
        "score": whole.score,
        "features": [
            {
                "feature": one.number,
                "folder": names.get(one.number),
                "contribution": one.contribution,
                "share": one.share,
                **(one.place.document() if one.place else no_place()),
                "units": [position + 1 for position in one.units],
                "channels": _channels(made, one),
                "files": {},
            }
            for one in made.features
        ],
        "units": [
            {
                "unit": position + 1,
                "feature": feature_of[position],
                **unit_document(unit),
                "score": path.score,
                "bias": path.bias,
            }
            for position, (unit, path) in enumerate(zip(made.units, made.paths, strict=True))
        ],
        "grouping": {"alike": ALIKE, "linkage": "complete", "smoothing": SPOT},
        "colour_scale": decomposition_scale(made, drawing),
        "files": {},
        "created_by": software_document(whole, device),
    }


def _channels(made: Decomposition, feature: Feature) -> list[dict[str, Any]]:
    """The channels that a feature's units belong to, with how many units and what they send, the strongest first."""
    return [
        {
            "tensor": tensor,
            "channel": channel,
            "units": len(units),
            "contribution": math.fsum(unit.contribution for unit in units),
        }
        for (tensor, channel), units in made.channels(feature).items()
    ]


def _tensors(feature: Feature) -> bytes:
    """`attribution`, as one input, and `path_map`, (H, W) in float64, where the input is an image."""
    tensors = {"attribution": feature.attribution.detach().cpu().contiguous()}
    if feature.path_map is not None:
        tensors["path_map"] = feature.path_map
    return safetensors_bytes(tensors)
