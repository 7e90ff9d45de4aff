"""Files as pathx writes them: whole or not at all, whoever else writes beside and whatever ends the process.

Files of JSON lines grow: several threads and processes may add to them, and a crash may tear the last line.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePath
from typing import Any

from pathx.errors import PathxError, shown
from pathx.regular import MARKER, NOT_REGULAR, open_regular, path_problem, read_regular, written_by_pathx
from pathx.results.schema import document_bytes, read_document
from pathx.stores import is_stored, scheme_problem

try:
    import fcntl
except ImportError:  # Windows: two runs at once should not share a folder there
    fcntl = None  # type: ignore[assignment]

PATH = "path.json"
"""The document of an explanation; its presence means that the files beside it are there and belong to it."""

FILES = {
    "figure": "figure.png",
    "heatmap": "heatmap.png",
    "overlay": "overlay.png",
    "tensors": "tensors.safetensors",
}
"""What may lie beside a path.json, by the names that it calls them by."""

REPORT, REPORT_DATA = "report.html", "report.json"
"""The page of an explanation beside its path.json, and what the network adds to it; both go when it is replaced."""

SETTINGS = ("depth", "width", "alpha", "skips", "importance")
"""How an explanation was made, as its documents say it."""

DECOMPOSITION, SHEET = "decomposition.json", "sheet.png"
CONTRAST, CONTRAST_PICTURE = "contrast.json", "contrast.png"


class Kind(Enum):
    """What was made; the value is the document that makes its files whole."""

    explanation = PATH
    decomposition = DECOMPOSITION
    contrast = CONTRAST
    sheet = ""


@dataclass(frozen=True, eq=False)
class ResultFiles:
    """The files of one result, to be written.

    Args:
        documents: by their names; the last one makes the result whole.
        contents: pictures and tensors by their names.
    """

    kind: Kind
    documents: dict[str, dict[str, Any]]
    contents: dict[str, bytes]

    @property
    def document(self) -> dict[str, Any]:
        return self.documents[self.kind.value]

    @property
    def names(self) -> tuple[str, ...]:
        """What belongs to the result, its document last: what is written, and what of older files is still true."""
        folders = [entry for entry in self.document.get("features", ()) if entry["folder"]]
        features = [f"{entry['folder']}/{name}" for entry in folders for name in entry["files"].values()]
        return (*self.document["files"].values(), *features, self.kind.value)

    def all_bytes(self) -> dict[str, bytes]:
        """Every file by its name, documents last."""
        return self.contents | {name: document_bytes(document) for name, document in self.documents.items()}


_CALLED = frozenset((PATH, *FILES.values(), DECOMPOSITION, SHEET, CONTRAST, CONTRAST_PICTURE))

MARKER_SCHEMA = "pathx/files@1"
_PART = re.compile(r"\.pathx-[0-9a-f]{16}\.part")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class NoRoomError(PathxError):
    """Nothing more can be written: the disk is full, or can only be read by now."""


def check_folder(out: str | Path) -> None:
    """Refuse an output folder that cannot be written to, before any work and without making it."""
    if is_stored(out):
        return  # who may write there shows when the run begins
    reason = scheme_problem(out) or path_problem(out)
    there = next((path for path in (Path(out), *Path(out).parents) if os.path.lexists(path)), Path())
    if reason is None and os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK):
        return
    reason = reason or ("permission denied" if os.path.isdir(there) else f"{shown(there)} is not a folder")
    problem = f"cannot write to the output folder {shown(out)} ({reason})"
    raise PathxError(f"{problem}: choose another with `out`", usage=True)


def unwritable(place: Path, error: OSError) -> PathxError:
    """For results that cannot be written."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        remedy = (
            "choose another folder with `out`"
            if error.errno == errno.EROFS
            else "make room, then run it again to continue"
        )
        return NoRoomError(f"cannot write to {shown(place)} ({reason}): {remedy}")
    return PathxError(f"cannot write results to {shown(place)} ({reason}): choose another folder with `out`")


