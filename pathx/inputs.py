"""Which pictures a user means: files, folders, patterns, lists of paths, and where the results of each one go."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path, PurePath
from typing import BinaryIO

from pathx.errors import PathxError

_KINDS = "jpg jpeg jpe jfif png apng gif webp bmp dib tif tiff ppm pgm pbm pnm"
SUFFIXES = frozenset(f".{kind}" for kind in _KINDS.split())
"""What a picture in a folder is told by. Files that are named one by one may be called anything."""

_OURS = re.compile(r"(path|run)(\..*)?\.json")  # what tells a folder of results, if its schema is one of pathx


@dataclass(frozen=True)
class Found:
    """A picture, or an input that leads to none.

    Args:
        file: the path as the user gave it, or that of the folder with the rest behind.
        name: where its results go below an output folder: relative, never climbing, and never another picture's.
        error: why there is no picture, such as for a folder without any.
    """

    file: str
    name: str
    error: PathxError | None = None


def find_pictures(
    inputs: Sequence[str | Path], *, out: str | Path | None = None, stdin: BinaryIO | None = None
) -> list[Found]:
    """The pictures that the inputs lead to, each once, in an order that depends on nothing else.

    An input is a picture, a folder, a pattern such as `photos/**/*.jpg`, a `.txt` file with a path per line, or `-` for
    paths on standard input. Paths in lists may be folders and patterns too; they are relative to the current folder.

    Folders are searched with all that is below them. Hidden files are left out, and so are results: the folder `out`, folders
    that pathx wrote a `run.json` or `path.json` to, and folders called like a picture (`cat.png/`). Symbolic links are
    followed; a folder that several lead to is searched once, loops or not.
    """
    found: dict[str, Found] = {}
    sources: dict[str, str] = {}  # by name: the absolute path, to tell the same picture from another of its name
    roots = list(_expanded([os.fspath(one) for one in inputs], stdin))
    names = iter(relative_names([root for root in roots if isinstance(root, str)]))
    for root in roots:
        if isinstance(root, Found):
            found[root.name] = root
            continue
        name = next(names)
        for below, error in _searched(root, out):
            file = os.path.join(PurePath(root), below) if below else root
            place = str(PurePath(name, below))
            source = os.path.abspath(file)
            tries = chain([place], (f"{place}-{number}" for number in count(2)))
            place = next(one for one in tries if sources.get(one, source) == source)
            if place not in found:
                sources[place] = source
                found[place] = Found(file, place, error)
    return list(found.values())


def relative_names(files: Sequence[str]) -> list[str]:
    """Where each picture's results go below the output folder; two pictures never share a place.

    A relative path stays as it was given. Of an absolute one, or one that climbs (`..`), the file's name is taken, with
    as many of its parents as it takes to tell it from others of that name, and a number where there are no more.
    """
    paths = [PurePath(file) for file in files]
    whole = {path: PurePath(os.path.abspath(path)).parts[1:] for path in paths if path.anchor or ".." in path.parts}
    names = {path: PurePath(*whole[path][-1:]) if path in whole else path for path in paths}
    for length in range(2, max(map(len, whole.values()), default=0) + 1):
        owners = Counter(names.values())
        for path, parts in whole.items():
            if owners[names[path]] > 1:
                names[path] = PurePath(*parts[-length:])
    taken = {names[path] for path in paths if path not in whole}
    for path in whole:
        tries = (PurePath(f"{names[path]}-{number}") for number in count(2))
        names[path] = next(name for name in chain([names[path]], tries) if name not in taken)
        taken.add(names[path])
    return [str(names[path]) for path in paths]


def _expanded(inputs: Sequence[str], stdin: BinaryIO | None) -> Iterator[str | Found]:
    """Files and folders, without lists and patterns; a path that is neither stays, and fails when it is opened."""
    for one in inputs:
        if one != "-" and not (one.lower().endswith(".txt") and os.path.isfile(one)):
            yield from _matches([one])
            continue
        what = "standard input" if one == "-" else f"the list {one}"
        try:
            paths = _listed((stdin or sys.stdin.buffer).read() if one == "-" else Path(one).read_bytes())
        except OSError as error:
            problem = PathxError(f"{what} cannot be read: {error.strerror or error}; check who may read it")
            yield Found(one, one, problem)
            continue
        if not paths:
            yield Found(one, one, PathxError(f"{what} names no picture: give a path per line"))
        yield from _matches(paths)


def _listed(data: bytes) -> list[str]:
    """The paths of a list: one per line, or ended by null characters as `find -print0` does."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    lines = data.split(b"\0") if b"\0" in data else [line.removesuffix(b"\r") for line in data.split(b"\n")]
    return [os.fsdecode(line) for line in lines if line.strip()]


def _matches(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        matched = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) and not os.path.lexists(path) else []
        yield from matched or [path]


def _searched(root: str, out: str | Path | None) -> list[tuple[str, PathxError | None]]:
    """What is below a folder, as relative paths; for a file nothing but itself, as an empty path."""
    if not os.path.isdir(root):
        return [("", None)]
    found = sorted(_walked(root, out), key=lambda one: PurePath(one[0]).parts)
    if not found:
        listed = ", ".join(("jpg", "png", "gif", "webp", "bmp", "tif", "ppm"))
        found = [
            ("", PathxError(f"{root} holds no pictures: pathx looks for {listed} files, hidden ones and results aside"))
        ]
    return found


def _walked(root: str, out: str | Path | None) -> Iterator[tuple[str, PathxError | None]]:
    results = _identity(out) if out is not None else None
    seen = set()
    waiting: list[str] = [""]
    linked: list[str] = []  # come last, so that a folder that can be reached without them keeps its own name
    while waiting or linked:
        below = waiting.pop() if waiting else linked.pop()
        folder = os.path.join(root, below)
        identity = _identity(folder)
        if identity in seen or (below and identity == results):
            continue
        seen.add(identity)
        try:
            with os.scandir(folder) as listing:
                entries = sorted((entry for entry in listing if not entry.name.startswith(".")), key=lambda e: e.name)
        except OSError as error:
            yield (
                below,
                PathxError(f"the folder {folder} cannot be read: {error.strerror or error}; check who may read it"),
            )
            continue
        if below and any(_OURS.fullmatch(entry.name) and _written_by_pathx(entry.path) for entry in entries):
            continue
        folders: list[str] = []
        links: list[str] = []
        for entry in entries:
            path = os.path.join(below, entry.name)
            named_as_picture = os.path.splitext(entry.name)[1].lower() in SUFFIXES
            if not _is_folder(entry):
                if named_as_picture:
                    yield path, None
            elif not named_as_picture:
                (links if entry.is_symlink() else folders).append(path)
        waiting += reversed(folders)
        linked = [*reversed(links), *linked]


def _identity(path: str | Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads nowhere, or in circles
        return False


def _written_by_pathx(file: str) -> bool:
    try:
        with open(file, "rb") as stream:
            return re.match(rb'\s*\{\s*"schema": "pathx/', stream.read(64)) is not None
    except OSError:
        return False
