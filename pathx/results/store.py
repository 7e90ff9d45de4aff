"""What became of an image, and where its results are: in a folder, at an address such as `s3://`, or packed into shards at either.

Results of a plain folder are written where they stay. Others are written to a folder of this machine first; `commit` takes
them from there, and the line of the index comes after that.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from pathlib import Path, PurePath
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

from pathx.errors import PathxError, shown
from pathx.regular import open_regular, path_problem
from pathx.results.files import FILES, PATH, is_inside, is_result, remove_parts, unwritable, whole_document
from pathx.results.lines import Line
from pathx.results.packs import ShardWriter, failed_line, packed_bytes
from pathx.stores import Address, fetch_part, is_stored, join_address, open_stored, store_errors, store_of

if TYPE_CHECKING:
    from pathx.contrast import Contrast
    from pathx.decomposition import Decomposition
    from pathx.explanation import Explanation

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


class Kind(Enum):
    """What was made; the value is the document that makes its files whole."""

    explanation = "path.json"
    decomposition = "decomposition.json"
    contrast = "contrast.json"
    sheet = ""


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
    made: Explanation | Decomposition | Contrast | None = None
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

    @property
    def explanation(self) -> Explanation:
        """What was made, where that is an explanation."""
        return self._require(Kind.explanation)  # type: ignore[return-value]

    @property
    def decomposition(self) -> Decomposition:
        """What was made, where that is a decomposition."""
        return self._require(Kind.decomposition)  # type: ignore[return-value]

    @property
    def contrast(self) -> Contrast:
        """What was made, where that is a contrast."""
        return self._require(Kind.contrast)  # type: ignore[return-value]

    def _require(self, kind: Kind) -> Explanation | Decomposition | Contrast:
        if self.kind is not kind or self.made is None:
            raise AttributeError(
                f"this is a {self.kind.name} that is {self.state.value}: there is no {kind.name} in it"
            )
        return self.made


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
        results: the folder that they are written to first.
        records: the folder with run.json and the index.
    """

    def __init__(self, out: str | Path, pack: str | None = None) -> None:
        self.place: PurePath = Path(out)
        self.results = self.records = Path(out)
        self._shards: ShardWriter | None = None
        if pack is not None:
            self.results, self._shards = _staging_folder(), ShardWriter(self.records, pack, self.put)

    def open(self) -> None:
        """Make ready for a run: remove what a run that was killed left half-written. Raises PathxError."""
        remove_parts(self.records)
        if self._shards is not None:
            self._shards.remove_abandoned()

    def commit(self, results: Sequence[Result], line: Line) -> tuple[list[Result], list[Line]]:
        """Bring what was written of an image where it belongs; with the lines of the index that are true then."""
        if self.results == self.records:
            return list(results), [line]
        files = _take(self.results, results)
        place, lines = self.place, [line]
        try:
            if self._shards is None:
                self._upload(files)
            elif files:
                shard, lines = self._shards.add(files, line)
                place = self.place / shard
        except PathxError as error:
            return [Result.failure(line["file"], error)], [failed_line(line, error)]
        return [self._at_place(result, place) for result in results], lines

    def _at_place(self, result: Result, place: PurePath) -> Result:
        """A result that says where its files are by now."""
        if result.failed:
            return result
        return replace(result, folder=cast(Path, place / result.folder.relative_to(self.results)))

    def flush(self) -> list[Line]:
        """Finish the shard that is open: the lines that are true then, those of images that were lost included."""
        return [] if self._shards is None else self._shards.flush()

    def where(self, made: Line) -> PurePath:
        """Where results are that a line of the index tells of."""
        where: PurePath = self.place / made.get("pack", "") / made["folder"]
        return where

    def document(self, made: Line) -> Any:
        """The document of whole results, as `whole_document` has it, that a line of the index tells of."""
        if "pack" in made:
            data = packed_bytes(self.read, made["pack"], made["at"])
            if hashlib.sha256(data).hexdigest() != made["sha256"]:
                raise ValueError("not what was written")
            return json.loads(data)
        if not all(is_result(f"{made['folder']}/{name}") for name in (made["document"], *made["files"])):
            raise ValueError("not what was written")
        return self._document_in_folder(made)

    def forget(self, older: Line, newer: Line) -> None:
        """Remove files of earlier results of an image, whose place others have taken."""
        if self.results != self.records:
            gone = files_of(older) - files_of(newer)
            self.remove(sorted(gone, key=lambda name: not name.endswith(".json")))

    def close(self) -> None:
        """Remove what was needed on the way."""
        if self._shards is not None:
            self._shards.drop()
        if self.results != self.records:
            shutil.rmtree(self.results, ignore_errors=True)

    # What differs at an address

    def read(self, name: str, place: tuple[int, int] | None) -> Any:
        """Bytes of a shard from a place on, or the shard opened. Raises OSError and PathxError."""
        stream = open_regular(self.records / name)
        if place is None:
            return stream
        with stream:
            stream.seek(place[0])
            return stream.read(min(place[1], os.fstat(stream.fileno()).st_size))

    def put(self, file: Path, name: str) -> None:
        """Name a finished shard. Raises PathxError."""
        try:
            os.replace(file, self.records / name)
        except OSError as error:
            raise unwritable(self.records, error) from error

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

    def _upload(self, files: dict[str, bytes]) -> None:
        """Write files that were taken from the staging folder. Raises PathxError."""

    def _document_in_folder(self, made: Line) -> Any:
        return whole_document(self.records / made["folder"], made["files"], made["document"], made["sha256"])


