"""index.jsonl: a line for every picture that a run met, and what is needed to go on with a run or to join its shards.

The folders of results are what counts; the index follows them. A line is appended once the files that it names are whole,
in a single write, so a crash costs the last lines at most, and their pictures are made again.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathx.errors import PathxError
from pathx.shards import Shard

try:
    import fcntl
except ImportError:  # Windows: two runs without shards should not share a folder there
    fcntl = None  # type: ignore[assignment]

INDEX, RUN = "index{}.jsonl", "run{}.json"
RUN_SCHEMA = "pathx/run@1"
Line = dict[str, Any]
_SHARD = re.compile(r"run\.(\d+)-of-(\d+)\.json")


def index_name(shard: Shard | None) -> str:
    """`index.jsonl`, or `index.3-of-8.jsonl` for a shard."""
    return INDEX.format(_suffix(shard))


class Index:
    """The index of a run, or of a shard of it, in an output folder.

    Args:
        record: what the run is, for `run.json`; its entry `run` is the same for runs that would write the same.
        names: the pictures that the run is to do.
    """

    def __init__(self, out: str | Path, shard: Shard | None, record: dict[str, Any], names: Sequence[str]) -> None:
        self.out = Path(out)
        self.file, self._record_file = self.out / index_name(shard), self.out / RUN.format(_suffix(shard))
        self._record = {"schema": RUN_SCHEMA, **record, "shard": None if shard is None else str(shard)}
        self._record["pictures"] = list(names)
        self._key = record["command"], record["run"]
        self.begun = False
        self._synced = 0.0
        self._known = _latest(_lines_of(self.out))

    def known(self, name: str) -> Line | None:
        """What an earlier run of the same kind wrote of a picture that it did, in whichever shard."""
        line = self._known.get((self._key[0], name))
        return line if line is not None and line["run"] == self._key[1] and "error" not in line else None

    def begin(self) -> None:
        """Say in run.json what is to come, and mend the index: one line per picture, none whose results are gone."""
        self.begun = True
        self.out.mkdir(parents=True, exist_ok=True)
        with _locked(self.file):  # against another run that begins just now
            _replace(self._record_file, json.dumps(self._record, indent=1) + "\n")
        coming = {(self._key[0], name) for name in self._record["pictures"]}

        def stays(line: Line) -> bool:
            if _key(line) in coming and ("error" in line or line["run"] != self._key[1]):
                return False
            return _whole(self.out, line)

        self._rewrite(stays)

    def append(self, line: Line) -> None:
        """Add the line of one picture. Lines of several threads and processes never mix. Raises OSError."""
        data = (json.dumps({**line, "command": self._key[0], "run": self._key[1]}) + "\n").encode()
        with _locked(self.file) as descriptor:
            before = os.fstat(descriptor).st_size
            if os.write(descriptor, data) < len(data):
                os.ftruncate(descriptor, before)
                raise OSError(28, "No space left on device")
            if time.monotonic() - self._synced > 1:  # lines are quickly made again; results are synced one by one
                os.fsync(descriptor)
                self._synced = time.monotonic()

    def finish(self) -> None:
        """Drop lines that later ones replaced."""
        if self.file.exists():
            self._rewrite(lambda line: True)

    def _rewrite(self, stays: Callable[[Line], bool]) -> None:
        with _locked(self.file) as descriptor:
            before = _read(descriptor)
            after = _text(line for line in _latest(_parsed(before)).values() if stays(line))
            if after.encode() != before:
                _replace(self.file, after)


@dataclass(frozen=True)
class Merged:
    """What an output folder holds after its shards were joined.

    Args:
        done: how many pictures have all of their results.
        failed: those that have not: (file, error) each.
        missing: names of pictures that no shard has got to.
        shards: those that have not been started, such as `3/8`.
    """

    done: int
    failed: tuple[tuple[str, str], ...]
    missing: tuple[str, ...]
    shards: tuple[str, ...]


def merge(out: str | Path) -> Merged:
    """Join the indexes of shards into index.jsonl, one line per picture, and say what is missing.

    The files of the shards go when nothing is missing any more; until then a shard can be run again, and joined again.
    """
    out = Path(out)
    records = {
        Shard(*map(int, found.groups())): out / found[0] for found in map(_SHARD.fullmatch, _names(out)) if found
    }
    if not records and not (out / index_name(None)).is_file():
        raise PathxError(f"{out} holds no index to join: give the folder that --out named", usage=True)
    contents = {shard: _record(file) for shard, file in records.items()}
    lines = _latest(line for line in _lines_of(out) if _whole(out, line))
    missing = {
        (content["command"], name): None
        for content in contents.values()
        for name in content["pictures"]
        if (content["command"], name) not in lines
    }
    counts = {shard.count for shard in records}
    absent = [str(shard) for count in sorted(counts) for shard in _shards(count) if shard not in records]
    ordered = dict(sorted(lines.items()))
    with _locked(out / index_name(None)) as descriptor:
        if _read(descriptor) != _text(ordered.values()).encode():
            _replace(out / index_name(None), _text(ordered.values()))
    if contents and not missing and not absent:
        whole = next(iter(contents.values())) | {"shard": None}
        whole["pictures"] = sorted({name for content in contents.values() for name in content["pictures"]})
        _replace(out / RUN.format(""), json.dumps(whole, indent=1) + "\n")
        for shard, file in records.items():
            (out / index_name(shard)).unlink(missing_ok=True)
            file.unlink(missing_ok=True)
    failed = tuple((line["file"], line["error"]) for line in ordered.values() if "error" in line)
    return Merged(len(ordered) - len(failed), failed, tuple(name for _, name in missing), tuple(absent))


def _shards(count: int) -> Iterator[Shard]:
    return (Shard(number, count) for number in range(1, count + 1))


def _suffix(shard: Shard | None) -> str:
    return "" if shard is None else f".{shard.number}-of-{shard.count}"


def _whole(out: Path, line: Line) -> bool:
    return all((out / made["folder"]).is_dir() for made in line.get("explanations", ()))


def _names(out: Path) -> list[str]:
    try:
        return sorted(os.listdir(out))
    except OSError:
        return []


def _record(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_bytes())
        return {"command": str(content["command"]), **content, "pictures": [str(name) for name in content["pictures"]]}
    except (OSError, ValueError, KeyError, TypeError):
        raise PathxError(f"{file} is damaged: run that shard again") from None


def _lines_of(out: Path) -> Iterator[Line]:
    """The lines of every index in a folder, older files first."""
    files = [out / name for name in _names(out) if re.fullmatch(r"index(\.\d+-of-\d+)?\.jsonl", name)]
    for file in sorted(files, key=lambda file: file.stat().st_mtime_ns):
        with suppress(OSError):
            yield from _parsed(file.read_bytes())


def _parsed(data: bytes) -> Iterator[Line]:
    """Lines that are whole; what a crash tore off is left out."""
    for text in data.split(b"\n"):
        try:
            line = json.loads(text)
            _ = _key(line), line["run"], line["file"], [made["folder"] for made in line.get("explanations", ())]
        except (ValueError, KeyError, TypeError):
            continue
        yield line


def _key(line: Line) -> tuple[str, str]:
    return line["command"], line["name"]


def _latest(lines: Iterable[Line]) -> dict[tuple[str, str], Line]:
    latest: dict[tuple[str, str], Line] = {}
    for line in lines:
        latest.pop(_key(line), None)  # the order is that of the last lines
        latest[_key(line)] = line
    return latest


def _text(lines: Iterable[Line]) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


@contextmanager
def _locked(file: Path) -> Iterator[int]:
    """A file opened for appending that nobody else appends to or replaces meanwhile, where the file system has locks."""
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_still(file, descriptor):
                yield descriptor
                return
        finally:
            os.close(descriptor)


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


def _replace(file: Path, text: str) -> None:
    part = file.with_name(f".{file.name}.part")
    with part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(part, file)
