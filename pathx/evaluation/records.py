"""What was measured, image by image, in a file that a later run goes on from; and the other files of a measurement."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathx.errors import PathxError, as_text
from pathx.results.files import check_own, mark, replace_own, unwritable
from pathx.results.lines import JsonLines

Record = dict[str, Any]
"""What one measurement came to, as a line of JSON; `key` stands for everything that it depends on."""


def record_key(*parts: Any) -> str:
    """A short name for everything that goes into a figure."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class RecordFile:
    """Records by their key, as lines of JSON to continue from. Lines are only ever added; the last one of a key counts.

    Args:
        file: None to keep records in memory alone.
        is_whole: whether a line is a record; what is damaged is measured again.
    """

    def __init__(self, file: Path | None, is_whole: Callable[[Record], bool]) -> None:
        self._lines = None if file is None else JsonLines(file)
        try:
            lines = [] if self._lines is None else self._lines.read()
            if file is not None and not lines and file.exists() and file.stat().st_size:
                check_own(file.parent, [file.name])
        except OSError as error:
            raise PathxError(
                f"{file} cannot be read ({error.strerror}): choose another folder with `out`", usage=True
            ) from None
        self.known: dict[str, Record] = {line["key"]: line for line in lines if is_whole(line)}

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
        """The record of a key, measured and added where there is none."""
        if key not in self.known:
            self.add([{"key": key, **measure()}])
        return self.known[key]


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """A document, replaced whole. Bytes of names that are not text are written as JSON would escape them."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    replace_own(file, text.encode(errors="backslashreplace"))


def write_csv(file: Path, rows: Iterable[Sequence[Any]]) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([as_text(cell) for cell in row] for row in rows)
    replace_own(file, stream.getvalue().encode(errors="backslashreplace"))
