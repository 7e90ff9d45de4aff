"""Records of an evaluation: kept, found again, and never somebody else's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathx.errors import PathxError
from pathx.evaluation.records import Record, RecordFile, read_record

ONE = Record("k1", "cat.png", 3, (0.0, 0.5, 1.0), (1.0, 0.5, 0.0), 0.25, 0.1)
TWO = Record("k2", "dog.png", 4, problem="the map holds NaN or infinite values")


def test_what_was_added_is_found_again_and_the_last_of_a_key_counts(tmp_path: Path) -> None:
    file = tmp_path / "out" / "records.jsonl"
    first = RecordFile(file, read_record)
    first.add([ONE])
    first.add([TWO])
    assert RecordFile(file, read_record).known == {"k1": ONE, "k2": TWO} == first.known
    again = Record("k1", "cat.png", 5, (0.0, 1.0), (1.0, 0.0))
    RecordFile(file, read_record).add([again])
    with file.open("a") as stream:
        stream.write('{"key": "k3"}\n{"key": "k1", "pic')
    assert RecordFile(file, read_record).known == {"k1": again, "k2": TWO}


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("notes of mine\n")
    with pytest.raises(PathxError, match=r"records\.jsonl"):
        RecordFile(file, read_record)
    assert file.read_text() == "notes of mine\n"
