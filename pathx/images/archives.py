"""Archives of images: each image in one is like any other, called `shard-000.tar#KEY`. Nothing is ever unpacked."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import BinaryIO

from pathx.errors import PathxError, shown
from pathx.images.parquet import TableRows, table_rows
from pathx.images.tars import tar_rows
from pathx.regular import open_regular
from pathx.stores import fetch_part, is_stored, open_stored, stored_version

TAR, TABLES = ".tar", (".parquet", ".pq")
ARCHIVES = frozenset((TAR, *TABLES))
"""File endings of archives."""

_COMPRESSED = re.compile(r"(?is).*\.(tgz|tbz2?|txz|tar\.(gz|bz2|xz|zst|lz4))")
_MEMBER = re.compile(r"(?is)(.+?\.(?:tar|parquet|pq))#(.+)")
_LONGEST_PATH = 1000  # of a path; operating systems take 4096 or 1024 bytes, with the output folder and what is in it
_LONGEST = 200  # bytes of a folder's name; file systems take 255, and a number may follow


@dataclass(frozen=True, slots=True)
class Member:
    """An image in an archive, to be used wherever a path is.

    Args:
        place: in a tar file where its bytes begin and how many there are; in a table its row group and its row there.
        label: the true class, as the archive says it.
        version: of the archive, where that is in a store which tells.
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
        parts = [part for part in re.split(r"[/\\]", self.key) if part not in ("", ".", "..")]
        name = os.path.join(*map(_short, parts)) if parts else "image"
        if len(name) > _LONGEST_PATH:
            name = f"{_short(parts[-1])}-{hashlib.sha256(self.key.encode(errors='replace')).hexdigest()[:8]}"
        return name

    @property
    def folder(self) -> str | None:
        """The folder inside the archive that holds it, which may be named after its class."""
        return os.path.basename(os.path.dirname(self.key)) or None


def is_archive(file: str | Path) -> bool:
    """Whether a file has the ending of an archive."""
    return os.path.splitext(file)[1].lower() in ARCHIVES


def check_uncompressed(file: str) -> None:
    """Refuse a compressed archive, in which no image can be reached directly."""
    if _COMPRESSED.fullmatch(file) is not None:
        raise PathxError(f"{shown(file)} is compressed, and images in it cannot be reached: unpack it to a .tar file")


def members_in(archive: str, version: str = "") -> Iterator[Member]:
    """The images in an archive, in its order, each with a key of its own: a key that comes again gets a number.

    Raises PathxError after those that can be read, where the rest cannot.
    """
    taken: set[str] = set()
    with _open_archive(archive) as stream:
        rows = tar_rows(stream, archive) if _is_tar(archive) else table_rows(stream, archive)
        for key, place, label in rows:
            if key in taken:
                key = next(other for number in count(2) if (other := f"{key}-{number}") not in taken)
            taken.add(key)
            yield Member(archive, key, place, label, version)


def split_member(file: str) -> tuple[str, str] | None:
    """The archive and the key of `shard-000.tar#KEY`, unless there is a file of that name."""
    found = _MEMBER.fullmatch(file)
    return None if found is None or os.path.lexists(file) else (found[1], found[2])


def member_of(file: str | Path | Member, *, web: bool = False) -> Member | None:
    """The image that `shard-000.tar#KEY` means; None where that is no name of one. Raises PathxError.

    Args:
        web: also look into an archive in a store.
    """
    if isinstance(file, Member):
        return file
    named = split_member(os.fspath(file))
    if named is None:
        return None
    archive, key = named
    if is_stored(archive) and not web:
        raise PathxError(f"{shown(str(file))} is in a store and is not fetched here: copy the archive")
    found = _by_key(archive, _version(archive)).get(key)
    if found is None:
        raise PathxError(f"{shown(archive)} holds no image {shown(key)}: check the key")
    return found


def member_bytes(member: Member, limit: int) -> bytes:
    """The bytes of an image in an archive, no more of them than `limit`. Raises PathxError."""
    if not _is_tar(member.archive):
        data = _rows(member.archive, member.version or _version(member.archive)).at(*member.place)
        _check_size(member, len(data), limit)
        return data
    offset, size = member.place
    _check_size(member, size, limit)
    if is_stored(member.archive):
        data = fetch_part(member.archive, offset, size)
    else:
        with _open_archive(member.archive) as stream:
            stream.seek(offset)
            data = stream.read(size)
    if len(data) < size:
        raise PathxError(f"{shown(str(member))} is cut short: fetch the archive again")
    return data


def _check_size(member: Member, size: int, limit: int) -> None:
    if size > limit:
        raise PathxError(f"{shown(str(member))} is larger than {limit >> 30} GiB: scale the image down first")
    if size == 0:
        raise PathxError(f"{shown(str(member))} is empty (zero bytes): pack it again")


def _is_tar(archive: str) -> bool:
    return os.path.splitext(archive)[1].lower() == TAR


def _open_archive(archive: str) -> BinaryIO:
    if is_stored(archive):
        return open_stored(archive)
    try:
        return open_regular(archive)
    except OSError as error:
        raise PathxError(f"{shown(archive)} cannot be read: {error.strerror or error}; check the path") from None


@lru_cache(maxsize=4)
def _by_key(archive: str, version: str) -> dict[str, Member]:
    found: dict[str, Member] = {}
    with suppress(PathxError):  # of a damaged archive, what is before the damage
        for member in members_in(archive, version if is_stored(archive) else ""):
            found[member.key] = member
    return found


@lru_cache(maxsize=2)
def _rows(archive: str, version: str) -> TableRows:
    return TableRows(_open_archive(archive), archive)


def _version(archive: str) -> str:
    """Changes when a file does."""
    if is_stored(archive):
        return stored_version(archive)
    try:
        found = os.stat(archive)
    except OSError as error:
        raise PathxError(f"{shown(archive)} cannot be read: {error.strerror or error}; check the path") from None
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def _short(part: str) -> str:
    """A part of a key as the name of a folder."""
    part = part.replace("\0", "_")
    data = os.fsencode(part)
    if len(data) <= _LONGEST:
        return part
    return f"{data[: _LONGEST - 9].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:8]}"