def foreign(file: Path) -> PathxError:
    """For a file in the place of one of ours that somebody else wrote."""
    return PathxError(
        f"{shown(file)} was not written by pathx and is left alone: choose another folder with `out`", usage=True
    )


def is_result(name: str) -> bool:
    """Whether a path from an output folder may be that of a result: called as pathx calls them, and never outside.

    An index may have been written by somebody else. What is named in it is only touched where this holds.
    """
    path = PurePath(name)
    stays = not path.anchor and ".." not in path.parts and "\0" not in name
    return stays and len(path.parts) > 1 and path.name in _CALLED


def is_inside(folder: Path, out: str | Path) -> bool:
    """Whether no link leads from an output folder to elsewhere on the way to a folder below it."""
    return folder.resolve().is_relative_to(Path(out).resolve())


def check_inside(folder: Path, out: str | Path) -> None:
    """Refuse a folder of results that a link leads out of the output folder: what is there is not ours to replace."""
    if not is_inside(folder, out):
        raise PathxError(
            f"{shown(folder)} is outside of {shown(out)} by a link, and is left alone: remove the link, or choose "
            "another folder with `out`"
        )


# Writing


class Replacement:
    """Files that take the place of older ones: all are written under other names first, then named in one go.

    So a disk that fills up leaves what was there as it was. Made by `replace_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts: dict[str, Path] = {}

    def put(self, name: str, data: bytes) -> None:
        """Write a file for later. Its name may lead to a folder below."""
        file = self.folder / name
        if file.suffix == ".json" and os.path.lexists(file) and not written_by_pathx(file):
            raise foreign(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        part = self._parts[name] = self.folder / f".pathx-{secrets.token_hex(8)}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def commit(self, gone: Sequence[str] = ()) -> None:
        """Remove older files, then name the new ones in the order in which they were put.

        Args:
            gone: names of files, those first that say that others are there.
        """
        left = [name for name in self._parts if not os.path.lexists(self.folder / name)]
        try:
            for name in gone:
                with suppress(FileNotFoundError):
                    (self.folder / name).unlink()
                    left = [*gone, *self._parts]
            for name, part in self._parts.items():
                os.replace(part, self.folder / name)
        except BaseException:
            remove(self.folder, left)  # what does not belong together
            raise
        finally:
            self.drop()

    def drop(self) -> None:
        """Remove what was written for later."""
        while self._parts:
            _, part = self._parts.popitem()
            with suppress(OSError):
                part.unlink(missing_ok=True)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Replacement]:
    """Files of a folder, and of folders in it, to be replaced while no other run changes it. Raises PathxError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked_folder(folder):
            _remove_parts(folder)
            new = Replacement(folder)
            try:
                yield new
            finally:
                new.drop()
    except OSError as error:
        raise unwritable(folder, error) from error


def replace_files(folder: Path, contents: Mapping[str, bytes], gone: Sequence[str] = ()) -> None:
    """Replace files of a folder by their names, all or none; see `Replacement.commit`."""
    with replace_folder(folder) as new:
        for name, data in contents.items():
            new.put(name, data)
        new.commit(gone)


def replace_file(file: Path, data: bytes) -> None:
    """Write a file so that at any time there is the old one or the new one."""
    replace_files(file.parent, {file.name: data})


def check_own(folder: Path, names: Iterable[str]) -> None:
    """Refuse to write to a folder where somebody else's files have these names."""
    listed = own_files(folder)
    there = [name for name in names if name not in listed and os.path.lexists(folder / name)]
    if not any(written_by_pathx(folder / name) for name in there):  # else it is a folder of an older version
        for name in there:
            raise foreign(folder / name)


def replace_own(file: Path, data: bytes) -> None:
    """Write a file to a folder that others may write to as well, once it is on the list of what is ours there."""
    check_own(file.parent, [file.name])
    mark(file.parent, [file.name])
    replace_file(file, data)


