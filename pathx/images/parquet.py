"""Images in Parquet files, read a few rows at a time; no page is expanded before its size is checked."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from itertools import chain, count
from threading import Lock
from typing import Any, BinaryIO

from pathx.errors import PathxError, shown
from pathx.regular import damage_errors

INSTALL = "pip install 'pathx-relu[parquet]'"
HELD = 32 << 20
"""Approximate number of bytes that are decoded at once."""

_KEPT = 4 * HELD  # bytes of rows, since several threads read at once
_SMALL, _RATIO = 16 << 20, 16  # a page may expand to this many bytes plus this many times its size
_FEW_ROWS, _BYTES_PER_ROW = 10_000, 16  # a file may have this many rows, plus one for this many bytes
_LONGEST = 4096  # characters of a key or a label

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
"""Names of columns of images."""

Row = tuple[str, tuple[int, int], str | None]
"""The key of an image, its place (see `Member` in `archives.py`), and its label if the file has it."""


class Parquet:
    """A Parquet file. Raises ImportError without pyarrow, and anything if the file is damaged."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.file: Any = import_module("pyarrow.parquet").ParquetFile(stream, pre_buffer=False)
        self.groups: list[int] = [self._group(number).num_rows for number in range(self.file.num_row_groups)]
        room = _FEW_ROWS + stream.seek(0, os.SEEK_END) // _BYTES_PER_ROW
        if min(self.groups, default=0) < 0 or sum(self.groups) > room:
            raise ValueError(f"it says that it has {sum(self.groups)} rows, too many for its size")

    def batches(self, group: int, columns: Sequence[str], most: int) -> Iterator[Any]:
        """Record batches of at most `most` rows, and no more than fit: a value may be as large as a page, and repeated."""
        largest = max((size for column in columns for size in self._pages(group, column)), default=0)
        rows = max(1, min(most, HELD // max(1, largest)))
        yield from self.file.iter_batches(rows, [group], list(columns))

    def _group(self, number: int) -> Any:
        return self.file.metadata.row_group(number)

    def _pages(self, group: int, name: str) -> Iterator[int]:
        """The number of bytes that each page of a column claims to expand to."""
        for number in range(self._group(group).num_columns):
            chunk = self._group(group).column(number)
            if not f"{chunk.path_in_schema}.".startswith(f"{name}."):
                continue
            start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
            start = dictionary if chunk.has_dictionary_page and 0 < dictionary < start else start
            end = start + chunk.total_compressed_size
            while start < end:
                self._stream.seek(start)
                header = _read_struct(self._stream)
                kinds = (header[kind] for kind in (5, 7, 8) if kind in header)  # data, dictionary, data of version 2
                expanded, stored, rows = header[2], header[3], max((kind[1] for kind in kinds), default=0)
                if min(expanded, stored, rows) < 0 or expanded > _SMALL + _RATIO * stored or rows > self.groups[group]:
                    problem = f"a page of {stored} bytes says that it holds {rows} values and {expanded} bytes"
                    raise ValueError(f"{problem}, too many to expand safely")
                yield expanded
                start = self._stream.tell() + stored


def _read_struct(stream: BinaryIO) -> dict[int, Any]:
    """The fields, by number, of a struct in Thrift's compact protocol, such as the header of a page. IndexError if cut short."""
    fields: dict[int, Any] = {}
    number = 0
    while (head := stream.read(1)[0]) != 0:
        number = number + (head >> 4) if head >> 4 else _read_integer(stream)
        kind = head & 15
        if kind in (1, 2):
            fields[number] = kind == 1
        elif kind in (4, 5, 6):
            fields[number] = _read_integer(stream)
        elif kind in (3, 7, 8):  # a byte, a double, bytes; of statistics
            stream.seek({3: 1, 7: 8}.get(kind) or _read_varint(stream), os.SEEK_CUR)
        elif kind == 12:
            fields[number] = _read_struct(stream)
        else:
            raise ValueError("a header of a page that is none")
    return fields


def _read_integer(stream: BinaryIO) -> int:
    number = _read_varint(stream)
    return (number >> 1) ^ -(number & 1)


def _read_varint(stream: BinaryIO) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = stream.read(1)[0]
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("a number of more than 64 bits")


class ImageTable(Parquet):
    """The images in a Parquet file. Raises PathxError if it cannot be read.

    The key of an image is in the column `__key__` or `key`, or else the path beside its bytes, or its row.
    """

    def __init__(self, stream: BinaryIO, file: str) -> None:
        try:
            types = import_module("pyarrow.types")
        except ImportError:
            raise PathxError(f"{shown(file)} is a Parquet file, which needs pyarrow: {INSTALL}") from None
        self._name, self._lock = file, Lock()
        with self._damage():
            super().__init__(stream)
            schema = self.file.schema_arrow

        def inner(of: Any) -> dict[str, Any]:
            children = (of.field(number) for number in range(of.num_fields)) if types.is_struct(of) else ()
            return {child.name: child.type for child in children}

        def holds_bytes(of: Any) -> bool:
            of = inner(of).get("bytes", of)
            return bool(types.is_binary(of) or types.is_large_binary(of))

        def first_plain(*names: str) -> str | None:
            tests = types.is_string, types.is_large_string, types.is_integer
            return next((name for name in names if name in fields and any(test(fields[name]) for test in tests)), None)

        fields = {field.name: field.type for field in schema}
        known = [name for name in (*IMAGES, *fields) if name in fields and holds_bytes(fields[name])]
        if not known or (known[0] not in IMAGES and len(known) > 1):
            listed = ", ".join(map(shown, list(fields)[:8])) or "none"
            problem = f"{shown(file)} has no column of images (its columns: {listed})"
            raise PathxError(f"{problem}: call it image, of bytes or of {{bytes, path}}")
        self._image, within = known[0], inner(fields[known[0]])
        self._bytes = f"{self._image}.bytes" if within else self._image
        self._key, self._label = first_plain("__key__", "key"), first_plain("label", "cls")
        if self._key is None and "path" in within:
            self._key = f"{self._image}.path"
        self._names = _class_names(schema.metadata, self._label)
        self._at, self._next = -1, 0
        self._decoded: Iterator[Any] = iter(())
        self._recent: deque[tuple[int, Any]] = deque(maxlen=256)  # batches, each with the number of its first row

    def _damage(self) -> AbstractContextManager[None]:
        return damage_errors(self._name, "no Parquet file")

    def rows(self) -> Iterator[Row]:
        """All images, in order."""
        about = [name for name in (self._key, self._label) if name is not None]
        numbers = count()
        with self._damage():
            for group, size in enumerate(self.groups):
                batches = self.batches(group, about, 4096) if about else ()
                described = chain.from_iterable(map(self._describe, batches))
                for row in range(size):
                    key, label = next(described, (None, None))
                    number = next(numbers)
                    yield key or f"row-{number:06d}", (group, row), label

    def _describe(self, batch: Any) -> Iterator[tuple[str | None, str | None]]:
        """The key and the label of every row; None if it has none."""
        columns = [_values(batch, name) for name in (self._key, self._label)]
        for key, label in zip(*columns, strict=True):
            known = isinstance(label, int) and 0 <= label < len(self._names)
            yield _text(key), self._names[label] if known else _text(label)

    def at(self, group: int, row: int) -> bytes:
        """The bytes of an image. Reading in approximate order decodes each image once."""
        with self._lock, self._damage():
            if group != self._at or row < (self._recent[0][0] if self._recent else 0):
                self._decoded, self._at, self._next = self.batches(group, [self._bytes], 64), group, 0
                self._recent.clear()
            while row >= self._next:
                batch: Any = next(self._decoded)  # a missing row is damage
                self._recent.append((self._next, batch))
                self._next += batch.num_rows
                while len(self._recent) > 1 and sum(one.nbytes for _, one in self._recent) > _KEPT:
                    self._recent.popleft()
            start, batch = next(one for one in reversed(self._recent) if one[0] <= row)
            data = _values(batch.slice(row - start, 1), self._bytes)[0]
        if not isinstance(data, bytes):
            raise PathxError(f"{shown(self._name)}: row {row} of group {group} has no bytes of an image")
        return data


def _values(batch: Any, column: str | None) -> list[Any]:
    """The values of a column or of a field in it (`image.path`)."""
    if column is None or column in batch.schema.names:
        return [None] * batch.num_rows if column is None else batch.column(column).to_pylist()
    name, _, inner = column.rpartition(".")
    return [(value or {}).get(inner) for value in batch.column(name).to_pylist()]


def _text(value: Any) -> str | None:
    text = None if value is None else str(value)
    return None if text is None or len(text) > _LONGEST else text


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> list[str]:
    """The names of the labels' numbers, if the datasets library wrote them."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
