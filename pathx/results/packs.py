"""Shards of results: many explanations in one file, for runs whose small files would be too many."""

from __future__ import annotations

import os
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, BinaryIO, Protocol

from pathx.errors import PathxError, reason_of, shown
from pathx.images.parquet import INSTALL, Parquet
from pathx.results.files import NoRoomError, check_inside, hold, is_held, locked_folder, replace_file, unwritable
from pathx.results.lines import Line

SHARD_BYTES = 256 << 20
"""A shard that has reached this size is finished, and the next one begun."""

GROUP_BYTES = 4 << 20
"""Bytes that are read of a Parquet shard to get at one file."""

_COLUMNS = ("folder", "file", "bytes")
_OPEN = ".pack"  # of a shard that has no name yet
_STALE = 60.0  # seconds after which an open shard is one that a killed run left, where the file system has no locks
_LOCK = Lock()  # of all writers: these are sent to other processes, and locks cannot be


class Shard(Protocol):
    """A shard that is being written.

    Args:
        size: bytes so far.
    """

    size: int

    def add(self, name: str, data: bytes) -> tuple[int, int]:
        """Add a file, and say where in the shard it is. Raises OSError."""

    def close(self) -> None:
        """Write the end. Raises OSError."""

    def release(self) -> None:
        """Let go of the file, whatever is in it: one that is removed but open still takes room. Raises OSError."""


class TarShard:
    """Files under the paths that they would have in a folder of results; their place is where their bytes are."""

    def __init__(self, file: Path) -> None:
        self._stream, self.size = file.open("wb"), 0

    def add(self, name: str, data: bytes) -> tuple[int, int]:
        about = tarfile.TarInfo(name)
        about.size, about.mode = len(data), 0o644
        header = about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        self._stream.write(header + data + bytes(-len(data) % tarfile.BLOCKSIZE))
        start, self.size = self.size + len(header), self._stream.tell()
        return start, len(data)

    def close(self) -> None:
        self._stream.write(bytes(2 * tarfile.BLOCKSIZE))
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def release(self) -> None:
        self._stream.close()


