"""Parquet files with the bytes of images: what is in one, and its rows, read in order without holding the file."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from importlib import import_module
from threading import Lock
from typing import Any, BinaryIO

from pathx.errors import PathxError, reason_of, shown
from pathx.images.parquet import HELD, INSTALL, Parquet

IMAGES = ("image", "img", "jpg", "jpeg", "png", "webp", "picture", "photo")
KEYS = ("__key__", "key")
LABELS = ("label", "cls")
_LONGEST = 4096
_KEPT = 4 * HELD  # bytes of rows, as several threads read side by side
Row = tuple[str, tuple[int, int], str | None]
"""The key of an image, its row group and its row in there, and its label where the file says it."""


def table_rows(stream: BinaryIO, file: str) -> Iterator[Row]:
    """The images in a Parquet file, in its order. PathxError where it cannot be read.

    An image is called as the column `__key__` or `key` says, or else as the path beside its bytes, or by its row.
    """
    table = _Table(stream, file)
    with table.damage():
        number = 0
        for group, rows in enumerate(table.file.groups):
            row = 0
            for batch in table.file.batches(group, table.about, 4096) if table.about else ():
                for key, label in table.described(batch):
                    yield key or f"row-{number:06d}", (group, row), label
                    row, number = row + 1, number + 1
            for rest in range(row, rows):
                yield f"row-{number:06d}", (group, rest), None
                number += 1


class TableRows:
    """The images of a Parquet file by row; whoever reads them in about their order reads each once."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self._table, self._file, self._lock = _Table(stream, file), file, Lock()
        self._group, self._next = -1, 0
        self._decoded: Iterator[Any] = iter(())
        self._recent: deque[tuple[int, Any]] = deque(maxlen=256)

    def at(self, group: int, row: int) -> bytes:
        """The bytes of an image. Raises PathxError."""
        with self._lock, self._table.damage():
            if group != self._group or row < (self._recent[0][0] if self._recent else 0):
                self._enter(group)
            while row >= self._next:
                batch: Any = next(self._decoded)  # a row that is not there is damage
                self._recent.append((self._next, batch))
                self._next += batch.num_rows
                while len(self._recent) > 1 and sum(one.nbytes for _, one in self._recent) > _KEPT:
                    self._recent.popleft()
            start, batch = next(one for one in reversed(self._recent) if one[0] <= row)
            data = self._table.image(batch, row - start)
        if data is None:
            raise PathxError(f"{shown(self._file)}: row {row} of group {group} has no bytes of an image")
        return data

    def _enter(self, group: int) -> None:
        self._decoded = self._table.file.batches(group, [self._table.bytes_column], 64)
        self._group, self._next = group, 0
        self._recent.clear()


class _Table:
    """A Parquet file, and which of its columns are what.

    Args:
        bytes_column: of the images, as pyarrow names it.
        about: columns that say what images are called, and their labels.
    """

    def __init__(self, stream: BinaryIO, file: str) -> None:
        try:
            self._types = import_module("pyarrow.types")
        except ImportError:
            raise PathxError(f"{shown(file)} is a Parquet file, which needs pyarrow: {INSTALL}") from None
        self._name = file
        with self.damage():
            self.file = Parquet(stream)
            schema = self.file.file.schema_arrow
        fields = {field.name: field.type for field in schema}
        known = [name for name in (*IMAGES, *fields) if name in fields and self._holds_bytes(fields[name])]
        if not known or (known[0] not in IMAGES and len(known) > 1):
            listed = ", ".join(map(shown, list(fields)[:8])) or "none"
            raise PathxError(
                f"{shown(file)} has no column of images (its columns: {listed}): call it image, of bytes or of "
                "{bytes, path}"
            )
        self._image, of = known[0], fields[known[0]]
        self._nested = self._types.is_struct(of)
        self.bytes_column = f"{self._image}.bytes" if self._nested else self._image
        self._key = next((name for name in KEYS if name in fields and self._is_plain(fields[name])), None)
        has_path = self._nested and any(of.field(number).name == "path" for number in range(of.num_fields))
        self._path = has_path and self._key is None
        self._label = next((name for name in LABELS if name in fields and self._is_plain(fields[name])), None)
        path = f"{self._image}.path" if self._path else None
        self.about = [name for name in (self._key, path, self._label) if name is not None]
        self._names = _class_names(schema.metadata, self._label)

    def damage(self) -> _Damage:
        return _Damage(self._name)

    def described(self, batch: Any) -> Iterator[tuple[str, str | None]]:
        """The key and the label of every row; an empty key where there is none."""
        count = batch.num_rows
        keys: list[Any] = [None] * count
        if self._key is not None:
            keys = batch.column(self._key).to_pylist()
        elif self._path:
            keys = [(one or {}).get("path") for one in batch.column(self._image).to_pylist()]
        labels = [None] * count if self._label is None else batch.column(self._label).to_pylist()
        for key, label in zip(keys, labels, strict=True):
            yield _text(key) or "", self._labelled(label)

    def image(self, batch: Any, row: int) -> bytes | None:
        value = batch.column(self._image)[row].as_py()
        value = (value or {}).get("bytes") if self._nested else value
        return value if isinstance(value, bytes) else None

    def _labelled(self, label: Any) -> str | None:
        if isinstance(label, int) and 0 <= label < len(self._names):
            return self._names[label]
        return _text(label)

    def _holds_bytes(self, of: Any) -> bool:
        if self._types.is_struct(of):
            children = [of.field(number) for number in range(of.num_fields)]
            return any(child.name == "bytes" and self._holds_bytes(child.type) for child in children)
        return bool(self._types.is_binary(of) or self._types.is_large_binary(of))

    def _is_plain(self, of: Any) -> bool:
        tests = self._types.is_string, self._types.is_large_string, self._types.is_integer
        return any(test(of) for test in tests)


class _Damage:
    """What pyarrow raises, as a PathxError."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PathxError) and not str(error).startswith(shown(self._file)):
            raise PathxError(f"{shown(self._file)}: {error}") from None
        if isinstance(error, Exception) and not isinstance(error, PathxError):  # also StopIteration: rows are missing
            reason = reason_of(error)
            raise PathxError(f"{shown(self._file)} is damaged or no Parquet file ({reason}): fetch it again") from None


def _text(value: Any) -> str | None:
    """A key or a label; none that is longer than any path, as thousands of rows may share it."""
    text = None if value is None else str(value)
    return None if text is None or len(text) > _LONGEST else text


def _class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> list[str]:
    """What the numbers of labels mean, where the datasets library wrote that down."""
    try:
        names = json.loads((metadata or {})[b"huggingface"])["info"]["features"][label]["names"]
        return [str(name) for name in names]
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
