"""Find the images that files, folders, patterns and lists lead to, and name the folders of their results."""

from __future__ import annotations

import glob
import json
import os
import posixpath
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from pathlib import Path, PurePath
from typing import BinaryIO

from pathx.errors import PathxError, public_address, shown
from pathx.images.archives import (
    ARCHIVES,
    SUFFIXES,
    Member,
    check_uncompressed,
    free_name,
    is_archive,
    members_in,
    split_member,
)
from pathx.images.frames import VIDEOS, Frame, count_frames
from pathx.images.web import address_name, is_address
from pathx.regular import MARKER, begins_as_ours, read_regular, written_by_pathx
from pathx.stores import fetch_part, is_stored, join_address, stored_files, stored_matches, stored_version

_IMAGES = (
    (rb"\xff\xd8\xff", "jpg"),
    (rb"\x89PNG\r\n", "png"),
    (rb"GIF8[79]a", "gif"),
    (rb"RIFF....WEBP", "webp"),
    (rb"BM.{8}", "bmp"),
    (rb"II\*\0|MM\0\*", "tif"),
    (rb"P[1-6]\s", "ppm"),
)
"""The first bytes of images."""

_DOCUMENTS = "path|run|decomposition|contrast|evaluation|grid|common|check|units"
_OURS = re.compile(rf"({_DOCUMENTS})(\..*)?\.json")  # in a folder of results, if the schema is pathx's


@dataclass(frozen=True)
class PipedImage:
    """The bytes of an image from standard input, and its name."""

    file: str
    data: bytes = field(repr=False)

    def __str__(self) -> str:
        return self.file


@dataclass(frozen=True)
class ImageFile:
    """An image, or an input that leads to none.

    Args:
        file: the path or address as the user gave it, or below the folder that the user gave; of a frame, with its number.
        name: the folder of its results below the output folder: relative, never above it, and different for every image.
        error: why there is no image, such as for an empty folder.
        read_from: where it is, if not at `file`: in an archive, on standard input, at an address with secrets.
        version: changes when the image does, if a store tells that without reading it; otherwise empty.
        label: the name of the image's folder, if that may be its class (see `images_in`).
    """

    file: str
    name: str
    error: PathxError | None = None
    read_from: str | Member | PipedImage | None = None
    version: str = ""
    label: str | None = None

    @property
    def source(self) -> str | Member | PipedImage:
        """What to read it from."""
        return self.read_from or self.file


def find_images(
    inputs: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    stdin: BinaryIO | None = None,
    every: int | None = None,
) -> list[ImageFile]:
    """The images that the inputs lead to, each once, in an order that depends on nothing else.

    An input is an image, a folder, a pattern such as `photos/**/*.jpg`, an archive (`.tar`, `.parquet`) or an image in one
    (`shard.tar#KEY`), an `https://` or `s3://` address, a `.txt` file with a path per line, or `-` for an image or
    paths on standard input.
    Paths in lists are relative to the current folder and may be all of that but addresses, which only a user may give.

    Folders are searched recursively, without hidden files and without results: the folder `out`, folders to which pathx
    wrote a `run.json` or `path.json`, and folders named like an image (`cat.png/`). Symbolic links are followed, and each
    folder is searched once. A folder with archives but no images stands for the archives.

    Args:
        every: take every so-many-th frame of videos, animations and files of several pages as an image.
    """
    if every is not None and every < 1:
        raise PathxError(f"`every` takes 1 or more, not {every}: 10 is every tenth frame", usage=True)
    found: dict[str, ImageFile] = {}
    owners: dict[
        str, str
    ] = {}  # by folder of results, the absolute path of the image: another one needs another folder
    roots = list(_expand_inputs([os.fspath(one) for one in inputs], stdin))
    parts = [split_member(root) or (root, None) for root in roots if isinstance(root, str)]
    names = relative_names([address_name(place) if is_address(place) else place for place, _ in parts])
    places = iter(zip(parts, names, strict=True))
    for one in roots:
        if isinstance(one, ImageFile):
            found[one.name] = one
            continue
        (root, key), name = next(places)
        for below, error, version in _search(root, out, SUFFIXES if every is None else SUFFIXES | VIDEOS):
            file = _join(root, below)
            place, owner = str(PurePath(name, below)), file if is_address(file) else os.path.abspath(file)
            tries = chain([place], (f"{place}-{number}" for number in count(2)))
            place = next(one for one in tries if owners.setdefault(one, owner) == owner)
            for image in _images(ImageFile(file, place, error, version=version), every, key):
                found.setdefault(image.name, image)
    return [_without_secrets(image) for image in found.values()]


def _without_secrets(image: ImageFile) -> ImageFile:
    file = public_address(image.file)
    return image if file == image.file else replace(image, file=file, read_from=image.read_from or image.file)


