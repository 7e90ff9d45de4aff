"""Files of JSON lines: what is added is added whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pathx.results.lines import JsonLines


def test_a_write_that_stops_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.append([{"a": 1}])
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        lines.append([{"b": 2}])
    assert lines.file.read_bytes() == b'{"a": 1}\n'
