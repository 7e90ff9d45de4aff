"""Small files that expand to gigabytes cost little memory, whatever container they are in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import bombs
from support.command_line import ROOT, process

MOST = 400
"""Megabytes; the largest image that is read at all is 256."""


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_small_file_takes_little_memory() -> None:
    files = bombs.write_bombs()
    done = process(ROOT / "tests/support/bombs.py", json.dumps(files), seconds=600)
    lines = [json.loads(line) for line in done.out.splitlines()]
    said = dict(line for line in lines if isinstance(line, list))
    peaks = {line["file"]: line for line in lines if isinstance(line, dict)}
    assert peaks.keys() == files.keys(), done.err
    assert said.keys() >= files.keys(), done.err
    for file, line in peaks.items():
        assert line["status"] == 0, (file, done.err)
        assert line["megabytes"] < MOST, (file, line, said[file])
        assert Path(file).stat().st_size < 8 << 20, file
    assert [file for file, error in said.items() if error is None] == ["long.png"], said
    assert not any("\n" in error for error in said.values() if error is not None)
