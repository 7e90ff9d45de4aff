"""What the documents of explanations hold: files in a folder of results may have been damaged, or made by somebody else."""

from __future__ import annotations

from typing import Any

PATH_SCHEMA = "pathx/path@1"

_NUMBER = (int, float)
_UNIT = {"tensor": str, "index": [int], "receptive_field": [int]}
_UNIT |= dict.fromkeys(("activation", "weight", "contribution", "importance"), _NUMBER)
PATH_SHAPE = {
    "image": {"file": str, "sha256": str, "width": int, "height": int},
    "model": {"name": str, "weights": str, "sha256": str, "classes": int, "hidden_layers": int},
    "target": {"index": int, "label": str, "logit": _NUMBER, "probability": _NUMBER, "rank": int},
    "depth": int,
    "width": (int, str),
    "alpha": _NUMBER,
    "skips": str,
    "layers": [{"layer": int, "tensors": [{"name": str, "shape": [int]}], "units": [_UNIT]}],
    "linear_model": {"score": _NUMBER, "bias": _NUMBER},
    "files": dict,
}
"""What a path.json holds at least: types by name, and a list of one type for lists of any length."""


def misfit(value: Any, shape: Any, place: str = "the document") -> str | None:
    """What of a document is not as its shape says; None where everything is."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return f"{place} is no object"
        for key, inner in shape.items():
            if key not in value:
                return f"{place} has no {key}"
            if (wrong := misfit(value[key], inner, key)) is not None:
                return wrong
        return None
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{place} is no list"
        return next((wrong for one in value if (wrong := misfit(one, shape[0], place)) is not None), None)
    fits = isinstance(value, shape) and not isinstance(value, bool)
    return None if fits else f"{place} is of another type"
