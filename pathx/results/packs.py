"""Shards of results: many explanations in one file, for runs whose small files would be too many."""

from __future__ import annotations

import io
import os
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path, PurePath
from threading import Lock
from typing import Any, BinaryIO

from pathx.errors import PathxError, reason_of, shown
from pathx.images.archives import INSTALL, Parquet, tar_files
from pathx.results.files import Line, NoRoomError, check_inside, replace_file

SHARD_BYTES = 64 << 20
"""Files are collected in memory until there are so many bytes, and then written as one shard."""

GROUP_BYTES = 4 << 20
"""Bytes that are read of a Parquet shard to get at one file."""

_COLUMNS = ("folder", "file", "bytes")
_LOCK = Lock()  # of all writers: these are sent to other processes, and locks cannot be

Places = dict[str, tuple[int, int]]
"""Where each file of a shard is in it."""


def tar_shard(files: Mapping[str, bytes]) -> tuple[bytes, Places]:
    """Files under the paths that they would have in a folder of results. Their place: offset and length of their bytes."""
    shard, places = bytearray(), {}
    for name, data in files.items():
        about = tarfile.TarInfo(name)
        about.size, about.mode = len(data), 0o644
        shard += about.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        places[name] = len(shard), len(data)
        shard += data + bytes(-len(data) % tarfile.BLOCKSIZE)
    shard += bytes(2 * tarfile.BLOCKSIZE)
    return bytes(shard), places


def parquet_shard(files: Mapping[str, bytes]) -> tuple[bytes, Places]:
    """A row for each file, with its folder and its name. Their place: a row group and a row in it."""
    arrow, parquet = _arrow()
    kinds = (arrow.string(), arrow.string(), arrow.large_binary())
    schema = arrow.schema(zip(_COLUMNS, kinds, strict=True))
    groups: list[list[tuple[str, str, bytes]]] = [[]]
    size, places = 0, {}
    for name, data in files.items():
        if size >= GROUP_BYTES:
            groups.append([])
            size = 0
        folder, _, file = name.rpartition("/")
        places[name] = len(groups) - 1, len(groups[-1])
        groups[-1].append((_as_text(folder), file, data))
        size += len(data)
    stream = io.BytesIO()
    with parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for rows in groups:
            columns = [list(column) for column in zip(*rows, strict=True)]
            writer.write_table(arrow.table(dict(zip(_COLUMNS, columns, strict=True)), schema=schema))
    return stream.getvalue(), places


SHARDS = {"tar": tar_shard, "parquet": parquet_shard}
"""Kinds of shards, by the endings of their names."""

ReadShard = Callable[[str, tuple[int, int] | None], Any]
"""Gives bytes of a shard from a place on, or the shard opened where no place is given."""


class ShardWriter:
    """Packs results into shards of a bounded size. A shard is there whole or not at all.

    Args:
        kind: a key of `SHARDS`.
        put: writes a shard under its name. Raises PathxError.
    """

    def __init__(self, kind: str, put: Callable[[str, bytes], None]) -> None:
        if kind not in SHARDS:
            raise PathxError(f"results are packed into {' or '.join(SHARDS)}, not into {kind!r}", usage=True)
        if kind == "parquet":
            _arrow()
        self._kind, self._put = kind, put
        self._name, self._size = "", 0
        self._files: dict[str, bytes] = {}
        self._lines: list[Line] = []
        self._lost: list[Line] = []

    def add(self, files: Mapping[str, bytes], line: Line) -> tuple[str, list[Line]]:
        """Add the files of an image: the name of their shard, and the lines of the index that are true then.

        Raises PathxError where the shard cannot be written.
        """
        with _LOCK:
            if not self._lines:
                now = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
                self._name = f"results-{now}-{secrets.token_hex(4)}.{self._kind}"
            self._files |= files
            self._lines.append(line)
            self._size += sum(map(len, files.values()))
            try:
                return self._name, self._write() if self._size >= SHARD_BYTES else []
            except PathxError:
                self._lost.pop()  # this one, of which the caller learns now
                raise

    def flush(self) -> list[Line]:
        """Write what was collected: the lines that are true then, those of images that were lost included."""
        with _LOCK:
            try:
                lines = self._write() if self._lines else []
            except PathxError:
                lines = []
            lost, self._lost = self._lost, []
            return [*lost, *lines]

    def _write(self) -> list[Line]:
        data, places = SHARDS[self._kind](self._files)
        lines, self._lines, self._files, self._size = self._lines, [], {}, 0
        try:
            self._put(self._name, data)
        except PathxError as error:  # these images have failed, and the next run makes them again
            self._lost += [failed_line(line, error) for line in lines]
            raise
        return [_with_shard(line, self._name, places) for line in lines]


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
                try:
                    check_inside((into / name).parent, into)
                    replace_file(into / name, data)
                except NoRoomError:  # there is none for the others either
                    raise
                except PathxError as error:
                    problems.append(str(error))
        except PathxError as error:
            problems.append(str(error))
    return tuple(problems)


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
