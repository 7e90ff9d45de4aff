"""What became of an image, and where its results are: in a folder, at an address such as `s3://`, or packed into shards at either.

Results go to a plain folder one by one. Anywhere else the files of an image go together (`commit`), and the line of the
index comes after that.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path, PurePath
from threading import Lock
from typing import Any

from pathx.errors import PathxError, shown
from pathx.regular import open_regular, path_problem, read_regular
from pathx.results.files import (
    FILES,
    PATH,
    Kind,
    Line,
    ResultFiles,
    check_inside,
    is_inside,
    is_result,
    remove_parts,
    replace_file,
)
from pathx.results.older import remove_others, replace_results
from pathx.results.packs import ShardWriter, packed_bytes
from pathx.stores import Address, fetch_part, is_stored, join_address, open_stored, store_errors, store_of

LINES_EVERY = 5.0
"""Seconds after which lines of an index go to an address, in a file of their own."""

_RECORDS = re.compile(r"run(\.\d+-of-\d+)?\.json|index(\.\d+-of-\d+)?\.jsonl")
_PART = re.compile(r"(index(?:\.\d+-of-\d+)?\.jsonl)-\d+-[0-9a-f]+\.part")
_LOCK = Lock()  # of all stores: these are sent to other processes, and locks cannot be


class State(Enum):
    """`done`: its files are written. `kept`: an earlier run has done it in the same way. `failed`: there is nothing."""

    done = "done"
    kept = "kept"
    failed = "failed"


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """An explanation of one class, a decomposition, a contrast or a sheet whose files are there, or why they are not.

    Args:
        file: the image as the user gave it; of a sheet, its folder.
        folder: where the files are; nowhere if it failed.
        document: what the document in the folder says; empty if it failed.
        files: the names of all files below the folder, the document last.
        made: the explanation, decomposition or contrast, where it was computed just now.
        predictions: the best classes of the image, (label, probability) each.
        truth: the label of the image, where it is known.
        notes: what a user should know about it, such as how the image was read.
        replaced: how the results of other settings that were in its place had been made.
        error: why it failed.
    """

    file: str
    state: State
    kind: Kind = Kind.explanation
    folder: Path = Path()
    document: dict[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    made: Any = None
    predictions: tuple[tuple[str, float], ...] = ()
    truth: str | None = None
    notes: tuple[str, ...] = ()
    replaced: str = ""
    error: PathxError | None = None

    def __repr__(self) -> str:
        said = f": {self.error}" if self.error is not None else f" in {self.folder}"
        return f"<Result {self.state.value}, {self.kind.name} of {self.file}{said}>"

    @staticmethod
    def failure(file: str, error: PathxError) -> Result:
        """For what could not be done."""
        return Result(file, State.failed, error=error)

    @property
    def failed(self) -> bool:
        return self.state is State.failed


def result_store(out: str | Path, pack: str | None = None) -> ResultStore:
    """The store that an output folder or address names. Raises PathxError.

    Args:
        pack: `tar` or `parquet`, to pack results into shards.
    """
    if is_stored(out):
        return RemoteStore(os.fspath(out), pack)
    _check_path(out)
    return ResultStore(out, pack)


class ResultStore:
    """Results in a folder.

    Args:
        place: where results are, to be shown.
        records: the folder with run.json and the index.
        in_place: whether results are written one by one where they stay.
    """

    in_place = True

    def __init__(self, out: str | Path, pack: str | None = None) -> None:
        self.place: PurePath = Path(out)
        self.records = Path(out)
        self._shards = None if pack is None else ShardWriter(pack, self.put)
        self.in_place = self.in_place and pack is None

    def open(self) -> None:
        """Make ready for a run: remove what a run that was killed left half-written. Raises PathxError."""
        remove_parts(self.records)

    def write(self, folder: PurePath, files: ResultFiles) -> str:
        """Write a result where it stays; how results were made that go. Raises PathxError."""
        where = self.records / folder
        check_inside(where, self.records)
        replaced = remove_others(where, files.documents[PATH]) if PATH in files.documents else ""
        replace_results(where, files)
        return replaced

    def commit(self, files: Mapping[str, bytes], line: Line) -> tuple[PurePath, list[Line]]:
        """Write all files of an image by their paths, where they are not in place.

        Gives what their folders are below then, and the lines of the index that are true then. Raises PathxError.
        """
        if not files:
            return self.place, [line]
        if self._shards is not None:
            shard, lines = self._shards.add(files, line)
            return self.place / shard, lines
        self._upload(files)
        return self.place, [line]

    def flush(self) -> list[Line]:
        """Write the shard that is being collected: the lines that are true then, those of images that were lost included."""
        return [] if self._shards is None else self._shards.flush()

    def where(self, made: Line) -> PurePath:
        """Where results are that a line of the index tells of."""
        where: PurePath = self.place / made.get("pack", "") / made["folder"]
        return where

    def document(self, made: Line) -> Any:
        """The document of results that a line of the index tells of, where these are whole: as written, with all their files.

        Anything else is an OSError, a ValueError, a TypeError or a PathxError.
        """
        names = [f"{made['folder']}/{name}" for name in (made["document"], *made["files"])]
        if "pack" in made:
            data = packed_bytes(self.read, made["pack"], made["at"])
        elif all(map(is_result, names)):
            data = self._read_among(names)
        else:
            raise ValueError("no names of results")
        if hashlib.sha256(data).hexdigest() != made["sha256"]:
            raise ValueError("not what was written")
        return json.loads(data)

    def forget(self, older: Line, newer: Line) -> None:
        """Remove files of earlier results of an image, whose place others have taken."""
        if not self.in_place:
            gone = files_of(older) - files_of(newer)
            self.remove(sorted(gone, key=lambda name: not name.endswith(".json")))

    def close(self) -> None:
        """Remove what was needed on the way."""

    # What differs at an address

    def read(self, name: str, place: tuple[int, int] | None) -> Any:
        """Bytes of a shard from a place on, or the shard opened. Raises OSError and PathxError."""
        stream = open_regular(self.records / name)
        if place is None:
            return stream
        with stream:
            stream.seek(place[0])
            return stream.read(min(place[1], os.fstat(stream.fileno()).st_size))

    def put(self, name: str, data: bytes) -> None:
        """Write a shard. Raises PathxError."""
        replace_file(self.records / name, data)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files as far as they can be removed, and folders that are empty then."""
        for name in names:
            file = self.records / name
            with suppress(OSError):
                if is_inside(file.parent, self.records):
                    file.unlink()
                    _remove_empty(file.parent, self.records)

    def publish(self, files: Sequence[Path], gone: Sequence[str] = ()) -> None:
        """Take note that records were written again, and that others are gone. Raises PathxError."""

    def log(self, file: Path, line: Line) -> None:
        """Take note of a line that was added to an index. Raises PathxError."""

    def _upload(self, files: Mapping[str, bytes]) -> None:
        """Write files by their paths. Raises PathxError."""

    def _read_among(self, names: Sequence[str]) -> bytes:
        """The first of these files, where all of them are there. Raises OSError and PathxError."""
        for name in names:
            os.stat(self.records / name)
        return read_regular(self.records / names[0])


