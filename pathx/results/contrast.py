"""The files of a contrast: contrast.png and contrast.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathx.contrast import Contrast, Pair
from pathx.drawing.figure import contrast_sheet
from pathx.drawing.render import png
from pathx.maps import Place, no_place
from pathx.results.explanation import ResultSubject
from pathx.results.files import CONTRAST, CONTRAST_PICTURE, Kind, ResultFiles

SCHEMA = "pathx/contrast@1"


def contrast_files(
    contrast: Contrast, subject: ResultSubject, folders: Sequence[str], between: Sequence[str]
) -> ResultFiles:
    """The files of one contrast.

    Args:
        folders: where the explanation of each class is, beside contrast.json.
        between: where that of the first against each other is.
    """
    first, drawing = contrast.explanations[0], subject.drawing
    targets = [
        {
            **subject.target(explanation, explanation.target),
            "score": explanation.score,
            "bias": explanation.bias,
            "attribution_sum": float(explanation.attribution.detach().cpu().double().sum()),
            "folder": place,
        }
        for explanation, place in zip(contrast.explanations, folders, strict=True)
    ]
    document = subject.document(
        SCHEMA,
        first,
        {"reason": contrast.reason or None},
        targets=targets,
        pairs=[
            {"first": targets[0]["index"], "second": target["index"], **_pair_document(pair), "folder": place}
            for pair, target, place in zip(contrast.pairs, targets[1:], between, strict=True)
        ],
        colour_scale=contrast.scale(drawing),
        files={"contrast": CONTRAST_PICTURE} if subject.draw else {},
    )
    contents = {}
    if subject.draw:
        labels, probabilities = zip(*((target["label"], target["probability"]) for target in targets), strict=True)
        contents[CONTRAST_PICTURE] = png(contrast_sheet(contrast, subject.view(first), labels, probabilities, drawing))
    return ResultFiles(Kind.contrast, {CONTRAST: document}, contents)


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
