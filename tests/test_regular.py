"""Files that others made: regular ones or none at all, and never more than they claim to hold."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path

import pytest

from pathx.regular import read_regular, sha256_of, written_by_pathx


def test_regular_files_are_read_whole_and_hashed(tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    file = tmp_path / "a"
    file.write_bytes(data)
    assert read_regular(file) == data == read_regular(file, len(data))
    assert sha256_of(file) == hashlib.sha256(data).hexdigest()
    with pytest.raises(OSError, match="it is larger than 5 bytes") as raised:
        read_regular(file, 5)
    assert raised.value.errno == errno.EFBIG


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_nothing_waits_for_a_pipe_a_device_or_a_folder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", Path("/dev/zero")):
        for read in (read_regular, sha256_of):
            with pytest.raises(OSError, match="it is not a regular file"):
                read(file)
        assert not written_by_pathx(file)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path)


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ('{"schema": "pathx/path@1"', True),
        ('\n { "schema": "pathx/files@1"}', True),
        ('{"schema": "other/path@1"}', False),
        ('[{"schema": "pathx/path@1"}]', False),
        ("", False),
    ],
)
def test_documents_of_ours_are_told_by_how_they_begin(tmp_path: Path, text: str, ours: bool) -> None:
    (tmp_path / "x.json").write_text(text)
    assert written_by_pathx(tmp_path / "x.json") is ours
    assert not written_by_pathx(tmp_path / "none.json")
