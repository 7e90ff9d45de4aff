"""Results in a store such as `s3://`: uploaded image by image, and then the lines of the index, a few at a time."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from pathx.results.home import LOCK, Contents, Home, files_of, stage, taken
from pathx.results.lines import Line
from pathx.results.result import Result
from pathx.stores import Address, fetch_part, joined, open_stored, store_of, unreachable

RECORDS = re.compile(r"run(\.\d+-of-\d+)?\.json|index(\.\d+-of-\d+)?\.jsonl")
"""What a run keeps beside its results."""

_PART = re.compile(r"(index(?:\.\d+-of-\d+)?\.jsonl)-\d+-[0-9a-f]+\.part")
_EVERY = 5.0  # seconds after which lines of an index go to a store, in a file of their own


class Store(Home):
    """Results in a store: uploaded file by file, documents last, and then the lines of the index, a few at a time."""

    def __init__(self, address: str) -> None:
        super().__init__(stage())
        self.address, self.place = address, Address(address)
        self._parts: dict[str, list[str]] = {}
        self._waiting: list[Line] = []
        self._last, self._index = time.monotonic(), ""

    def open(self) -> None:
        self.records.mkdir(parents=True, exist_ok=True)
        system, path = store_of(self.address)
        with unreachable(self.address):
            system.invalidate_cache()
            try:
                listed = system.ls(path, detail=True)
            except FileNotFoundError:
                listed = []
            entries = sorted(listed, key=lambda entry: (_time(entry), entry["name"]))
            names = [posixpath.basename(entry["name"].rstrip("/")) for entry in entries]
            for number, name in enumerate(filter(RECORDS.fullmatch, names)):
                system.get_file(f"{path.rstrip('/')}/{name}", str(self.records / name))
                os.utime(self.records / name, (number, number))  # as old as they are there
            for found in filter(None, map(_PART.fullmatch, sorted(names))):
                self._parts.setdefault(found[1], []).append(found[0])
                with (self.records / found[1]).open("ab") as stream:
                    stream.write(system.cat_file(f"{path.rstrip('/')}/{found[0]}"))

    def take(self, results: Sequence[Result]) -> Contents | None:
        return taken(self.results, results)

    def keep(self, contents: Contents | None, line: Line) -> tuple[list[Line], PurePath]:
        for name, data in contents.files.items() if contents is not None else ():
            self._upload(name, data)
        return [line], self.place

    def plain_document(self, made: Line) -> Any:
        system, path = store_of(self.address)
        folder = f"{path.rstrip('/')}/{made['folder']}"
        with unreachable(self.address):
            data = system.cat_file(f"{folder}/{made['document']}")
            system.invalidate_cache(folder)
            there = {name[len(folder) + 1 :] for name in system.find(folder)}
        if hashlib.sha256(data).hexdigest() != made["sha256"] or not there.issuperset(made["files"]):
            raise ValueError("not what was written")
        return json.loads(data)

    def read(self, name: str, place: tuple[int, int] | None) -> Any:
        address = joined(self.address, name)
        return open_stored(address) if place is None else fetch_part(address, *place)

    def put(self, file: Path, name: str) -> None:
        system, path = store_of(self.address)
        with unreachable(self.address):
            system.put_file(str(file), f"{path.rstrip('/')}/{name}")
        file.unlink(missing_ok=True)

    def remove(self, names: Iterable[str]) -> None:
        system, path = store_of(self.address)
        for name in names:
            with suppress(Exception):  # it may be gone, and is in nobody's way
                system.rm_file(f"{path.rstrip('/')}/{name}")

    def forget(self, older: Line, newer: Line) -> None:
        self.remove(sorted(files_of(older) - files_of(newer), key=lambda name: not name.endswith(".json")))

    def publish(self, files: Sequence[Path], gone: Sequence[str] = ()) -> None:
        system, path = store_of(self.address)
        with unreachable(self.address):
            for file in filter(Path.is_file, files):
                system.put_file(str(file), f"{path.rstrip('/')}/{file.name}")
        for file in files:
            self.remove(self._parts.pop(file.name, ()))  # what they say is in it
            with LOCK:
                self._waiting = [] if file.name == self._index else self._waiting
        self.remove([*gone, *(part for name in gone for part in self._parts.pop(name, ()))])

    def log(self, file: Path, line: Line) -> None:
        with LOCK:
            self._index = file.name
            self._waiting.append(line)
            if time.monotonic() - self._last > _EVERY:
                self._flush_lines()

    def settle(self) -> None:
        with LOCK:
            self._flush_lines()

    def _flush_lines(self) -> None:
        if self._waiting:
            name = f"{self._index}-{time.time_ns():020d}-{secrets.token_hex(4)}.part"
            self._upload(name, "".join(json.dumps(line) + "\n" for line in self._waiting).encode())
            self._parts.setdefault(self._index, []).append(name)
            self._waiting.clear()
        self._last = time.monotonic()

    def _upload(self, name: str, data: bytes) -> None:
        system, path = store_of(self.address)
        with unreachable(joined(self.address, name)):
            system.pipe_file(f"{path.rstrip('/')}/{name}", data)

    def close(self) -> None:
        shutil.rmtree(self.records, ignore_errors=True)


def _time(entry: dict[str, Any]) -> float:
    known = (entry.get(key) for key in ("LastModified", "last_modified", "mtime", "updated", "created"))
    value = next((one for one in known if one is not None), 0.0)
    return (
        value.timestamp() if isinstance(value, datetime) else float(value) if isinstance(value, (int, float)) else 0.0
    )