class RemoteStore(ResultStore):
    """Results at an address that fsspec knows: uploaded file by file, documents last, then lines of the index, a few at a time."""

    def __init__(self, address: str, pack: str | None = None) -> None:
        super().__init__(_staging_folder(), pack)
        self.address, self.place = address, Address(address)
        self.results = _staging_folder()
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

    def put(self, file: Path, name: str) -> None:
        with store_errors(self.address):
            system, path = self._system()
            system.put_file(str(file), f"{path}/{name}")
        file.unlink(missing_ok=True)

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
        super().close()
        try:
            with _LOCK:
                self._flush_lines()
        finally:
            shutil.rmtree(self.records, ignore_errors=True)

    def _upload(self, files: dict[str, bytes]) -> None:
        system, path = self._system()
        for name, data in files.items():
            with store_errors(join_address(self.address, name)):
                system.pipe_file(f"{path}/{name}", data)

    def _document_in_folder(self, made: Line) -> Any:
        with store_errors(self.address):
            system, path = self._system()
            folder = f"{path}/{made['folder']}"
            data = system.cat_file(f"{folder}/{made['document']}")
            system.invalidate_cache(folder)
            there = {name[len(folder) + 1 :] for name in system.find(folder)}
        if hashlib.sha256(data).hexdigest() != made["sha256"] or not there.issuperset(made["files"]):
            raise ValueError("not what was written")
        return json.loads(data)

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


def _take(folder: Path, results: Sequence[Result]) -> dict[str, bytes]:
    """The files of an image's results, and of what a contrast rests on, by their paths; gone from the folder afterwards."""
    files: dict[Path, bytes] = {}
    images: set[Path] = set()
    for result in results:
        if result.state is State.done:
            images.add(result.folder if result.kind is Kind.contrast else result.folder.parent)
            pairs = result.document.get("pairs", ()) if result.kind is Kind.contrast else ()
            for between in (result.folder / pair["folder"] for pair in pairs if pair.get("folder")):
                names = sorted(between.iterdir(), key=lambda file: file.suffix == ".json")
                files |= {file: file.read_bytes() for file in names}
            files |= {result.folder / name: (result.folder / name).read_bytes() for name in result.files}
    for file in files:
        with suppress(OSError):
            file.unlink()
            for image in images & {*file.parents}:  # other images are written beside it meanwhile
                _remove_empty(file.parent, image.parent)
    return {file.relative_to(folder).as_posix(): data for file, data in files.items()}


def _staging_folder() -> Path:
    """A folder for what is on its way elsewhere; made by whoever writes to it, on whichever machine."""
    return Path(tempfile.gettempdir(), f"pathx-{secrets.token_hex(8)}")


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
