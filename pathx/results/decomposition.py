"""The files of a decomposition: a folder per feature that is drawn, the sheet, and decomposition.json."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from safetensors.torch import save as safetensors_bytes

from pathx.decomposition import ALIKE, Decomposition, Feature
from pathx.drawing.figure import decomposition_scale, decomposition_sheet, feature_heat
from pathx.drawing.page import Panel
from pathx.drawing.render import Drawing, png
from pathx.drawing.view import View
from pathx.maps import SPOT, no_place
from pathx.results.explanation import ResultSubject, explanation_files, unit_document
from pathx.results.files import DECOMPOSITION, FILES, PATH, SHEET, Kind, ResultFiles

SCHEMA = "pathx/decomposition@2"


@dataclass(frozen=True)
class ReferencePanels:
    """What units look for elsewhere, as further pictures: in the figure of the whole path, and in the sheet."""

    whole: tuple[Panel, ...] = ()
    sheet: tuple[Panel, ...] = ()


def decomposition_files(
    made: Decomposition, subject: ResultSubject, references: ReferencePanels | None = None
) -> ResultFiles:
    """The files of one decomposition: those of the whole explanation, in `feature-01`, … those of each feature that is drawn,
    and decomposition.json.

    Args:
        references: what its units look for elsewhere, where that is known.
    """
    known = references or ReferencePanels()
    whole = explanation_files(made.whole, subject, known.whole)
    document, path, contents = _document(made, subject), whole.document, whole.contents
    if subject.draw:
        contents |= decomposition_pictures(made, subject.view(made.whole, known.sheet), subject.drawing)
    if subject.save_tensors:
        contents |= {f"{name}/{FILES['tensors']}": _tensors(one) for name, one in _folders(made).items()}
    for entry in document["features"]:
        entry["files"] = {key: name for key, name in FILES.items() if f"{entry['folder']}/{name}" in contents}
    document["files"] = {**({"sheet": SHEET} if SHEET in contents else {}), "path": PATH, **path["files"]}
    return ResultFiles(Kind.decomposition, {PATH: path, DECOMPOSITION: document}, contents)


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


def feature_folders(document: dict[str, Any]) -> list[str]:
    """Where the features are, for people to read."""
    names = [f"{entry['folder']}/" for entry in document["features"] if entry["files"]]
    return [f"{names[0]} to {names[-1]}"] if len(names) > 1 else names


def _document(made: Decomposition, subject: ResultSubject) -> dict[str, Any]:
    """What decomposition.json says: schema `pathx/decomposition@2`."""
    whole = made.whole
    feature_of = {position: one.number for one in made.features for position in one.units}
    names = {one.number: name for name, one in _folders(made).items()}
    return subject.document(
        SCHEMA,
        whole,
        {"target": subject.target(whole, whole.target)},
        layer=made.layer,
        below_alpha=made.below_alpha,
        contribution=made.contribution,
        score=whole.score,
        features=[
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
        units=[
            {
                "unit": position + 1,
                "feature": feature_of[position],
                **unit_document(unit),
                "score": path.score,
                "bias": path.bias,
            }
            for position, (unit, path) in enumerate(zip(made.units, made.paths, strict=True))
        ],
        grouping={"alike": ALIKE, "linkage": "complete", "smoothing": SPOT},
        colour_scale=decomposition_scale(made, subject.drawing),
        files={},
    )


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
