"""Documents as their files have them, lines that are added whole, and names.json, which a page saves."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathx.results.files import JsonLines
from pathx.results.schema import NAMES, document_bytes, read_names

text = st.text(st.sampled_from('a"\\\né\u2028\udc80'))  # all that JSON escapes
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=30)


@settings(max_examples=30)
@given(st.dictionaries(text, values))
def test_a_document_is_read_as_it_was_given(document: dict[str, Any]) -> None:
    assert json.loads(document_bytes(document)) == document


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        document_bytes({"rows": [[1.0, number]]})


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.append([{"a": 1}])
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        lines.append([{"b": 2}])
    assert lines.file.read_bytes() == b'{"a": 1}\n'


# names.json


def names(folder: Path, given: Any, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    document = {"schema": "pathx/names@1", "model": {"sha256": "ours", "name": "x"}, "names": given}
    (folder / NAMES).write_text(json.dumps(document | changes))
    return folder


def test_the_first_folder_that_names_a_channel_counts(tmp_path: Path) -> None:
    one = names(tmp_path / "one", {"relu[1]": "eye", "relu[2]": ""})
    two = names(tmp_path / "two", {"relu[1]": "nose", "relu[2]": "ear"})
    assert read_names([one, tmp_path / "none", two], "ours") == {"relu[1]": "eye", "relu[2]": "ear"}


@pytest.mark.parametrize(
    "changes", [{"model": {"sha256": "theirs"}}, {"schema": "pathx/path@1"}, {"names": ["eye"]}, {"model": None}]
)
def test_names_of_others_or_damaged_add_nothing(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert read_names([names(tmp_path, {"relu[1]": "eye"}, **changes)], "ours") == {}
    (tmp_path / NAMES).write_text("{")
    assert read_names([tmp_path], "ours") == {}