class RemoteStore(ResultStore):
    """Results at an address that fsspec knows: uploaded file by file, documents last, then lines of the index, a few at a time."""

    in_place = False

    def __init__(self, address: str, pack: str | None = None) -> None:
        super().__init__(Path(tempfile.gettempdir(), f"pathx-{secrets.token_hex(8)}"), pack)
        self.address, self.place = address, Address(address)
        self._parts: dict[str, list[str]] = {}
        self._waiting: list[Line] = []
        self._last, self._index = time.monotonic(), ""

    def open(self) -> None:
        self.records.mkdir(parents=True, exist_ok=True)
        with store_errors(self.address):
            system, path = self._system()
            system.invalidate_cache()
            try:
                listed = system.ls(path or "/", detail=True)
            except FileNotFoundError:
                listed = []
            entries = sorted(listed, key=lambda entry: (_time_of(entry), entry["name"]))
            names = [posixpath.basename(entry["name"].rstrip("/")) for entry in entries]
            for number, name in enumerate(filter(_RECORDS.fullmatch, names)):
                with suppress(FileNotFoundError):  # another shard has merged it since
                    system.get_file(f"{path}/{name}", str(self.records / name))
                    os.utime(self.records / name, (number, number))  # as old as they are there
            for found in filter(None, map(_PART.fullmatch, sorted(names))):
                self._parts.setdefault(found[1], []).append(found[0])
                with suppress(FileNotFoundError), (self.records / found[1]).open("ab") as stream:
                    stream.write(system.cat_file(f"{path}/{found[0]}"))

    def read(self, name: str, place: tuple[int, int] | None) -> Any:
        address = join_address(self.address, name)
        return open_stored(address) if place is None else fetch_part(address, *place)

    def put(self, name: str, data: bytes) -> None:
        self._upload({name: data})

    def remove(self, names: Iterable[str]) -> None:
        system, path = self._system()
        for name in names:
            with suppress(Exception):  # it may be gone, and is in nobody's way
                system.rm_file(f"{path}/{name}")

    def publish(self, files: Sequence[Path], gone: Sequence[str] = ()) -> None:
        with store_errors(self.address):
            system, path = self._system()
            for file in filter(Path.is_file, files):
                system.put_file(str(file), f"{path}/{file.name}")
        for file in files:
            self.remove(self._parts.pop(file.name, ()))  # what they say is in it
            with _LOCK:
                self._waiting = [] if file.name == self._index else self._waiting
        self.remove([*gone, *(part for name in gone for part in self._parts.pop(name, ()))])

    def log(self, file: Path, line: Line) -> None:
        with _LOCK:
            self._index = file.name
            self._waiting.append(line)
            if time.monotonic() - self._last > LINES_EVERY:
                self._flush_lines()

    def _flush_lines(self) -> None:
        if self._waiting:
            name = f"{self._index}-{time.time_ns():020d}-{secrets.token_hex(4)}.part"
            self._upload({name: "".join(json.dumps(line) + "\n" for line in self._waiting).encode()})
            self._parts.setdefault(self._index, []).append(name)
            self._waiting.clear()
        self._last = time.monotonic()

    def close(self) -> None:
        try:
            with _LOCK:
                self._flush_lines()
        finally:
            shutil.rmtree(self.records, ignore_errors=True)

    def _upload(self, files: Mapping[str, bytes]) -> None:
        system, path = self._system()
        for name, data in files.items():
            with store_errors(join_address(self.address, name)):
                system.pipe_file(f"{path}/{name}", data)

    def _read_among(self, names: Sequence[str]) -> bytes:
        with store_errors(self.address):
            system, path = self._system()
            folder = f"{path}/{posixpath.dirname(names[0])}"
            data: bytes = system.cat_file(f"{path}/{names[0]}")
            system.invalidate_cache(folder)
            there = {name[len(path) + 1 :] for name in system.find(folder)}
        if not there.issuperset(names):
            raise ValueError("some files are gone")
        return data

    def _system(self) -> tuple[Any, str]:
        """The file system, and the path there, without a slash at its end. Raises PathxError."""
        system, path = store_of(self.address)
        return system, path.rstrip("/")