def relative_names(files: Sequence[str]) -> list[str]:
    """The folder of each image's results below the output folder, different for all images.

    A relative path stays as it is. Of an absolute path, or one with `..`, the folder is the file's name, with as many of its
    parents as make it unique, and a number if they do not.
    """
    paths = [PurePath(file) for file in files]
    whole = {path: PurePath(os.path.abspath(path)).parts[1:] for path in paths if path.anchor or ".." in path.parts}
    names = {path: PurePath(*whole[path][-1:]) if path in whole else path for path in paths}
    for length in range(2, max(map(len, whole.values()), default=0) + 1):
        owners = Counter(names.values())
        for path, parts in whole.items():
            if owners[names[path]] > 1:
                names[path] = PurePath(*parts[-length:])
    taken = {str(names[path]) for path in paths if path not in whole}
    for path in whole:
        names[path] = PurePath(free_name(str(names[path]), taken))
        taken.add(str(names[path]))
    return [str(names[path]) for path in paths]


def _expand_inputs(inputs: Sequence[str], stdin: BinaryIO | None) -> Iterator[str | ImageFile]:
    """Files and folders, with lists and patterns expanded. A path that does not exist stays, and fails when it is opened."""
    for one in inputs:
        if one != "-" and not (one.lower().endswith(".txt") and os.path.isfile(one)):
            yield from _expand_pattern(one)
            continue
        what = "standard input" if one == "-" else f"the list {one}"
        try:
            piped = stdin or (sys.stdin and sys.stdin.buffer)  # None where the process has no standard input
            data = (piped.read() if piped else b"") if one == "-" else read_regular(one)
        except OSError as error:
            problem = PathxError(f"{what} cannot be read: {error.strerror or error}; check its permissions")
            yield ImageFile(one, one, problem)
            continue
        kind = next((kind for start, kind in _IMAGES if re.match(start, data, re.DOTALL)), None)
        if one == "-" and kind is not None:
            name = f"stdin.{kind}"
            yield ImageFile(name, name, read_from=PipedImage(name, data))
            continue
        paths = _parse_list(data)
        if not paths:
            yield ImageFile(one, one, PathxError(f"{what} names no image: give a path per line"))
        for path in paths:
            if is_address(path):
                refused = f"{shown(path)} is in {what}, and addresses in lists are not fetched"
                yield ImageFile(path, address_name(path), PathxError(f"{refused}: give it as an argument"))
            else:
                yield from _expand_pattern(path)


def _parse_list(data: bytes) -> list[str]:
    """The paths in a list: one per line, or separated by null characters, as from `find -print0`. A binary file has none."""
    if b"\0\0" in data:
        return []
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = data.split(b"\0") if b"\0" in data else [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line.strip()]


def _expand_pattern(path: str) -> Sequence[str | ImageFile]:
    if not glob.has_magic(path) or os.path.lexists(path):
        return [path]
    try:
        matched = stored_matches(path) if is_stored(path) else sorted(glob.glob(path, recursive=True))
    except PathxError as error:
        return [ImageFile(path, address_name(path), error)]
    return matched or [path]


def _images(found: ImageFile, every: int | None, key: str | None) -> Iterator[ImageFile]:
    """The image itself, its frames, or the images in an archive; with a key, only that image."""
    if found.error is not None or not is_archive(found.file):
        yield from _frames(found, every)
        return
    taken: set[str] = set()
    try:
        if is_address(found.file) and not is_stored(found.file):
            raise PathxError(f"{shown(found.file)} is an archive on the web: fetch it, and give the file")
        for member in members_in(found.file, found.version):
            if key is None or member.key == key:
                taken.add(place := free_name(str(PurePath(found.name, member.name)), taken))
                version = f"{member.version}@{member.place}" if member.version else ""
                yield ImageFile(str(member), place, None, member, version, member.label)
        if not taken:
            what = "no images" if key is None else f"no image {shown(key)}"
            raise PathxError(f"{shown(found.file)} holds {what}: give another archive, or another key")
    except PathxError as error:
        yield ImageFile(found.file, found.name, error)


def _frames(found: ImageFile, every: int | None) -> Iterator[ImageFile]:
    """The image itself, or its frames."""
    try:
        check_uncompressed(found.file)
        frames = None if every is None or found.error is not None else count_frames(found.file)
    except PathxError as error:
        found, frames = ImageFile(found.file, found.name, error), None
    if frames is None:
        yield found
        return
    for number in range(0, frames, every or 1):
        frame = Frame(found.file, number)
        yield ImageFile(str(frame), str(PurePath(found.name, frame.name)))


_Below = tuple[str, PathxError | None, str]
"""A file below a folder: its relative path, why it cannot be read, and its version in the store."""


