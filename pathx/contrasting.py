"""The files of a contrast: contrast.png, and last contrast.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pathx.contrast import Contrast, Pair
from pathx.pictures import Picture
from pathx.places import Place, no_place
from pathx.png import png
from pathx.render import Drawing
from pathx.results import (
    ModelInfo,
    check_finite,
    created_by,
    document_bytes,
    replace_all,
    subject,
    target_document,
)
from pathx.sheets import View, contrast_sheet

SCHEMA = "pathx/contrast@1"
DOCUMENT = "contrast.json"
PICTURE = "contrast.png"


@dataclass(frozen=True, eq=False)
class Contrasted:
    """A contrast whose files are written.

    Args:
        document: what its contrast.json says.
        folder: the picture's, above those of the classes.
    """

    marker: ClassVar[str] = DOCUMENT
    picture: Picture
    contrast: Contrast
    document: dict[str, Any]
    folder: Path

    @property
    def files(self) -> list[str]:
        return list(self.document["files"].values())


def save_contrast(
    contrast: Contrast,
    folder: Path,
    *,
    picture: Picture,
    region: tuple[float, float, float, float],
    model: ModelInfo,
    labels: Sequence[str],
    folders: Sequence[str],
    device: str,
    drawing: Drawing | None = None,
    draw: bool = True,
) -> dict[str, Any]:
    """Write the files of one contrast and return what contrast.json says.

    Args:
        region: (left, top, right, bottom) in pixels of the picture: what the network saw.
        labels: of the classes, and
        folders: where the explanation of each is, below `folder`.
        device: what the explanations were computed on.
        draw: whether to make the picture.
    """
    drawing = drawing or Drawing()
    document = contrast_document(
        contrast, picture=picture, model=model, labels=labels, folders=folders, device=device, drawing=drawing
    )
    document["region"] = list(region)
    check_finite(document, picture)
    contents = {}
    if draw:
        probabilities = [explanation.probability for explanation in contrast.explanations]
        contents[PICTURE] = png(contrast_sheet(contrast, View(picture.image, region), labels, probabilities, drawing))
    else:
        document["files"] = {}
    contents[DOCUMENT] = document_bytes(document)
    replace_all(folder, contents, (DOCUMENT, PICTURE))
    return document


def contrast_document(
    contrast: Contrast,
    *,
    picture: Picture,
    model: ModelInfo,
    labels: Sequence[str],
    folders: Sequence[str],
    device: str,
    drawing: Drawing,
) -> dict[str, Any]:
    """What contrast.json says: schema `pathx/contrast@1`."""
    first = contrast.explanations[0]
    targets = [
        {
            **target_document(explanation, label),
            "score": explanation.score,
            "bias": explanation.bias,
            "attribution_sum": float(explanation.attribution.detach().cpu().double().sum()),
            "folder": folder,
        }
        for explanation, label, folder in zip(contrast.explanations, labels, folders, strict=True)
    ]
    return {
        "schema": SCHEMA,
        **subject(first, picture, model),
        "reason": contrast.reason or None,
        "depth": first.depth,
        "width": first.width,
        "alpha": first.alpha,
        "skips": first.skips,
        "targets": targets,
        "pairs": [
            {"first": targets[0]["index"], "second": target["index"], **_pair_document(pair, targets[0], target)}
            for pair, target in zip(contrast.pairs, targets[1:], strict=True)
        ],
        "colour_scale": contrast.scale(drawing),
        "files": {"contrast": PICTURE},
        "created_by": created_by(first, device),
    }


def _pair_document(pair: Pair, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return {
        "logit": first["logit"] - second["logit"],
        "score": pair.score,
        "bias": pair.bias,
        "attribution_sum": first["attribution_sum"] - second["attribution_sum"],
        "overlap": pair.overlap,
        "for_first": _side(*pair.first),
        "for_second": _side(*pair.second),
        "shared_units": [{"layer": layer, "units": units} for layer, units in pair.shared_units.items()],
    }


def _side(amount: float, place: Place | None) -> dict[str, Any]:
    return {"sum": amount, **(place.document() if place else no_place())}
