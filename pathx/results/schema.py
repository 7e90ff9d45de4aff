"""What documents must hold, by their JSON schemas: files of results may have been damaged, or made by somebody else."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from importlib.resources import files
from types import NoneType
from typing import Any

PATH_SCHEMA = "pathx/path@1"

Shape = Any
"""What a value may be: types; `[shape]`, a list of any length; `{name: shape}`, an object, with a question mark after the names of
what may be missing; `{None: shape}`, that or null."""

_TYPES: dict[str, tuple[type, ...]] = {
    **{"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)},
    **{"object": (dict,), "array": (list,), "null": (NoneType,)},
}
_LARGEST = 2**63


@lru_cache
def shape_of(document: str) -> Shape:
    """The shape of a document, such as `path`, from its schema."""
    schema = json.loads(files("pathx").joinpath("schemas", f"{document}.json").read_text("utf-8"))
    return _shape(schema, schema.get("$defs", {}))


def _shape(schema: dict[str, Any], parts: dict[str, dict[str, Any]]) -> Shape:
    schema = parts[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "oneOf" in schema:
        return {None: _shape(schema["oneOf"][1], parts)}  # the first is null
    if "properties" in schema:
        needed = schema.get("required", ())
        entries = schema["properties"].items()
        return {name if name in needed else f"{name}?": _shape(inner, parts) for name, inner in entries}
    kinds = schema.get("type", "string")  # of constants and enumerations
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if "items" in schema:
        many = [_shape(schema["items"], parts)]
        return {None: many} if "null" in kinds else many
    return tuple(kind for name in kinds for kind in _TYPES[name])


def misfit(value: Any, shape: Shape, place: str = "the document") -> str | None:
    """What of a document is not as its shape says; None where everything is."""
    if isinstance(shape, dict):
        if None in shape:
            return None if value is None else misfit(value, shape[None], place)
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
    types = shape if isinstance(shape, tuple) else (shape,)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        return f"{place} is of another type"
    if isinstance(value, (int, float)) and not (-_LARGEST < value < _LARGEST or _is_large(value)):
        return f"{place} is out of range"
    return None


def _is_large(value: float) -> bool:
    """Whether this is a number that a network may have come to; sizes and indices are never as large."""
    return isinstance(value, float) and math.isfinite(value)


_MOST_CLASSES, _MOST_UNITS, _SIDE = 1 << 24, 1 << 28, 1 << 16


def path_misfit(document: dict[str, Any]) -> str | None:
    """What of a path.json is not as it should be, sizes included that no network has and no memory would hold."""
    if (wrong := misfit(document, shape_of("path"))) is not None:
        return wrong
    if not 0 < document["model"]["classes"] <= _MOST_CLASSES:
        return "the number of classes is out of range"
    for layer in document["layers"]:
        shapes = {tensor["name"]: tensor["shape"] for tensor in layer["tensors"]}
        for shape in shapes.values():
            if min(shape, default=1) < 1 or math.prod(shape) > _MOST_UNITS or max(shape[1:], default=0) > _SIDE:
                return "a tensor's shape is out of range"
        for unit in layer["units"]:
            index, shape = unit["index"], shapes.get(unit["tensor"], [])
            if len(index) != len(shape) or not all(0 <= at < size for at, size in zip(index, shape, strict=True)):
                return "a unit is none of its layer's"
    return None
