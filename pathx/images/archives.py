"""Archives of images. An image in one is called `shard-000.tar#KEY` and used like any other; nothing is unpacked."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from typing import BinaryIO, cast

from pathx.errors import PathxError, shown
from pathx.images.frames import SUFFIXES
from pathx.images.parquet import ImageTable, Row
from pathx.regular import damage_errors
from pathx.stores import check_size, fetch_part, is_stored, open_anywhere, version_anywhere

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
                text = (
                    "holds links or other things that are no files but called like images: pack the images themselves"
                )
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