def mark(folder: Path, names: Iterable[str]) -> None:
    """Add to the list of files in a folder that are ours."""
    listed = own_files(folder)
    if not listed.issuperset(names):
        document = {"schema": MARKER_SCHEMA, "files": sorted(listed.union(names))}
        replace_file(folder / MARKER, document_bytes(document))


def own_files(folder: Path) -> set[str]:
    """The files in a folder that its list says are ours."""
    try:
        listed = read_document(folder / MARKER).get("files")
    except PathxError:
        return set()
    return set(filter(lambda name: isinstance(name, str), listed)) if isinstance(listed, list) else set()


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files as far as they can be removed."""
    for name in names:
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def remove_parts(folder: Path) -> None:
    """Remove what a run that was killed left half-written in a folder, as far as there is such a folder."""
    with suppress(OSError), locked_folder(folder):
        _remove_parts(folder)


def _remove_parts(folder: Path) -> None:
    """The same where the folder is locked: what is half-written now is nobody's."""
    with os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if _PART.fullmatch(entry.name)]:
            (folder / name).unlink(missing_ok=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """While in here, no other run is, where the file system has locks."""
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def hold(file: Path) -> int:
    """Open a file and show, until it is closed, that it is in use; others may do so as well."""
    descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def is_held(file: Path, *, unsure: bool = False) -> bool:
    """Whether somebody shows that a file is in use; `unsure` where the file system has no locks."""
    if fcntl is None:
        return unsure
    with open_regular(file) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return unsure
    return False


def lock(descriptor: int) -> None:
    """Wait until nobody else has locked the file, and lock it until it is closed; where the file system has locks."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)


# JSON lines


Line = dict[str, Any]

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
"""A link in the place of such a file leads to one that is not ours to add lines to."""


class JsonLines:
    """A file of JSON lines. What is torn or no JSON object is left out when it is read and cut off when it is added to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._synced = 0.0

    def read(self) -> list[Line]:
        """The lines that are whole; none where there is no such file. Raises OSError."""
        try:
            return _parse_lines(read_regular(self.file))
        except FileNotFoundError:
            return []

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines in one write: all of them or none. Raises OSError."""
        data = lines_bytes(lines)
        with self.lock() as descriptor:
            before = _cut_broken_line(descriptor)
            try:
                if os.write(descriptor, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
            if time.monotonic() - self._synced > 1:  # lines are quickly made again; results are synced one by one
                os.fsync(descriptor)
                self._synced = time.monotonic()

    def rewrite(self, change: Callable[[list[Line]], Iterable[Mapping[str, Any]]]) -> None:
        """Replace the lines, while nobody adds any. Raises OSError or PathxError."""
        with self.lock() as descriptor:
            before = _read(descriptor)
            after = lines_bytes(change(_parse_lines(before)))
            if after != before:
                replace_file(self.file, after)

    @contextmanager
    def lock(self) -> Iterator[int]:
        """The file, opened for appending; nobody else appends to it or replaces it meanwhile, where the file system has locks."""
        while True:
            descriptor = os.open(self.file, _FLAGS, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(self.file))
                lock(descriptor)
                if _is_still(self.file, descriptor):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)


def lines_bytes(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _parse_lines(data: bytes) -> list[Line]:
    lines = []
    for text in data.split(b"\n"):
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict):
                lines.append(line)
    return lines


def _cut_broken_line(descriptor: int) -> int:
    """Cut off a last line that has no end, and say how long the file is then."""
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(0, end - 4096)
        os.lseek(descriptor, start, os.SEEK_SET)
        at = os.read(descriptor, end - start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
    return end


def _is_still(file: Path, descriptor: int) -> bool:
    """Whether nobody replaced the file while we waited for it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> bytes:
    with open(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        return stream.read()
