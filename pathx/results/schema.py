"""What the documents of explanations hold: files in a folder of results may have been damaged, or made by somebody else."""

from __future__ import annotations

import math
from typing import Any

PATH_SCHEMA = "pathx/path@1"

_NUMBER = (int, float)
_UNIT = {"tensor": str, "index": [int], "receptive_field": [int]}
_UNIT |= dict.fromkeys(("activation", "weight", "contribution", "importance"), _NUMBER)
PATH_SHAPE = {
    "image": {"file": str, "sha256": str, "width": int, "height": int},
    "model": {"name": str, "weights": str, "sha256": str, "classes": int, "hidden_layers": int, "exact": str},
    "target": {"index": int, "label": str, "logit": _NUMBER, "probability": _NUMBER, "rank": int},
    "depth": int,
    "width": (int, str),
    "alpha": _NUMBER,
    "skips": str,
    "importance": str,
    "layers": [{"layer": int, "tensors": [{"name": str, "shape": [int]}], "units": [_UNIT]}],
    "linear_model": {"score": _NUMBER, "bias": _NUMBER},
    "created_by": {"dtype": str},
    "files": dict,
}
"""What a path.json holds at least: types by name, and a list of one type for lists of any length."""

_EFFECT = {"before": _NUMBER, "after": _NUMBER, "at_random": (*_NUMBER, type(None))}
_REMOVAL = {**dict.fromkeys(("units", "of_active", "draws", "random_units"), int), **_EFFECT}

_MADE = {"folder": str, "files?": [str], "document?": str, "sha256?": str, "pack?": str, "at?": [int]}
LINE_SHAPE = {
    **dict.fromkeys(("command", "run", "name", "file"), str),
    **{"error?": str, "version?": str, "label?": (str, type(None))},
    "explanations?": [_MADE],
    "contrast?": _MADE,
    "top?": [{"label": str, "probability": _NUMBER}],
}
"""What a line of an index holds; with a question mark what may be missing."""

RUN_SHAPE = {
    **{"command?": str, "run?": str, "model?": dict, "settings?": dict, "preprocessing?": dict},
    "images?": [str],
    "finished?": bool,
}
"""What a run.json holds."""

_LARGEST = 2**63


def path_misfit(document: dict[str, Any]) -> str | None:
    """What of a path.json is not as it should be, sizes included that no network has and no memory would hold."""
    wrong = misfit(document, PATH_SHAPE)
    if wrong is None and not 0 < document["model"]["classes"] <= _MOST_CLASSES:
        wrong = "the number of classes is out of range"
    removal = document.get("removal")
    if wrong is None and removal is not None:
        wrong = misfit(removal, _REMOVAL, "removal")
        if wrong is None and removal.get("against") is not None:
            wrong = misfit(removal["against"], _EFFECT, "against")
    for tensor in (tensor for layer in document["layers"] for tensor in layer["tensors"]) if wrong is None else ():
        shape = tensor["shape"]
        if not all(size > 0 for size in shape) or math.prod(shape) > _MOST_UNITS or max(shape[1:], default=0) > _SIDE:
            return "a tensor's shape is out of range"
    for layer in document["layers"] if wrong is None else ():
        shapes = {tensor["name"]: tensor["shape"] for tensor in layer["tensors"]}
        for unit in layer["units"]:
            shape = shapes.get(unit["tensor"], [])
            if len(unit["index"]) != len(shape) or not all(
                0 <= i < n for i, n in zip(unit["index"], shape, strict=True)
            ):
                return "a unit is none of its layer's"
    return wrong


_MOST_CLASSES, _MOST_UNITS, _SIDE = 1 << 24, 1 << 28, 1 << 16


def misfit(value: Any, shape: Any, place: str = "the document") -> str | None:
    """What of a document is not as its shape says; None where everything is."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{place} is no object"
        for key, inner in shape.items():
            name = key.removesuffix("?")
            if name not in value:
                if name == key:
                    return f"{place} has no {name}"
            elif (wrong := misfit(value[name], inner, name)) is not None:
                return wrong
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is no list"
        return next((wrong for one in value if (wrong := misfit(one, shape[0], place)) is not None), None)
    if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
        return f"{place} is of another type"
    if isinstance(value, (int, float)) and not (-_LARGEST < value < _LARGEST or _is_large(value)):
        return f"{place} is out of range"
    return None


def _is_large(value: float) -> bool:
    """Whether this is a number that a network may have come to; sizes and indices are never as large."""
    return isinstance(value, float) and math.isfinite(value)
