"""What was found out picture by picture, kept in a file that a later run goes on from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pathx.errors import PathxError
from pathx.pictures import shown
from pathx.protocols import area


@dataclass(frozen=True)
class Record:
    """One attribution of one picture, measured.

    Args:
        key: stands for everything that the figures depend on: model, picture, method, settings, protocol.
        picture: its name below the folder.
        target: the class that was attributed, the predicted one.
        insertion, deletion: the probability before the first step and after each; empty where there is a problem.
        seconds: that the attribution took, the picture's part of its batch.
        tied: the attribution is the same everywhere.
        problem: why there are no figures.
    """

    key: str
    picture: str
    target: int
    insertion: tuple[float, ...] = ()
    deletion: tuple[float, ...] = ()
    seconds: float = 0.0
    tied: bool = False
    problem: str | None = None

    @property
    def areas(self) -> dict[str, float]:
        """The two measures of a record without a problem."""
        return {"insertion": area(self.insertion), "deletion": area(self.deletion)}


def record_key(*parts: Any) -> str:
    """A short name for everything that goes into a figure."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


class RecordFile:
    """Records, one JSON document per line. Lines are only ever added; one that was cut short is left out.

    Args:
        file: None to keep records in memory alone.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.known: dict[str, Record] = {}
        if file is not None and file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                if (record := _read(line)) is not None:
                    self.known[record.key] = record

    def add(self, records: Iterable[Record]) -> None:
        lines = []
        for record in records:
            self.known[record.key] = record
            lines.append(json.dumps(asdict(record)) + "\n")
        if self.file is None:
            return
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", encoding="utf-8") as stream:
                stream.writelines(lines)
        except OSError as error:
            reason = error.strerror or str(error)
            raise PathxError(
                f"cannot write to {shown(self.file)} ({reason}): choose another folder with --out"
            ) from None


def _read(line: str) -> Record | None:
    try:
        fields = json.loads(line)
        fields |= {name: tuple(fields[name]) for name in ("insertion", "deletion")}
        return Record(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
