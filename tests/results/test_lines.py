"""Files of JSON lines: what is torn or foreign is left out, and what is added is added whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pathx.results.lines import JsonLines


def test_what_is_torn_or_no_object_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    assert JsonLines(file).read() == []
    file.write_bytes(b'{"a": 1}\n[2]\nno json\n\xff\xfe\n{"b": 2}\n{"torn": ')
    assert JsonLines(file).read() == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("torn", [b'{"torn": ', b"x" * 10_000, b""])
def test_a_line_without_an_end_is_cut_off_before_others_are_added(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"a": 1}\n' + torn)
    JsonLines(file).append([{"b": 2}, {"c": 3}])
    assert file.read_bytes() == b'{"a": 1}\n{"b": 2}\n{"c": 3}\n'


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.append([{"a": 1}])
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        lines.append([{"b": 2}])
    assert lines.file.read_bytes() == b'{"a": 1}\n'
