"""Parquet files that others made, read a few rows at a time: what a page expands to is checked before it is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, BinaryIO

from pathx.errors import PathxError

INSTALL = "pip install 'pathx-relu[parquet]'"
HELD = 32 << 20
"""Bytes that are decoded at once, about."""

_SMALL, _RATIO = 16 << 20, 16  # a page may say that it expands to so many bytes, and so many times its own size
_FEW_ROWS, _BYTES_PER_ROW = 10_000, 16  # a file may have so many rows, and one for so many bytes
_LONGEST_HEADER = 16 << 20  # of a page, as pyarrow has it


class Parquet:
    """A Parquet file. Raises ImportError without pyarrow, and anything where the file is damaged."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.file: Any = import_module("pyarrow.parquet").ParquetFile(stream, pre_buffer=False)
        self.groups: list[int] = [self._group(number).num_rows for number in range(self.file.num_row_groups)]
        room = _FEW_ROWS + stream.seek(0, os.SEEK_END) // _BYTES_PER_ROW
        if min(self.groups, default=0) < 0 or sum(self.groups) > room:
            raise PathxError(f"it says that it has {sum(self.groups)} rows, too many for its size: write it again")

    def batches(self, group: int, columns: Sequence[str], most: int) -> Iterator[Any]:
        """Record batches of no more rows than `most`, nor than fit: a value may be as large as a page, and be repeated."""
        largest = max((size for column in columns for size in self._pages(group, column)), default=0)
        rows = max(1, min(most, HELD // max(1, largest)))
        yield from self.file.iter_batches(rows, [group], list(columns))

    def _group(self, number: int) -> Any:
        return self.file.metadata.row_group(number)

    def _pages(self, group: int, name: str) -> Iterator[int]:
        """How many bytes each page of a column says that it expands to."""
        chunks = [self._group(group).column(number) for number in range(self._group(group).num_columns)]
        for chunk in chunks:
            if chunk.path_in_schema != name and not chunk.path_in_schema.startswith(f"{name}."):
                continue
            start, dictionary = chunk.data_page_offset, chunk.dictionary_page_offset
            start = dictionary if chunk.has_dictionary_page and 0 < dictionary < start else start
            end = start + chunk.total_compressed_size
            while start < end:
                header, length = _page_header(self._stream, start, end)
                expanded, stored, rows = header[2], header[3], _rows(header)
                if min(expanded, stored, rows) < 0 or expanded > _SMALL + _RATIO * stored or rows > self.groups[group]:
                    problem = f"a page of {stored} bytes says that it holds {rows} values and {expanded} bytes"
                    raise PathxError(f"{problem}, too many to expand safely: write the file again without compression")
                yield expanded
                start += length + stored


def _rows(header: dict[int, Any]) -> int:
    """How many values a page holds, by whichever of its kinds it is: data, dictionary, data of the second version."""
    return max((header[kind][1] for kind in (5, 7, 8) if kind in header), default=0)


def _page_header(stream: BinaryIO, start: int, end: int) -> tuple[dict[int, Any], int]:
    """The fields of a page's header by number, and its length."""
    size = 1 << 10
    while True:
        stream.seek(start)
        data = stream.read(min(size, end - start))
        try:
            return _struct(data, 0)
        except IndexError:
            if size >= min(_LONGEST_HEADER, end - start):
                raise
            size *= 8


# Thrift's compact protocol, as far as headers of pages go


def _struct(data: bytes, at: int) -> tuple[dict[int, Any], int]:
    fields: dict[int, Any] = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        fields[number], at = _value(data, at, head & 15)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (1, 2):  # true, false
        return kind == 1, at
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind in (3, 7):  # a byte, a double
        return None, at + (1 if kind == 3 else 8)
    if kind == 8:  # bytes
        length, at = _varint(data, at)
        return None, at + length
    if kind == 12:
        return _struct(data, at)
    raise ValueError("a header of a page that is none")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = _varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
