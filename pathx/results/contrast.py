"""The files of a contrast: contrast.png, and last contrast.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pathx.contrast import Contrast, Pair
from pathx.drawing.png import png
from pathx.drawing.render import Drawing
from pathx.drawing.sheets import contrast_sheet
from pathx.drawing.view import View
from pathx.errors import PathxError
from pathx.images.read import UserImage
from pathx.maps import Place, no_place
from pathx.results.explanation import SETTINGS, ModelInfo, check_finite, software_document, subject, target_document
from pathx.results.files import CONTRAST, CONTRAST_PICTURE, document_bytes, read_document, replacing

SCHEMA = "pathx/contrast@1"


def save_contrast(
    contrast: Contrast,
    folder: Path,
    *,
    image: UserImage,
    region: tuple[float, float, float, float],
    model: ModelInfo,
    labels: Sequence[str],
    folders: Sequence[str],
    between: Sequence[str | None],
    device: str,
    drawing: Drawing | None = None,
    draw: bool = True,
) -> dict[str, Any]:
    """Write the files of one contrast and return what contrast.json says.

    Args:
        region: (left, top, right, bottom) in pixels of the image: what the network saw.
        labels: of the classes, and
        folders: where the explanation of each is, below `folder`.
        between: where that of the first against each other is; None where there is none.
        device: what the explanations were computed on.
        draw: whether to make the picture.
    """
    drawing = drawing or Drawing()
    document = contrast_document(
        contrast,
        image=image,
        model=model,
        labels=labels,
        folders=folders,
        between=between,
        device=device,
        drawing=drawing,
    )
    document["region"] = list(region)
    check_finite(document, image)
    with replacing(folder) as new:
        if draw:
            probabilities = [explanation.probability for explanation in contrast.explanations]
            view = View(image.pixels, image.on_pixels(region))
            new.put(CONTRAST_PICTURE, png(contrast_sheet(contrast, view, labels, probabilities, drawing)))
        elif not _still_true(folder, document):
            document["files"] = {}
        new.put(CONTRAST, document_bytes(document))
        new.commit([CONTRAST, *(() if document["files"] else (CONTRAST_PICTURE,))])
    return document


def _still_true(folder: Path, document: dict[str, Any]) -> bool:
    """Whether the picture of an older contrast goes with this one as well."""
    try:
        old = read_document(folder / CONTRAST)
    except PathxError:
        return False
    about = ("image", "model", "reason", *SETTINGS)
    same = all(old.get(key) == document[key] for key in about) and old.get("files") == document["files"]
    indices = [[target["index"] for target in one["targets"]] for one in (old, document)] if same else [[], [0]]
    return indices[0] == indices[1] and (folder / CONTRAST_PICTURE).is_file()


def contrast_document(
    contrast: Contrast,
    *,
    image: UserImage,
    model: ModelInfo,
    labels: Sequence[str],
    folders: Sequence[str],
    between: Sequence[str | None],
    device: str,
    drawing: Drawing,
) -> dict[str, Any]:
    """What contrast.json says: schema `pathx/contrast@1`."""
    first = contrast.explanations[0]
    targets = [
        {
            **target_document(explanation, explanation.target, label),
            "score": explanation.score,
            "bias": explanation.bias,
            "attribution_sum": float(explanation.attribution.detach().cpu().double().sum()),
            "folder": folder,
        }
        for explanation, label, folder in zip(contrast.explanations, labels, folders, strict=True)
    ]
    return {
        "schema": SCHEMA,
        **subject(first, image, model),
        "reason": contrast.reason or None,
        "depth": first.depth,
        "width": first.width,
        "alpha": first.alpha,
        "skips": first.skips,
        "importance": first.importance,
        "targets": targets,
        "pairs": [
            {"first": targets[0]["index"], "second": target["index"], **_pair_document(pair), "folder": place}
            for pair, target, place in zip(contrast.pairs, targets[1:], between, strict=True)
        ],
        "colour_scale": contrast.scale(drawing),
        "files": {"contrast": CONTRAST_PICTURE},
        "created_by": software_document(first, device),
    }


def _pair_document(pair: Pair) -> dict[str, Any]:
    return {
        "logit": pair.logit,
        "score": pair.score,
        "share": pair.share,
        "bias": pair.bias,
        "attribution_sum": float(pair.attribution.detach().cpu().double().sum()),
        "overlap": pair.overlap,
        "for_first": _side(*pair.first),
        "for_second": _side(*pair.second),
        "shared_units": [{"layer": layer, "units": units} for layer, units in pair.shared_units.items()],
    }


def _side(amount: float, place: Place | None) -> dict[str, Any]:
    return {"sum": amount, **(place.document() if place else no_place())}
