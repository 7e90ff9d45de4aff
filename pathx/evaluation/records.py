"""What was found out image by image, kept in a file that a later run goes on from."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pathx.errors import PathxError, as_text
from pathx.evaluation.protocols import area
from pathx.results.files import check_own, mark, replace_own, unwritable
from pathx.results.lines import JsonLines, Line
from pathx.results.schema import misfit

DIFFERENCE = "difference"
"""Insertion minus deletion: the one figure to compare by, more is better."""


@dataclass(frozen=True)
class Record:
    """One attribution of one image, measured.

    Args:
        key: stands for everything that the figures depend on: model, image, method, settings, protocol.
        image: its name below the folder.
        target: the class that was attributed, the predicted one.
        insertion, deletion: the probability before the first step and after each; empty where there is a problem.
        seconds: that the attribution took, the image's part of its batch.
        tied: the share of pixels whose value in the attribution others have as well.
        problem: why there are no figures.
    """

    key: str
    image: str
    target: int
    insertion: tuple[float, ...] = ()
    deletion: tuple[float, ...] = ()
    seconds: float = 0.0
    tied: float = 0.0
    problem: str | None = None

    @property
    def areas(self) -> dict[str, float]:
        """The measures of a record without a problem."""
        insertion, deletion = area(self.insertion), area(self.deletion)
        return {"insertion": insertion, "deletion": deletion, DIFFERENCE: insertion - deletion}


def record_key(*parts: Any) -> str:
    """A short name for everything that goes into a figure."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class Keyed(Protocol):
    """A dataclass with a key."""

    @property
    def key(self) -> str: ...


R = TypeVar("R", bound=Keyed)


class RecordFile(Generic[R]):
    """Records by their `key`, as lines of JSON to go on from. Lines are only ever added; the last one of a key counts.

    Args:
        file: None to keep records in memory alone.
        read: gives the record of a line; None where it is damaged.
    """

    def __init__(self, file: Path | None, read: Callable[[Line], R | None]) -> None:
        self._lines = None if file is None else JsonLines(file)
        try:
            found = [] if self._lines is None else self._lines.read()
            if file is not None and not found and file.exists() and file.stat().st_size:
                check_own(file.parent, [file.name])
        except OSError as error:
            raise PathxError(
                f"{file} cannot be read ({error.strerror}): choose another folder with `out`", usage=True
            ) from None
        self.known: dict[str, R] = {record.key: record for record in map(read, found) if record is not None}

    def add(self, records: Sequence[R]) -> None:
        """Add records. Raises PathxError."""
        self.known |= {record.key: record for record in records}
        if self._lines is None or not records:
            return
        try:
            self._lines.file.parent.mkdir(parents=True, exist_ok=True)
            mark(self._lines.file.parent, [self._lines.file.name])
            self._lines.append([asdict(record) for record in records])  # type: ignore[call-overload]
        except OSError as error:
            raise unwritable(self._lines.file, error) from None


def read_record(line: Line) -> Record | None:
    """The record of a line; None where it is damaged."""
    if misfit(line, _SHAPE) is not None:
        return None
    record = Record(**{name: line[name] for name in _NAMES if name in line})
    record = replace(record, insertion=tuple(record.insertion), deletion=tuple(record.deletion))
    return record if record.problem is not None or len(record.insertion) == len(record.deletion) > 1 else None


_NUMBERS = {"insertion": [(int, float)], "deletion": [(int, float)], "seconds?": (int, float), "tied?": (int, float)}
_SHAPE = {"key": str, "image": str, "target": int, **_NUMBERS, "problem?": (str, type(None))}
_NAMES = [one.name for one in fields(Record)]


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """A document, replaced whole. Bytes of names that are not text are written as JSON would escape them."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    replace_own(file, text.encode(errors="backslashreplace"))


def write_csv(file: Path, rows: Iterable[Sequence[Any]]) -> None:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([as_text(cell) for cell in row] for row in rows)
    replace_own(file, stream.getvalue().encode(errors="backslashreplace"))
