"""JSON documents: what they must hold by their schemas, and how they are written and read. Others may have made or damaged them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any

from pathx.errors import PathxError, parse_json, shown
from pathx.regular import read_regular

PATH_SCHEMA = "pathx/path@1"

Shape = Any
"""What a value may be: types; `[shape]`, a list of any length; `{name: shape}`, an object, with a question mark after the names of
what may be missing; `{"*": shape}`, an object with any names; `{None: shape}`, that or null."""

_TYPES: dict[str, tuple[type, ...]] = {
    **{"string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,)},
    **{"object": (dict,), "array": (list,), "null": (NoneType,)},
}
_LARGEST = 2**63
_MOST_BYTES = 1 << 30  # of a document that is read; larger ones would not fit into memory as numbers


@lru_cache
def shape_of(document: str) -> Shape:
    """The shape of a document, such as `path`, from its schema."""
    schema = json.loads(files("pathx").joinpath("schemas", f"{document}.json").read_text("utf-8"))
    return _shape(schema, schema.get("$defs", {}))


def _shape(schema: dict[str, Any], parts: dict[str, dict[str, Any]]) -> Shape:
    schema = parts[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if "oneOf" in schema:
        return {None: _shape(schema["oneOf"][1], parts)}  # the first is null
    if "allOf" in schema:
        return {name: inner for part in schema["allOf"] for name, inner in _shape(part, parts).items()}
    if "properties" in schema:
        needed = schema.get("required", ())
        entries = schema["properties"].items()
        return {name if name in needed else f"{name}?": _shape(inner, parts) for name, inner in entries}
    if "additionalProperties" in schema:
        return {"*": _shape(schema["additionalProperties"], parts)}
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
        if "*" in shape:
            return next(
                (wrong for name, one in value.items() if (wrong := misfit(one, shape["*"], name)) is not None), None
            )
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


# Written and read


UNFIT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What goes wrong where a document does not hold what it should."""


@contextmanager
def understood(file: Path) -> Iterator[None]:
    """What goes wrong with the content of a document that others may have written, as a PathxError."""
    try:
        yield
    except (*UNFIT, RuntimeError, MemoryError) as error:
        raise PathxError(f"{shown(file)} is damaged, or not of this version: make it again") from error


def document_bytes(document: Mapping[str, Any]) -> bytes:
    """A document as its file has it: a line for every entry, and for every row of a table."""
    return (_lines(document, "\n") + "\n").encode()


def _lines(value: Any, end: str) -> str:
    """JSON with line ends that begin so: with what the line is indented by.

    Python's own encoder gives every number of a table a line where it indents: twice the bytes, and slower.
    """
    deeper, entries = f"{end}  ", []
    if isinstance(value, dict) and value:
        for key, item in value.items():
            entries.append(f"{_encoded(str(key))}: {_lines(item, deeper)}")
        return f"{{{deeper}{f',{deeper}'.join(entries)}{end}}}"
    if isinstance(value, list) and not _is_row(value):
        for item in value:
            entries.append(_encoded(item) if _is_row(item) else _lines(item, deeper))
        return f"[{deeper}{f',{deeper}'.join(entries)}{end}]"
    return _encoded(value)


def _is_row(item: Any) -> bool:
    """Whether something goes on a line: plain values, or of these and short lists of them an object."""
    if isinstance(item, dict):
        return all(type(value) is not dict and _is_row(value) for value in item.values())
    return not isinstance(item, list) or _NESTED.isdisjoint(map(type, item))


_NESTED = frozenset([dict, list])
_encoded = json.JSONEncoder(allow_nan=False).encode


def read_document(file: Path) -> dict[str, Any]:
    """A JSON document that pathx wrote."""
    try:
        document = parse_json(read_regular(file, _MOST_BYTES))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not valid JSON"
        raise PathxError(f"{shown(file)} cannot be read ({reason}): make it again") from None
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("pathx/"):
        raise PathxError(f"{shown(file)} was not written by pathx: it has no schema of pathx")
    if document["schema"] == PATH_SCHEMA and (wrong := path_misfit(document)) is not None:
        raise PathxError(f"{shown(file)} is damaged ({wrong}): make it again")
    return document


def is_finite(value: Any) -> bool:
    """Whether JSON has all of a document's numbers."""
    if isinstance(value, dict):
        return all(map(is_finite, value.values()))
    if isinstance(value, list):
        return all(map(is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def created_by(**more: str) -> dict[str, str]:
    """What a document says of the software that made it, and what else matters there: device, dtype."""
    import pathx

    return {"pathx": pathx.__version__, "torch": _version("torch"), "torchvision": _version("torchvision"), **more}


_version = lru_cache(version)  # which looks through the installed packages every time


# names.json: what people call channels. A report's page writes it.

NAMES = "names.json"
NAMES_SCHEMA = "pathx/names@1"
_LONGEST_NAME = 80


def channel_key(tensor: str, channel: int) -> str:
    """A channel as the command line names it: `features.3[7]`."""
    return f"{tensor}[{channel}]"


def read_names(folders: Iterable[Path], sha256: str) -> dict[str, str]:
    """By channel, the names that were given to those of one model; the first folder that names a channel counts.

    Args:
        folders: where a names.json may be; what is none, or damaged, adds nothing.
        sha256: of the model.
    """
    names: dict[str, str] = {}
    for folder in folders:
        with suppress(PathxError, OSError):
            document = read_document(folder / NAMES) if (folder / NAMES).is_file() else {}
            ours = misfit(document, shape_of("names")) is None and document["schema"] == NAMES_SCHEMA
            if ours and document["model"]["sha256"] == sha256:
                given = {str(key): str(name)[:_LONGEST_NAME] for key, name in document["names"].items() if name}
                names = {**given, **names}
    return names
