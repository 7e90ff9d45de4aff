"""Records of measurements, in a file from which a later run continues; and the other files of a measurement."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

from pathx.errors import PathxError, as_text
from pathx.images.find import ImageFile
from pathx.results.files import JsonLines, check_own, mark, replace_own, unwritable
from pathx.results.schema import misfit

Record = dict[str, Any]
"""The outcome of one measurement, as a line of JSON; `key` identifies everything that it depends on."""


def record_key(*parts: Any) -> str:
    """A hash of everything that a figure depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class Unread(dict[str, str]):
    """Images that could not be used, by name, and why. Call it with each of them.

    Args:
        progress: called with `steps` for each.
    """

    def __init__(self, progress: Callable[[int], None] = lambda done: None, steps: int = 1) -> None:
        self._progress, self._steps = progress, steps

    def __call__(self, source: ImageFile, error: PathxError) -> None:
        self[source.name] = str(error)
        self._progress(self._steps)

    def check_any(self, found: Sized, asked: int) -> None:
        """Raise PathxError if none of the images could be used."""
        if not found:
            raise PathxError(f"none of the {asked} images could be used: {next(iter(self.values()), 'there are none')}")


class RecordFile:
    """Records by key, as lines of JSON. Lines are only added, and the last one of a key counts.

    Args:
        file: None to keep records in memory only.
        shape: of a record, for `misfit`; damaged records are measured again.
        is_whole: whether a record of that shape is complete.
    """

    def __init__(self, file: Path | None, shape: Any, is_whole: Callable[[Record], bool] = lambda line: True) -> None:
        self._lines = None if file is None else JsonLines(file)
        try:
            lines = [] if self._lines is None else self._lines.read()
            if file is not None and not lines and file.exists() and file.stat().st_size:
                check_own(file.parent, [file.name])
        except OSError as error:
            raise PathxError(
                f"{file} cannot be read ({error.strerror}): choose another folder with `out`", usage=True
            ) from None
        self.known: dict[str, Record] = {
            line["key"]: line for line in lines if misfit(line, shape) is None and is_whole(line)
        }

    def add(self, records: Sequence[Record]) -> None:
        """Add records. Raises PathxError."""
        self.known |= {record["key"]: record for record in records}
        if self._lines is None or not records:
            return
        try:
            self._lines.file.parent.mkdir(parents=True, exist_ok=True)
            mark(self._lines.file.parent, [self._lines.file.name])
            self._lines.append(records)
        except OSError as error:
            raise unwritable(self._lines.file, error) from None

    def recall(self, key: str, measure: Callable[[], Record]) -> Record:
        """The record of a key, measured and added if it is new."""
        if key not in self.known:
            self.add([{"key": key, **measure()}])
        return self.known[key]


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Replace a document. Bytes of file names that are not text are escaped as in JSON."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    replace_own(file, text.encode(errors="backslashreplace"))


def write_csv(file: Path, rows: Iterable[Sequence[Any]]) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([as_text(cell) for cell in row] for row in rows)
    replace_own(file, stream.getvalue().encode(errors="backslashreplace"))
