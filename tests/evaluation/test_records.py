"""Records of an evaluation: kept, found again, and never somebody else's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathx.errors import PathxError
from pathx.evaluation.measure import curve_records

ONE = {"key": "k1", "image": "cat.png", "target": 3, "insertion": [0.0, 0.5], "deletion": [1.0, 0.5]}
ONE |= {"seconds": 0.25, "tied": 0.1, "problem": None}
TWO = {**ONE, "key": "k2", "insertion": [], "deletion": [], "problem": "the map holds NaN or infinite values"}


def test_what_was_added_is_found_again_and_the_last_of_a_key_counts(tmp_path: Path) -> None:
    file = tmp_path / "out" / "records.jsonl"
    first = curve_records(file)
    first.add([ONE])
    first.add([TWO])
    assert curve_records(file).known == {"k1": ONE, "k2": TWO} == first.known
    again = {**ONE, "target": 5}
    curve_records(file).add([again])
    with file.open("a") as stream:
        stream.write('{"key": "k3"}\n{"key": "k1", "pic')
    assert curve_records(file).known == {"k1": again, "k2": TWO}


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("notes of mine\n")
    with pytest.raises(PathxError, match=r"records\.jsonl"):
        curve_records(file)
    assert file.read_text() == "notes of mine\n"
