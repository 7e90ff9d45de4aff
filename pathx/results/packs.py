"""Shards of results: many explanations in one file, for runs whose small files would be too many."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol

from pathx.errors import PathxError, reason_of, shown
from pathx.images.tables import INSTALL
from pathx.results.files import replace_file

SHARD_BYTES = 256 << 20
"""A shard that has reached this size is finished, and the next one begun."""

GROUP_BYTES = 4 << 20
"""Bytes that are read of a Parquet shard to get at one file."""

_COLUMNS = ("folder", "file", "bytes")


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
        self._rows.append((folder.encode(errors="replace").decode(), file, data))
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


SHARDS: dict[str, type[TarShard] | type[ParquetShard]] = {"tar": TarShard, "parquet": ParquetShard}
"""Kinds of shards, by the endings of their names."""

ReadShard = Callable[[str, tuple[int, int] | None], Any]
"""Gives bytes of a shard from a place on, or the shard opened where no place is given."""


def check_pack(kind: str) -> None:
    """Refuse a kind of shards that cannot be written here."""
    if kind not in SHARDS:
        raise PathxError(f"results are packed into {' or '.join(SHARDS)}, not into {kind!r}", usage=True)
    if kind == "parquet":
        _arrow()


def packed_bytes(read: ReadShard, name: str, place: Any) -> bytes:
    """A file in a shard. Raises OSError, ValueError, TypeError and PathxError."""
    first, second = map(int, place)
    if name != os.path.basename(name) or min(first, second) < 0:
        raise ValueError("no place in a shard")
    if not name.endswith(".parquet"):
        data: bytes = read(name, (first, second))
        return data
    _, parquet = _arrow()
    with read(name, None) as stream:
        try:
            found: bytes = parquet.ParquetFile(stream).read_row_group(first, ["bytes"])["bytes"][second].as_py()
        except Exception as error:  # damaged files make pyarrow raise anything
            raise ValueError(reason_of(error)) from None
    return found


def unpack(read: ReadShard, lines: list[dict[str, Any]], into: Path) -> int:
    """Write the files of packed results to folders, as a run without shards would have; how many images there were.

    Args:
        lines: of the index; what is in shards beside these is of older results.
    """
    wanted: dict[str, set[str]] = {}
    for line in lines:
        for made in line.get("explanations", ()):
            if "pack" in made:
                wanted.setdefault(str(made["pack"]), set()).add(str(line["name"]))
    for shard, names in wanted.items():
        for name, data in _files(read, shard):
            path = PurePosixPath(name)
            if not path.is_absolute() and ".." not in path.parts and any(str(one) in names for one in path.parents):
                (into / path).parent.mkdir(parents=True, exist_ok=True)
                replace_file(into / path, data)
    return sum(map(len, wanted.values()))


def _files(read: ReadShard, shard: str) -> Iterator[tuple[str, bytes]]:
    """All files of a shard, documents after the files that they vouch for."""
    stream: BinaryIO
    with read(shard, None) as stream:
        try:
            if shard.endswith(".parquet"):
                for batch in _arrow()[1].ParquetFile(stream).iter_batches(64):
                    for row in batch.to_pylist():
                        yield f"{row['folder']}/{row['file']}", row["bytes"]
                return
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                for about in archive:
                    if about.isreg() and (member := archive.extractfile(about)) is not None:
                        yield about.name, member.read()
        except (tarfile.TarError, ValueError, OSError) as error:
            raise PathxError(f"{shown(shard)} is damaged ({reason_of(error)}): run the same command again") from None


def _arrow() -> tuple[Any, Any]:
    try:
        return import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise PathxError(f"Parquet files need pyarrow: {INSTALL}", usage=True) from None


def has_arrow() -> bool:
    """Whether Parquet files can be read and written here."""
    try:
        _arrow()
    except PathxError:
        return False
    return True


def dropped(shard: Shard, file: Path) -> None:
    """Give up a shard that cannot be written to its end."""
    with suppress(Exception):
        shard.close()
    with suppress(OSError):
        file.unlink()