def _search(root: str, out: str | Path | None, suffixes: frozenset[str]) -> list[_Below]:
    """The files below a folder; for a file only itself, with an empty path."""
    if is_stored(root):
        try:
            found = _search_store(root, out, suffixes | ARCHIVES)
        except PathxError as error:
            return [("", error, "")]
    elif os.path.isdir(root):
        found = list(_walk(root, out, suffixes | ARCHIVES))
    else:
        return [("", None, "")]
    found.sort(key=lambda one: PurePath(one[0]).parts)
    if any(error is None and not is_archive(_join(root, path)) for path, error, _ in found):
        found = [one for one in found if one[1] is not None or not is_archive(one[0])]  # archives of copies or labels
    if not found:
        listed = ", ".join(kind for _, kind in _IMAGES)
        problem = f"{root} holds no images: pathx looks for {listed} files, hidden ones and results aside"
        found = [("", PathxError(problem), "")]
    return found


def _join(root: str, below: str) -> str:
    if not below:
        return root
    return join_address(root, below) if is_stored(root) else os.path.join(PurePath(root), below)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _is_searched(folder: str) -> bool:
    """Whether a folder is neither hidden nor named like an image, as folders of results are."""
    return not folder.startswith(".") and _suffix(folder) not in SUFFIXES | VIDEOS | ARCHIVES


def _search_store(root: str, out: str | Path | None, suffixes: frozenset[str]) -> list[_Below]:
    """The files below a folder in a store, by the rules for local folders."""
    files = stored_files(root)
    if files is None:
        return [("", None, stored_version(root))]
    results = [join_address(out, "")] if out is not None and is_stored(out) else []
    for name in sorted((name for name in files if "/" in name and _OURS.fullmatch(posixpath.basename(name))), key=len):
        folder = join_address(root, posixpath.dirname(name) + "/")
        if not folder.startswith(tuple(results)) and begins_as_ours(fetch_part(join_address(root, name), 0, 64)):
            results.append(folder)
    return [
        (name, None, version)
        for name, version in files.items()
        if all(map(_is_searched, name.split("/")[:-1]))
        and not posixpath.basename(name).startswith(".")
        and _suffix(name) in suffixes
        and not join_address(root, name).startswith(tuple(results))
    ]


def _walk(root: str, out: str | Path | None, suffixes: frozenset[str]) -> Iterator[_Below]:
    """The files below a folder. Links come last, so that folders have their real names if possible."""
    results = _identity(out) if out is not None else None
    seen, unreadable = set(), list[OSError]()
    starts = [root]
    for start in starts:
        for folder, folders, files in os.walk(start, onerror=unreadable.append):
            identity, below = _identity(folder), os.path.relpath(folder, root)
            is_results = identity in {results} - {None} or any(
                _OURS.fullmatch(name) and written_by_pathx(os.path.join(folder, name)) for name in files
            )
            if identity in seen or (is_results and below != "."):
                folders.clear()
                continue
            seen.add(identity)
            ours = _results_in(folder)
            folders[:] = sorted(name for name in folders if _is_searched(name) and name not in ours)
            starts += [path for name in folders if os.path.islink(path := os.path.join(folder, name))]
            for name in files:
                if _suffix(name) in suffixes and not name.startswith(".") and name not in ours:
                    yield os.path.normpath(os.path.join(below, name)), None, ""
    for error in unreadable:
        problem = f"the folder {error.filename} cannot be read: {error.strerror or error}; check its permissions"
        yield os.path.relpath(error.filename, root), PathxError(problem), ""


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _results_in(folder: str) -> frozenset[str]:
    """The files that pathx wrote to a folder, beside those of others."""
    try:
        listed = json.loads(read_regular(os.path.join(folder, MARKER)))["files"]
        return frozenset(filter(lambda name: isinstance(name, str), listed))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()


def images_in(places: Sequence[str | Path], out: str | Path | None = None) -> list[ImageFile]:
    """The images that folders, patterns, lists and files lead to, except in the folder `out`, labelled by their folders.

    An image directly in the one folder that the user named has no label. Missing images are in the list with their error; if all
    are missing, that is raised.
    """
    named = {os.path.abspath(place) for place in places}
    images = []
    for found in find_images(places, out=out):
        error = found.error
        if isinstance(found.source, Member):
            images.append(found)
            continue
        if error is None and not (os.path.exists(found.file) or is_address(found.file)):
            error = PathxError(f"{shown(found.file)}: no such file or folder; check the path")
        folder = os.path.dirname(os.path.abspath(found.file))
        below = (folder not in named or len(named) > 1) and os.path.abspath(found.file) not in named
        images.append(replace(found, error=error, label=os.path.basename(folder) if below else None))
    first = next((image.error for image in images if image.error is not None), None)
    if first is not None and all(image.error is not None for image in images):
        raise PathxError(str(first), usage=True)
    return images
