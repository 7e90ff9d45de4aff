"""Archives of images. An image in one is called `shard-000.tar#KEY` and used like any other; nothing is unpacked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from itertools import chain, count
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast

from pathx.errors import PathxError, shown
from pathx.regular import damage_errors
from pathx.stores import check_size, fetch_part, is_stored, open_anywhere, version_anywhere

_KINDS = "jpg jpeg jpe jfif png apng gif webp bmp dib tif tiff ppm pgm pbm pnm"
SUFFIXES = frozenset(f".{kind}" for kind in _KINDS.split())
"""Suffixes of images in folders and archives. A file that the user names may have any."""

ARCHIVES = frozenset((".tar", ".parquet", ".pq"))
"""Suffixes of archives."""

_COMPRESSED = re.compile(r"(?is).*\.(tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|lz4))")
_MEMBER = re.compile(r"(?is)(.+?\.(?:tar|parquet|pq))#(.+)")
_LONGEST_PATH, _LONGEST_PART = 1000, 200  # of the folder of results; file systems allow at least 1024 and 255 bytes
_LONGEST_HEADER = 1 << 20  # bytes of a name in a tar file
_LONGEST_LABEL = 1 << 16  # bytes of a file that may hold an image's label
_MOST_PARTS = 1000  # files of a sample; more are photos with similar names


@dataclass(frozen=True, slots=True)
class Member:
    """An image in an archive, to be used wherever a path is.

    Args:
        place: in a tar file, the offset and number of its bytes; in a table, its row group and its row there.
        label: the true class, from the archive or the name of the folder in it.
        version: of the archive, if a store tells it.
    """

    archive: str
    key: str
    place: tuple[int, int]
    label: str | None = None
    version: str = ""

    def __str__(self) -> str:
        return f"{self.archive}#{self.key}"

    __fspath__ = __str__

    @property
    def name(self) -> str:
        """The folder of its results, inside that of the archive."""
        parts = [part.replace("\0", "_") for part in re.split(r"[/\\]", self.key) if part not in ("", ".", "..")]
        name = os.path.join(*parts) if parts else "image"
        if len(name) <= _LONGEST_PATH and all(len(os.fsencode(part)) <= _LONGEST_PART for part in parts):
            return name
        start = os.fsencode(parts[-1])[:_LONGEST_PART].decode(errors="ignore")
        return f"{start}-{hashlib.sha256(self.key.encode(errors='replace')).hexdigest()[:8]}"


def is_archive(file: str | Path) -> bool:
    """Whether a file has the suffix of an archive."""
    return os.path.splitext(file)[1].lower() in ARCHIVES


def check_uncompressed(file: str) -> None:
    """Refuse a compressed archive, whose images cannot be reached directly."""
    if _COMPRESSED.fullmatch(file) is not None:
        raise PathxError(f"{shown(file)} is compressed, and images in it cannot be reached: unpack it to a .tar file")


def members_in(archive: str, version: str = "") -> Iterator[Member]:
    """The images in an archive, in its order, each with a different key: repeated keys get a number.

    If a part cannot be read, PathxError is raised after the images before it.
    """
    taken: set[str] = set()
    with open_anywhere(archive) as stream:
        for key, place, label in _tar_rows(stream, archive) if _is_tar(archive) else ImageTable(stream, archive).rows():
            folder = os.path.basename(os.path.dirname(key))
            taken.add(key := free_name(key, taken))
            yield Member(archive, key, place, label or folder or None, version)


def free_name(name: str, taken: Container[str]) -> str:
    """The first of `name`, `name-2`, `name-3`, … that is not taken."""
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


def split_member(file: str) -> tuple[str, str] | None:
    """The archive and the key of `shard-000.tar#KEY`; None for other names, and if there is a file of that name."""
    found = _MEMBER.fullmatch(file)
    return None if found is None or os.path.lexists(file) else (found[1], found[2])


def member_of(file: str | Path | Member, *, web: bool = False) -> Member | None:
    """The image that `shard-000.tar#KEY` names; None for other names. Raises PathxError.

    Args:
        web: also look into an archive in a store.
    """
    if isinstance(file, Member):
        return file
    archive, key = split_member(os.fspath(file)) or ("", "")
    if not archive:
        return None
    if is_stored(archive) and not web:
        raise PathxError(f"{shown(str(file))} is in a store and is not fetched here: copy the archive")
    found = _by_key(archive, version_anywhere(archive)).get(key)
    if found is None:
        raise PathxError(f"{shown(archive)} holds no image {shown(key)}: check the key")
    return found


@lru_cache(maxsize=4)
def _by_key(archive: str, version: str) -> dict[str, Member]:
    found: dict[str, Member] = {}
    with suppress(PathxError):  # of a damaged archive, the images before the damage
        for member in members_in(archive, version if is_stored(archive) else ""):
            found[member.key] = member
    return found


def member_bytes(member: Member, limit: int) -> bytes:
    """The bytes of an image in an archive, at most `limit`. Raises PathxError."""
    archive, (offset, size) = member.archive, member.place
    if not _is_tar(archive):
        return _open_table(archive, member.version or version_anywhere(archive)).at(offset, size)
    check_size(str(member), size, limit)
    if is_stored(archive):
        data = fetch_part(archive, offset, size)
    else:
        with open_anywhere(archive) as stream:
            stream.seek(offset)
            data = stream.read(size)
    if len(data) < size:
        raise PathxError(f"{shown(str(member))} is cut short: fetch the archive again")
    return data


@lru_cache(maxsize=2)
def _open_table(archive: str, version: str) -> ImageTable:
    return ImageTable(open_anywhere(archive), archive)


def _is_tar(archive: str) -> bool:
    return archive.lower().endswith(".tar")


# Tar files, such as those of WebDataset, are read once from end to end. A file of a sample is (extension, offset, size).


def _tar_rows(stream: BinaryIO, file: str) -> Iterator[Row]:
    """The images in a tar file, in its order. Raises PathxError at the end if some of it cannot be read.

    Consecutive files with the same name up to the first dot are one sample of that name. Its image is the only one in it, or
    the only one without a second dot (`mask.png`). If there are several, each is an image with its whole name.
    """
    key, sample = "", list[tuple[str, int, int]]()
    problem: PathxError | None = None
    try:
        for name, place in tar_files(stream, file):
            stem, _, extension = os.path.basename(name).partition(".")
            if place is None and os.path.splitext(name)[1].lower() in SUFFIXES:
                text = "holds links or special files with the names of images: pack the images themselves"
                problem = PathxError(f"{shown(file)} {text}")
            elif place is not None and stem and extension:  # hidden files, as a Mac adds them, have no stem
                own = os.path.join(os.path.dirname(name), stem)
                if own != key or len(sample) > _MOST_PARTS:
                    yield from _sample_rows(stream, key, sample)
                    key, sample = own, []
                sample.append((extension, *place))
    except PathxError as error:  # the sample before it is complete
        problem = error
    yield from _sample_rows(stream, key, sample)
    if problem is not None:
        raise problem


def _sample_rows(stream: BinaryIO, key: str, sample: list[tuple[str, int, int]]) -> Iterator[Row]:
    images = [part for part in sample if os.path.splitext(f"x.{part[0]}")[1].lower() in SUFFIXES]
    plain = [part for part in images if "." not in part[0]]
    alone = images if len(images) == 1 else plain if len(plain) == 1 else []
    label = _label(stream, sample) if images else None
    for extension, offset, size in alone or images:
        yield key if alone else f"{key}.{extension}", (offset, size), label


def _label(stream: BinaryIO, sample: list[tuple[str, int, int]]) -> str | None:
    """The content of `.cls`, or the entry `label` or `cls` of `.json`."""
    for extension, offset, size in sample:
        if extension not in ("cls", "json") or size > _LONGEST_LABEL:
            continue
        stream.seek(offset)
        try:
            text = stream.read(size).decode()
            document = {"cls": text} if extension == "cls" else json.loads(text)
        except (ValueError, RecursionError):
            continue
        for name in ("label", "cls") if isinstance(document, dict) else ():
            value = document.get(name)
            if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip():
                return str(value).strip()
    return None


def tar_files(stream: BinaryIO, file: str) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Names and places of the files in a tar file; the place is None for links, devices and sparse files."""
    end = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    with (
        damage_errors(file, "cut short, or no tar file", "fetch it again, uncompressed"),
        tarfile.open(fileobj=cast("BinaryIO", _Bounded(stream)), mode="r:") as archive,
    ):
        while (found := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep all of them
            archive.pax_headers = {}
            if found.size < 0 or archive.offset <= found.offset:  # would repeat this file for ever
                raise tarfile.ReadError("a file of negative size")
            if found.isdir():
                continue
            place = (found.offset_data, found.size) if found.isreg() and not found.issparse() else None
            if place is not None and sum(place) > end:
                raise tarfile.ReadError("unexpected end of data")
            yield found.name, place
        stream.seek(archive.offset)
        if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise tarfile.ReadError("no end of archive")


class _Bounded:
    """A stream for `tarfile`, which would read a name of any length that a header claims."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER:
            raise ValueError(f"a header of {size} bytes")
        return self._stream.read(size)


# Parquet files, read a few rows at a time; no page is expanded before its size is checked


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
            raise PathxError(f"{shown(self._name)}: row {row} of group {group} has no bytes of an image: leave it out")
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