class ParquetShard:
    """A row for each file, with its folder and its name; their place is a row group and a row in it."""

    def __init__(self, file: Path) -> None:
        self._arrow, parquet = _arrow()
        kinds = (self._arrow.string(), self._arrow.string(), self._arrow.large_binary())
        self._schema = self._arrow.schema(zip(_COLUMNS, kinds, strict=True))
        self._file, self._stream = file, file.open("wb")
        self._writer = parquet.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._rows: list[tuple[str, str, bytes]] = []
        self._groups, self._held, self.size = 0, 0, 0

    def add(self, name: str, data: bytes) -> tuple[int, int]:
        folder, _, file = name.rpartition("/")
        place = self._groups, len(self._rows)
        self._rows.append((_as_text(folder), file, data))
        self._held += len(data)
        self.size += len(data)
        if self._held >= GROUP_BYTES:
            self._write()
        return place

    def _write(self) -> None:
        columns = [list(column) for column in zip(*self._rows, strict=True)]
        self._writer.write_table(self._arrow.table(dict(zip(_COLUMNS, columns, strict=True)), schema=self._schema))
        self._rows, self._held, self._groups = [], 0, self._groups + 1

    def close(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def release(self) -> None:
        self._stream.close()


SHARDS: dict[str, type[TarShard] | type[ParquetShard]] = {"tar": TarShard, "parquet": ParquetShard}
"""Kinds of shards, by the endings of their names."""

ReadShard = Callable[[str, tuple[int, int] | None], Any]
"""Gives bytes of a shard from a place on, or the shard opened where no place is given."""


class ShardWriter:
    """Packs results into shards of a bounded size; a shard gets its name when it is whole.

    Args:
        folder: where shards are written.
        kind: a key of `SHARDS`.
        put: gives a finished shard its name.
    """

    def __init__(self, folder: Path, kind: str, put: Callable[[Path, str], None]) -> None:
        if kind not in SHARDS:
            raise PathxError(f"results are packed into {' or '.join(SHARDS)}, not into {kind!r}", usage=True)
        if kind == "parquet":
            _arrow()
        self._folder, self._kind, self._put = folder, kind, put
        self._shard: Shard | None = None
        self._file, self._name, self._held = Path(), "", -1
        self._lines: list[Line] = []
        self._lost: list[Line] = []

    def remove_abandoned(self) -> None:
        """Remove open shards that killed runs left."""
        with suppress(OSError), locked_folder(self._folder):
            for file in self._folder.glob(f".pathx-*{_OPEN}"):
                if not is_held(file, unsure=time.time() - file.stat().st_mtime < _STALE):
                    file.unlink()

    def add(self, files: dict[str, bytes], line: Line) -> tuple[str, list[Line]]:
        """Add the files of an image: the name of their shard, and the lines of the index that are true then.

        Raises PathxError.
        """
        with _LOCK:
            try:
                shard = self._open()
                places = {name: shard.add(name, data) for name, data in files.items()}
                self._lines.append(_with_shard(line, self._name, places))
                return self._name, self._finish() if shard.size >= SHARD_BYTES else []
            except (OSError, PathxError) as error:
                raise self._give_up(error) from error

    def flush(self) -> list[Line]:
        """Finish the open shard: the lines that are true then, those of images that were lost included."""
        with _LOCK:
            try:
                lines = self._finish() if self._shard is not None else []
            except (OSError, PathxError) as error:
                self._give_up(error)
                lines = []
            lost, self._lost = self._lost, []
            return [*lost, *lines]

    def drop(self) -> None:
        """Remove a shard that has no name yet, as far as it is there."""
        with _LOCK:
            self._drop()

    def _give_up(self, error: OSError | PathxError) -> PathxError:
        """Why a shard could not be finished; the images in it have failed, and the next run makes them again."""
        problem = error if isinstance(error, PathxError) else unwritable(self._folder, error)
        self._lost += [failed_line(line, problem) for line in self._lines]
        self._drop()
        return problem

    def _open(self) -> Shard:
        if self._shard is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            token = secrets.token_hex(8)
            self._file = self._folder / f".pathx-{token}{_OPEN}"
            self._name = f"results-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{token[:8]}.{self._kind}"
            with locked_folder(self._folder):  # nobody sees it before it is held
                self._shard = SHARDS[self._kind](self._file)
                self._held = hold(self._file)
        return self._shard

    def _finish(self) -> list[Line]:
        """Name the shard, which is whole then; the lines of what is in it."""
        assert self._shard is not None
        self._shard.close()
        self._put(self._file, self._name)
        self._shard, lines, self._lines = None, self._lines, []
        os.close(self._held)
        return lines

    def _drop(self) -> None:
        if self._shard is not None:
            for end in (self._shard.close, self._shard.release):
                with suppress(Exception):
                    end()
            with suppress(OSError):
                self._file.unlink()
            self._shard, self._lines = None, []
            os.close(self._held)


def failed_line(line: Line, error: PathxError) -> Line:
    """The line of an image whose results were written and then lost."""
    return {key: line[key] for key in line if key != "contrast"} | {"explanations": [], "error": str(error)}


def _with_shard(line: Line, shard: str, places: dict[str, tuple[int, int]]) -> Line:
    """A line with the shard that its results are in, and the places of their documents there."""

    def with_place(made: Line) -> Line:
        document = (PurePath(made["folder"]) / made["document"]).as_posix()
        return {**made, "pack": shard, "at": places[document]}

    return change_results(line, with_place)


def change_results(line: Line, change: Callable[[Line], Line]) -> Line:
    """A line of an index with another description of each of its results."""
    line = {**line, "explanations": [change(made) for made in line.get("explanations", ())]}
    return {**line, "contrast": change(line["contrast"])} if "contrast" in line else line


def packed_bytes(read: ReadShard, name: str, place: Any) -> bytes:
    """A file in a shard. Raises OSError, ValueError, TypeError and PathxError."""
    first, second = map(int, place)
    if name != os.path.basename(name) or min(first, second) < 0:
        raise ValueError("no place in a shard")
    if not name.endswith(".parquet"):
        data: bytes = read(name, (first, second))
        return data
    _arrow()
    with read(name, None) as stream:
        try:
            for batch in Parquet(stream).batches(first, ["bytes"], 16):
                if second < batch.num_rows:
                    found: bytes = batch.column("bytes")[second].as_py()
                    return found
                second -= batch.num_rows
        except Exception as error:  # damaged files make pyarrow raise anything
            raise ValueError(reason_of(error)) from None
    raise ValueError("no such row")


def unpack(read: ReadShard, lines: list[dict[str, Any]], wanted: set[str], into: Path) -> tuple[str, ...]:
    """Write the files of packed results to folders, as a run without shards would have; says what went wrong.

    Args:
        lines: of the index; what is in shards beside these is of older results.
        wanted: the files that these have, by their paths. Nothing else that a shard holds is written anywhere.
    """
    shards = {made["pack"]: None for line in lines for made in line.get("explanations", ()) if "pack" in made}
    problems: list[str] = []
    for shard in shards:
        try:
            for name, data in _files(read, shard, wanted):
                problems += _refusal(into, name, data)
        except PathxError as error:
            problems.append(str(error))
    return tuple(problems)


def _refusal(into: Path, name: str, data: bytes) -> list[str]:
    """Write a file; why that cannot be, if so. On a full disk the others need not be tried."""
    try:
        check_inside((into / name).parent, into)
        replace_file(into / name, data)
    except NoRoomError:
        raise
    except PathxError as error:
        return [str(error)]
    return []


def _files(read: ReadShard, shard: str, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """Files of a shard, documents after the files that they vouch for. Raises PathxError."""
    try:
        if shard != os.path.basename(shard) or not shard.endswith(tuple(f".{kind}" for kind in SHARDS)):
            raise ValueError("no name of a shard")
        with read(shard, None) as stream:
            yield from (_rows if shard.endswith(".parquet") else _members)(stream, shard, wanted)
    except PathxError:
        raise
    except Exception as error:  # damaged files make readers raise anything
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise PathxError(f"{shown(shard)} cannot be read ({reason}): run the same command again") from None


def _members(stream: BinaryIO, shard: str, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    from pathx.images.archives import tar_files  # here, as it loads Pillow, which --help can do without

    for name, place in tar_files(stream, shard):
        if place is not None and name in wanted:
            stream.seek(place[0])
            yield name, stream.read(place[1])


def _rows(stream: BinaryIO, shard: str, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    named = {_as_text(name): name for name in wanted}
    table = Parquet(stream)
    for group in range(len(table.groups)):
        for batch in table.batches(group, _COLUMNS, 16):
            for row in batch.to_pylist():
                name = named.get(f"{row['folder']}/{row['file']}")
                if name is not None:
                    yield name, bytes(row["bytes"])


def _as_text(name: str) -> str:
    """A path as a table can hold it; bytes in it that are no text by their numbers."""
    return name.encode(errors="backslashreplace").decode()


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise PathxError(f"Parquet files need pyarrow: {INSTALL}", usage=True) from None
