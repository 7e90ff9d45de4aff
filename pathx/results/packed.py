"""Results that a run packs into shards, in a folder or in a store."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from pathx.errors import PathxError
from pathx.results import packs
from pathx.results.files import hold, is_held, locked_folder, unwritable
from pathx.results.home import LOCK, Contents, Home, failed_line, files_of, stage, taken
from pathx.results.lines import Line
from pathx.results.packs import Shard
from pathx.results.result import Result

_OPEN = ".pack"  # of a shard that has no name yet
_STALE = 60.0  # seconds after which an open shard is one that a killed run left, where the file system has no locks


class Pack(Home):
    """Results in shards of a bounded size, in a folder or a store; a shard gets its name when it is whole.

    Args:
        base: where the shards go.
        kind: a key of `SHARDS`.
    """

    def __init__(self, base: Home, kind: str) -> None:
        super().__init__(stage())
        self.base, self.kind = base, kind
        self.place, self.records = base.place, base.records
        self._shard: Shard | None = None
        self._file, self._name, self._held = Path(), "", -1
        self._lines: list[Line] = []
        self._lost: list[Line] = []

    def open(self) -> None:
        self.base.open()
        with suppress(OSError), locked_folder(self.records):
            for file in self.records.glob(f".pathx-*{_OPEN}"):
                if not is_held(file, unsure=time.time() - file.stat().st_mtime < _STALE):
                    file.unlink()

    def take(self, results: Sequence[Result]) -> Contents | None:
        return taken(self.results, results)

    def keep(self, contents: Contents | None, line: Line) -> tuple[list[Line], PurePath]:
        if contents is None or not contents.files:
            return [line], self.place
        with LOCK:
            try:
                shard = self._opened()
                places = {name: shard.add(name, data) for name, data in contents.files.items()}
                self._lines.append(_packed(line, self._name, places))
                where = self.place / self._name
                return self._finished() if shard.size >= packs.SHARD_BYTES else [], where
            except (OSError, PathxError) as error:
                raise self._given_up(error) from error

    def flush(self) -> list[Line]:
        with LOCK:
            try:
                lines = self._finished() if self._shard is not None else []
            except (OSError, PathxError) as error:
                self._given_up(error)
                lines = []
            lost, self._lost = self._lost, []
            return [*lost, *lines]

    def _given_up(self, error: OSError | PathxError) -> PathxError:
        """Why a shard could not be finished; the images in it have failed, and the next run makes them again."""
        problem = error if isinstance(error, PathxError) else unwritable(self.records, error)
        self._lost += [failed_line(line, problem) for line in self._lines]
        self._drop()
        return problem

    def _opened(self) -> Shard:
        if self._shard is None:
            self.records.mkdir(parents=True, exist_ok=True)
            token = secrets.token_hex(8)
            self._file = self.records / f".pathx-{token}{_OPEN}"
            self._name = f"results-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{token[:8]}.{self.kind}"
            with locked_folder(self.records):  # nobody sees it before it is held
                self._shard = packs.SHARDS[self.kind](self._file)
                self._held = hold(self._file)
        return self._shard

    def _finished(self) -> list[Line]:
        """Name the shard, which is whole then; the lines of what is in it."""
        assert self._shard is not None
        self._shard.close()
        self.base.put(self._file, self._name)
        self._shard, lines, self._lines = None, self._lines, []
        os.close(self._held)
        return lines

    def _drop(self) -> None:
        """Remove a shard that has no name yet, as far as it is there."""
        if self._shard is not None:
            packs.dropped(self._shard, self._file)
            self._shard, self._lines = None, []
            os.close(self._held)

    def plain_document(self, made: Line) -> Any:
        return self.base.plain_document(made)

    def read(self, name: str, place: tuple[int, int] | None) -> Any:
        return self.base.read(name, place)

    def remove(self, names: Iterable[str]) -> None:
        self.base.remove(names)

    def forget(self, older: Line, newer: Line) -> None:
        self.remove(sorted(files_of(older), key=lambda name: not name.endswith(".json")))

    def publish(self, files: Sequence[Path], gone: Sequence[str] = ()) -> None:
        self.base.publish(files, gone)

    def log(self, file: Path, line: Line) -> None:
        self.base.log(file, line)

    def settle(self) -> None:
        self.base.settle()

    def close(self) -> None:
        with LOCK:
            self._drop()
        shutil.rmtree(self.results, ignore_errors=True)
        self.base.close()


def _packed(line: Line, shard: str, places: dict[str, tuple[int, int]]) -> Line:
    """A line with the shard that its results are in, and the places of their documents there."""

    def packed(made: Line) -> Line:
        document = (PurePath(made["folder"]) / made["document"]).as_posix()
        return {**made, "pack": shard, "at": places[document]}

    line = {**line, "explanations": [packed(made) for made in line["explanations"]]}
    return {**line, "contrast": packed(line["contrast"])} if "contrast" in line else line
