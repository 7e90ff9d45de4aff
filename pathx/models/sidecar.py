"""What a model file cannot say itself: the preprocessing and the labels, from a JSON file beside it or from the call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pathx.errors import PathxError, parse_json, reason_of
from pathx.models.labels import parse_labels
from pathx.models.preprocessing import Preprocessing, clipped, is_number
from pathx.regular import read_regular

EXAMPLE = '{"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "labels": ["cat", "dog"]}'
_EXAMPLES = {"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
_KEYS = ("input_size", "mean", "std", "labels", "resize", "interpolation")
_LARGEST = 1 << 26
"""Bytes of a sidecar that are read at most; labels of a million classes are smaller."""


def sidecar_beside(path: Path) -> dict[str, Any]:
    """The sidecar of model.pt: model.pt.json, or else model.json."""
    for sidecar in (path.with_name(path.name + ".json"), path.with_suffix(".json")):
        if os.path.isfile(sidecar) and sidecar != path:
            return read_sidecar_file(sidecar)
    return {}


def read_sidecar_file(sidecar: Path) -> dict[str, Any]:
    """What a sidecar says, checked."""
    try:
        text = read_regular(sidecar, _LARGEST).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PathxError(f"{sidecar} cannot be read ({reason_of(error)}): write it as {EXAMPLE}", usage=True) from error
    return read_sidecar(text, str(sidecar))


def read_sidecar(text: str, source: str) -> dict[str, Any]:
    """What the text of a sidecar says, checked; the source is named in errors."""
    if not text:
        return {}
    try:
        content = parse_json(text)
    except ValueError as error:
        raise PathxError(f"{source} is not valid JSON ({error}): write it as {EXAMPLE}", usage=True) from error
    if not isinstance(content, dict):
        raise PathxError(f"{source} must hold an object such as {EXAMPLE}", usage=True)
    for key in content:
        if key not in _KEYS and (near := get_close_matches(key[:40], _KEYS, n=1, cutoff=0.8)):
            raise PathxError(f"{source} has the unknown key {key!r}: did you mean {near[0]!r}?", usage=True)
    return check_values({key: content[key] for key in _KEYS if key in content}, source)


def check_values(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The values of a sidecar or of the call, with lists as tuples, after a look at their types."""
    found = dict(values)
    for key, example in _EXAMPLES.items():
        value = found.get(key)
        if key != "input_size" and is_number(value):
            found[key] = (value,)
        elif isinstance(value, Sequence) and value and all(map(is_number, value)):
            found[key] = tuple(value)
        elif key in found:
            wanted = f"a list of numbers such as {example}"
            raise PathxError(f"{key} in {source} must be {wanted}, not {clipped(value)}", usage=True)
    if "labels" in found:
        found["labels"] = parse_labels(found["labels"], source)
    return found


def complete(description: Mapping[str, Any], source: str, remedy: str) -> Preprocessing:
    """The preprocessing that a description gives, or an error that says what it lacks."""
    if lacking := [key for key in ("input_size", "mean", "std") if key not in description]:
        raise PathxError(f"{source} does not say its {', '.join(lacking)}: {remedy}", usage=True)
    try:
        return Preprocessing(**preprocessing_fields(description))
    except PathxError as error:
        raise PathxError(f"{source}: {error}", usage=True) from error


def preprocessing_fields(description: Mapping[str, Any], channels: int | None = None) -> dict[str, Any]:
    """What a description says about preprocessing; one mean or std stands for all channels."""
    fields = {key: value for key, value in description.items() if key != "labels"}
    channels = channels or fields["input_size"][0]
    for key in ("mean", "std"):
        if len(fields.get(key, ())) == 1 and isinstance(channels, int) and 0 < channels <= 4:
            fields[key] = fields[key] * channels
    return fields