def check_in_folders(place: str | Path) -> None:
    """Refuse results that are not in folders of this machine, where these are needed."""
    if is_stored(place):
        raise PathxError(f"{place} is in a store: copy it to a folder of this machine first", usage=True)
    _check_path(place)
    if any(Path(place).glob("results-*-*.tar")) or any(Path(place).glob("results-*-*.parquet")):
        raise PathxError(
            f"{shown(place)} holds packed results: run `pathx merge --unpack FOLDER` on it first", usage=True
        )


def _check_path(place: str | Path) -> None:
    if (reason := path_problem(place)) is not None:
        raise PathxError(f"{shown(place)} cannot be a folder ({reason}): check the path", usage=True)


def results_of(line: Line) -> Iterator[Line]:
    """What a line of an index says of each of an image's results."""
    yield from line.get("explanations", ())
    if "contrast" in line:
        yield line["contrast"]


def files_of(line: Line) -> set[str]:
    """The files of an image's results that are in no shard, those included that a contrast rests on."""
    plain = [made for made in results_of(line) if "pack" not in made]
    found = {(PurePath(made["folder"]) / name).as_posix() for made in plain for name in made.get("files", ())}
    if "contrast" in line and line.get("explanations"):
        first, *others = line["explanations"]
        own = [name for name in first.get("files", ()) if name in (PATH, *FILES.values())] + [PATH]
        folders = [f"{first['folder']}-against-{PurePath(other['folder']).name}" for other in others]
        found |= {f"{folder}/{name}" for folder in folders for name in own if "pack" not in first}
    return set(filter(is_result, found))


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove a folder and those above it, up to a root, as far as they are empty. Raises OSError."""
    while folder != root and root in folder.parents:
        folder.rmdir()
        folder = folder.parent


def _time_of(entry: dict[str, Any]) -> float:
    """When a file at an address was written, as far as its store tells."""
    known = (entry.get(key) for key in ("LastModified", "last_modified", "mtime", "updated", "created"))
    value = next((one for one in known if one is not None), 0.0)
    if isinstance(value, datetime):
        return value.timestamp()
    return float(value) if isinstance(value, (int, float)) else 0.0
