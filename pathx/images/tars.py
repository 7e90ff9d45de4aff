"""Tar files of images, as WebDataset makes them: what is in one, read once from end to end and never unpacked."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from pathx.errors import PathxError, reason_of, shown
from pathx.images.frames import SUFFIXES

LONGEST_HEADER = 1 << 20
"""Bytes that a header may claim for a name; more would be read into memory at the word of whoever made the file."""

LONGEST_LABEL = 1 << 16
"""Larger files beside an image are not looked into for its label."""

MOST_PARTS = 1000
"""Files of a sample. More are photos that are called alike, packed by somebody else."""

Row = tuple[str, tuple[int, int], str | None]
"""The key of an image, where its bytes begin and how many there are, and its label where the archive says it."""


@dataclass(frozen=True)
class _Part:
    """A file of a sample: its name behind the sample's key, and where it is."""

    extension: str
    offset: int
    size: int

    @property
    def plain(self) -> bool:
        return "." not in self.extension


def tar_rows(stream: BinaryIO, file: str) -> Iterator[Row]:
    """The images in a tar file, in its order. PathxError at the end, where not all of it can be read.

    Files in a row whose names are the same up to the first dot are one sample, called by that name. Its image is the
    only one in it, or the only one that is not called like `mask.png`; where that leaves several, each counts by its whole name.
    """
    left_out, key, sample = 0, "", list[_Part]()
    damage: PathxError | None = None
    files = tar_files(stream, file)
    while True:
        try:
            name, part = next(files)
        except StopIteration:
            break
        except PathxError as error:  # the sample before it is whole
            damage = error
            break
        folder, base = os.path.split(name)
        stem, _, extension = base.partition(".")
        if part is None:
            left_out += os.path.splitext(name)[1].lower() in SUFFIXES
        if part is None or not stem or not extension:  # hidden files, such as those that a Mac adds, have no stem
            continue
        own = os.path.join(folder, stem)
        if own != key or len(sample) > MOST_PARTS:
            yield from _images(stream, key, sample)
            key, sample = own, []
        sample.append(_Part(extension, *part))
    yield from _images(stream, key, sample)
    if damage is not None:
        raise damage
    if left_out:
        raise PathxError(
            f"{shown(file)} holds links or other things that are no files but called like images, {left_out} of them: "
            "pack the images themselves"
        )


def _images(stream: BinaryIO, key: str, sample: list[_Part]) -> Iterator[Row]:
    images = [part for part in sample if os.path.splitext(f"x.{part.extension}")[1].lower() in SUFFIXES]
    plain = [part for part in images if part.plain]
    alone = images if len(images) == 1 else plain if len(plain) == 1 else []
    label = _label(stream, sample) if images else None
    for part in alone or images:
        yield key if alone else f"{key}.{part.extension}", (part.offset, part.size), label


def _label(stream: BinaryIO, sample: list[_Part]) -> str | None:
    """What `.cls` says, or the entry `label` or `cls` of `.json`; else the folder in the archive has to do."""
    for part in sample:
        if part.extension not in ("cls", "json") or part.size > LONGEST_LABEL:
            continue
        stream.seek(part.offset)
        try:
            text = stream.read(part.size).decode()
            found = text if part.extension == "cls" else _entry(json.loads(text))
        except (ValueError, RecursionError):
            continue
        if found is not None and found.strip():
            return found.strip()
    return None


def _entry(document: object) -> str | None:
    values = [document.get(name) for name in ("label", "cls")] if isinstance(document, dict) else []
    known = [str(value) for value in values if isinstance(value, (str, int)) and not isinstance(value, bool)]
    return known[0] if known else None


def tar_files(stream: BinaryIO, file: str) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Names and places of the files in a tar file; no place for links, devices and files with holes."""
    end, count = stream.seek(0, os.SEEK_END), 0
    stream.seek(0)
    try:
        with tarfile.open(fileobj=cast("BinaryIO", _Bounded(stream)), mode="r:") as archive:
            while (found := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it would remember them all
                archive.pax_headers = {}
                if found.size < 0 or archive.offset <= found.offset:  # the next one would be this one again, for ever
                    raise tarfile.ReadError("a file of negative size")
                if found.isdir():
                    continue
                place = (found.offset_data, found.size) if found.isreg() and not found.issparse() else None
                if place is not None and sum(place) > end:
                    raise tarfile.ReadError("unexpected end of data")
                count += 1
                yield found.name, place
            stream.seek(archive.offset)
            if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("no end of archive")
    except PathxError:
        raise
    except Exception as error:  # damaged files make readers raise anything
        what = f"is damaged or cut short after {count} files" if count else "is no tar file, or damaged"
        remedy = "fetch it again" if count else "give a tar file that is not compressed"
        raise PathxError(f"{shown(file)} {what} ({reason_of(error)}): {remedy}") from None


class _Bounded:
    """A stream for `tarfile`, which reads a name of any length that a header claims."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= LONGEST_HEADER:
            raise ValueError(f"a header of {size} bytes")
        return self._stream.read(size)
